"""A program that runs one server, and ends it when the parent process ends.

python reaper.py GRACE_S COMMAND...

Standard input is a pipe that only the parent process holds open. The pipe closes when the parent
process closes its end or is killed, even by SIGKILL. The reaper then sends SIGTERM to the server
and, after ``GRACE_S`` seconds, SIGKILL to the server's process group. The reaper imports nothing of
fairbench, so that it starts fast, because each server has its own reaper.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

HARNESS = 0  # file descriptor of standard input, which is the pipe from the parent process
PR_SET_CHILD_SUBREAPER = 36  # number of the option PR_SET_CHILD_SUBREAPER in linux/prctl.h


def main() -> int:
    """Run the server to its end; return its exit code, or 128 plus the number of a signal."""
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        # When the server ends, the server's children become children of the reaper, which can wait
        # for them.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        # The server runs in a process group of its own, by which the reaper finds remaining
        # children.
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
        while True:  # A killed process ends only after its memory is freed.
            os.waitpid(-server.pid, 0)
    return code if code >= 0 else 128 - code


def _end_with_harness(server: subprocess.Popen[bytes], grace_s: float) -> None:
    while os.read(HARNESS, 1024):
        # The parent process writes nothing to the pipe; the pipe's end means that the parent has
        # ended.
        pass
    server.terminate()
    try:
        server.wait(grace_s)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main())
