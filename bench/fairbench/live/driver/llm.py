"""Programs over HTTP: the ``core.LLM`` of live runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextvars import ContextVar
from typing import Any

from fairbench.core import Prompt, Segment
from fairbench.errors import ProgramFailed
from fairbench.live.driver.attempt import Call
from fairbench.live.driver.caller import Caller
from fairbench.live.driver.clock import RunClock
from fairbench.sim.program_runner import output_segment

# When what comes next in this branch of a program should happen (seconds of the run).
_due_s: ContextVar[float] = ContextVar("due_s")


class LiveLLM:
    """What one program calls. It remembers the outputs, of which later prompts are made."""

    def __init__(
        self, program_id: int, client: str, arrival_s: float, caller: Caller, clock: RunClock
    ) -> None:
        self.requests = 0
        self._program_id = program_id
        self._client = client
        self._caller = caller
        self._clock = clock
        self._outputs: dict[str, bytes] = {}
        _due_s.set(arrival_s)

    async def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Segment:
        self.requests += 1
        call = Call(
            self._program_id,
            self._client,
            depth,
            prompt,
            output_tokens,
            max_new_tokens,
            _due_s.get(),
        )
        answer = await self._caller.call(call, self._outputs)
        _due_s.set(self._clock.now_s())
        output = output_segment(self._program_id, name, answer.output_tokens)
        self._outputs[output.key] = answer.rendered()
        return output

    async def sleep(self, seconds: float) -> None:
        wake_s = _due_s.get() + seconds
        _due_s.set(wake_s)
        await self._clock.sleep_until(wake_s)

    async def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Waits for all branches; only then reports the failure of one."""
        results = await asyncio.gather(*branches, return_exceptions=True)
        _due_s.set(self._clock.now_s())
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, ProgramFailed))  # bugs first
        return results
