"""Runs one server, and ends it with its children when the parent process ends.

    python reaper.py GRACE_S COMMAND...

Standard input is a pipe that only the harness holds open. The pipe closes when the harness closes
it or is killed, even by SIGKILL: the server then gets SIGTERM, and after ``GRACE_S`` seconds its
process group gets SIGKILL, in any case. This is a separate program that imports nothing of
fairbench, because one process is started with every server.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

HARNESS = 0  # the file descriptor of the pipe
PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h


def main() -> int:
    """Run the server to its end; return its exit code, 128 plus the number of a signal."""
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        # The server's children become ours when it ends, so that we can wait for their end as well.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        # A separate process group, so that leftover processes can be found.
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
        while True:  # a killed process runs until its memory is freed
            os.waitpid(-server.pid, 0)
    return code if code >= 0 else 128 - code


def _end_with_harness(server: subprocess.Popen[bytes], grace_s: float) -> None:
    while os.read(HARNESS, 1024):
        pass  # the pipe has no writer; the end of the file is the message
    server.terminate()
    try:
        server.wait(grace_s)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main())
