"""vLLM's API server with fairbench's counters among its metrics.

Start the server with ``python -m fairbench_engines.vllm --model MODEL`` and the arguments of ``vllm
serve``. The engine core, a separate process, writes the counters to a folder that the server reads.
The environment variable PROMETHEUS_MULTIPROC_DIR must name this folder before any module imports
prometheus_client.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.process import BaseProcess

SERVER = "vllm.entrypoints.launchers.api_server.entry"
ORDERLY = (signal.SIGTERM, signal.SIGINT)  # signals by which vLLM ends its own processes


class Children:
    """A record of the processes that vLLM starts, to find a process that was killed."""

    def __init__(self) -> None:
        self.started: list[BaseProcess] = []
        start, started = BaseProcess.start, self.started

        def remembered(process: BaseProcess) -> None:
            start(process)
            started.append(process)

        # ``remembered`` replaces Python's ``BaseProcess.start``, to record each process that vLLM
        # starts.
        BaseProcess.start = remembered  # type: ignore[method-assign, assignment]

    def killed(self) -> tuple[str, signal.Signals] | None:
        """Return the name and the signal of a process that a signal ended unexpectedly, or None."""
        for process in self.started:
            try:
                code = process.exitcode or 0
            except ValueError:  # vLLM has closed the process object
                continue
            if code < 0 and -code not in ORDERLY:
                return process.name, signal.Signals(-code)
        return None


def _server() -> str:
    """Return the module of the API server, which has a new path since vLLM 0.32.

    The command ``vllm serve`` cannot start a CPU build, because the package is not named ``vllm``.
    """
    with suppress(ModuleNotFoundError):
        if find_spec(SERVER) is not None:
            return SERVER
    return "vllm.entrypoints.openai.api_server"


def main() -> None:
    """Run the server; if a process was killed, exit with 128 plus the signal's number.

    vLLM itself reports success even if its engine core was killed.
    """
    children = Children()
    try:
        with tempfile.TemporaryDirectory(prefix="fairbench-vllm-") as folder:
            # Each server needs its own folder of Prometheus counters, so a folder that the parent
            # process set is replaced.
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
            runpy.run_module(_server(), run_name="__main__", alter_sys=True)
    finally:
        if found := children.killed():
            name, number = found
            sys.stderr.write(f"fairbench: {name} was killed by signal {number} ({number.name})\n")
            sys.stderr.flush()
            raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
