"""vLLM's API server, whose metrics include the counters of its engine core.

``python -m fairbench_engines.vllm --model MODEL`` with the arguments of ``vllm serve``. Server and
engine core are separate processes, so the counters need a shared folder, known before either
imports prometheus_client.
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
ORDERLY = (signal.SIGTERM, signal.SIGINT)  # how vLLM ends its own processes


class Children:
    """The processes that vLLM starts, remembered so that the end of one can be explained."""

    def __init__(self) -> None:
        self.started: list[BaseProcess] = []
        start, started = BaseProcess.start, self.started

        def remembered(process: BaseProcess) -> None:
            start(process)
            started.append(process)

        # mypy forbids to replace a method, but vLLM offers no hook where it starts a process
        BaseProcess.start = remembered  # type: ignore[method-assign, assignment]

    def killed(self) -> tuple[str, signal.Signals] | None:
        """Return the name and signal of a process that somebody else killed, or None."""
        for process in self.started:
            try:
                code = process.exitcode or 0
            except ValueError:  # closed by vLLM
                continue
            if code < 0 and -code not in ORDERLY:
                return process.name, signal.Signals(-code)
        return None


def _server() -> str:
    """Return the module of the API server; vLLM 0.32 moved the module and deprecates the old one.

    ``vllm serve`` itself does not start from a build for CPUs, whose distribution has another name.
    """
    with suppress(ModuleNotFoundError):
        if find_spec(SERVER) is not None:
            return SERVER
    return "vllm.entrypoints.openai.api_server"


def main() -> None:
    """Run the server; exit like a shell, with 128 plus a signal's number, if a process was killed.

    vLLM itself reports success if its engine core is killed.
    """
    children = Children()
    try:
        with tempfile.TemporaryDirectory(prefix="fairbench-vllm-") as folder:
            # the folder of this server, however it was started
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
