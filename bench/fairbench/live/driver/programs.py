"""The program coroutines of the simulator, run over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextvars import ContextVar
from typing import Any

from fairbench.core import Prompt, Segment
from fairbench.errors import ProgramFailed
from fairbench.live.driver.caller import Caller, ProgramCall
from fairbench.live.driver.clock import RunClock
from fairbench.live.records import FINISHED, REFUSED, UNFINISHED, Journal, ProgramRecord
from fairbench.sim.program_runner import output_segment
from fairbench.workloads.programs.base import Job

# When the next action in this branch of a program is due (seconds of the run).
_due_s: ContextVar[float] = ContextVar("due_s")


class LiveLLM:
    """The LLM that one program calls; it keeps the outputs that become parts of later prompts."""

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
        call = ProgramCall(
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
        """Wait for all branches, and then raise the first failure of a branch."""
        results = await asyncio.gather(*branches, return_exceptions=True)
        _due_s.set(self._clock.now_s())
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise min(
                errors, key=lambda error: isinstance(error, ProgramFailed)
            )  # raise a bug before other errors
        return results


class ProgramRunner:
    """Runs and counts the programs of one run."""

    def __init__(self, caller: Caller, clock: RunClock, journal: Journal) -> None:
        self.started = 0
        self.done = 0
        self._caller = caller
        self._clock = clock
        self._journal = journal

    async def run(self, program: Job, arrival_s: float) -> None:
        """Run one program and record how it ended.

        A cancelled program is recorded as unfinished.
        """
        self.started += 1
        llm = LiveLLM(program.program_id, program.client, arrival_s, self._caller, self._clock)
        status = UNFINISHED
        try:
            await program.run(llm)
            status = FINISHED
        except ProgramFailed:
            status = REFUSED
        finally:
            self._record(program, arrival_s, llm.requests, status)
        self.done += 1

    def _record(self, program: Job, arrival_s: float, requests: int, status: str) -> None:
        demand = program.demand
        self._journal.program(
            ProgramRecord(
                program_id=program.program_id,
                client=program.client,
                arrival_s=arrival_s,
                finish_s=self._clock.now_s() if status == FINISHED else None,
                requests=requests,
                demand_requests=demand.requests,
                demand_input_tokens=demand.input_tokens,
                demand_output_tokens=demand.output_tokens,
                status=status,
            )
        )
