"""A program that runs one server, and ends it when the parent process ends.

python reaper.py GRACE_S COMMAND...

Standard input is a pipe that only the parent process holds open. When the parent closes the pipe or
dies, even by SIGKILL, the reaper sends SIGTERM to the server. After ``GRACE_S`` more seconds, the
reaper sends SIGKILL to the server's process group. Each server has its own reaper process. To
start fast, this program imports no other module of fairbench.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

HARNESS = 0  # the file descriptor of standard input, the pipe from the parent process
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # values of these constants in linux/prctl.h


def main() -> int:
    """Run the server until it ends; return its exit code, or 128 plus a signal's number."""
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    before_start = None
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        # When the server ends, its children become children of the reaper.
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

        # If the reaper is killed, the kernel sends SIGTERM to the server. The kernel does so when
        # the thread that started the server ends: the main thread, which waits for the server.
        def before_start() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    try:
        # The reaper finds remaining children of the server by the server's own process group.
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=before_start
        )
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
        while True:  # wait for the killed processes, which end only after their memory is freed
            os.waitpid(-server.pid, 0)
    return code if code >= 0 else 128 - code


def _end_with_harness(server: subprocess.Popen[bytes], grace_s: float) -> None:
    while os.read(HARNESS, 1024):
        # The parent writes nothing; the end of the pipe means that the parent has ended.
        pass
    server.terminate()
    try:
        server.wait(grace_s)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main())
