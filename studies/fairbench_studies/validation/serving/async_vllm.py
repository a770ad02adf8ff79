"""vLLM with ``async_scheduling``, the default since release 0.14."""

from __future__ import annotations

from typing import Any

from fairbench.engine.sequence import Sequence
from fairbench.engine.vllm import VLLMReplica


class AsyncVLLMReplica(VLLMReplica):
    """A worker that schedules each step when the previous step begins.

    When step i begins, step i + 1 is scheduled. A request that arrives during step i can join step
    i + 2 at the earliest. An idle worker starts a request immediately.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # ``_late`` holds requests that arrived after the next step was scheduled.
        self._late: list[Sequence] = []

    def _read_inbox(self) -> None:
        if self._idle:
            super()._read_inbox()
            return
        arrived, self._inbox = self._inbox, self._late
        super()._read_inbox()
        self._late = arrived

    def _end_iteration(self) -> None:
        if self._late and not self._inbox:
            self._read_inbox()
        super()._end_iteration()

    def _start(self) -> bool:
        if super()._start():
            return True
        if not self._late:
            return False
        self._read_inbox()
        return super()._start()

    def _start_run(self, steps: int, saved_ps: int) -> None:
        super()._start_run(1 if self._late else steps, saved_ps)
