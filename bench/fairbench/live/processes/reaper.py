"""A program that runs one server, and ends it when the parent process ends.

python reaper.py GRACE_S COMMAND...

Standard input is a pipe that only the parent process holds open. When the parent closes it or dies,
even by SIGKILL, the reaper sends SIGTERM to the server and, after ``GRACE_S`` seconds, SIGKILL to
the server's process group. Each server has its own reaper, which imports nothing of fairbench, so
that it starts fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

HARNESS = 0  # standard input, the pipe from the parent process
PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h


def main() -> int:
    """Run the server to its end; return its exit code, or 128 plus the number of a signal."""
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        # The server's children become children of the reaper when the server ends.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        # A process group of its own, by which the reaper finds remaining children.
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: server.terminate())
    threading.Thread(target=_end_with_harness, args=(server, grace_s), daemon=True).start()
    code = server.wait()
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:  # a killed process ends only after its memory is freed
            os.waitpid(-server.pid, 0)
    return code if code >= 0 else 128 - code


def _end_with_harness(server: subprocess.Popen[bytes], grace_s: float) -> None:
    while os.read(HARNESS, 1024):
        # The parent writes nothing; the end of the pipe means that it has ended.
        pass
    server.terminate()
    try:
        server.wait(grace_s)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main())
