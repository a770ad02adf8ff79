"""The calls of a recorded trace with their recorded prompts, lengths and pauses."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Self

from fairbench.core import LLM, Demand, prompt_tokens
from fairbench.errors import UsageError
from fairbench.workloads.items import Call, Item, Recorded, all_calls
from fairbench.workloads.programs.base import Program


class Calls(Program):
    """Recorded calls in sequence: each starts once the previous call has been answered."""

    def __init__(self, program_id: int, client: str, calls: tuple[Call, ...]) -> None:
        self._calls = calls
        everything = [*all_calls(calls)]
        demand = Demand(
            len(everything),
            sum(prompt_tokens(call.prompt) for call in everything),
            sum(call.output_tokens for call in everything),
        )
        super().__init__(program_id, client, demand)

    async def run(self, llm: LLM) -> None:
        await _Strand(llm, self._calls, "call-", 0).run(0, len(self._calls))


class Replay(Calls):
    """Recorded calls in sequence: each starts once the previous call has been answered."""

    kind = "replay"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Parameters: with ``pauses``, a program's latency includes the pauses between calls."""

        pauses: bool

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Build a program from its recording. Raises UsageError without a recording."""
        if not isinstance(item, Recorded):
            raise UsageError("program replay: needs arrivals of kind replay, which name the trace")
        return cls(program_id, client, item.calls)

    @classmethod
    def pauses(cls, params: Params) -> bool:
        return params.pauses


class _Strand:
    """A sequence of calls: a program's own, or a sub-agent's.

    ``name`` is the prefix of the names of their outputs, ``depth`` the depth of the first call.
    """

    def __init__(self, llm: LLM, calls: tuple[Call, ...], name: str, depth: int) -> None:
        self._llm, self._calls, self._name, self._depth = llm, calls, name, depth

    async def run(self, first: int, after: int) -> None:
        """Make the calls from ``first`` up to ``after``, with pauses and sub-agents."""
        at = first
        while at < after:
            call = self._calls[at]
            if call.gap_s > 0:
                await self._llm.gather([self._make(at), self._wait(call.gap_s)])
            else:
                await self._make(at)
            if call.branches:
                until = min(after, self._until(at))
                await self._llm.gather([*self._branches(at), self._beside(at, until)])
                at = until
                continue
            if call.think_s > 0:
                await self._llm.sleep(call.think_s)
            at += 1

    def _until(self, at: int) -> int:
        """Return the call that waits for the sub-agents of call ``at``.

        A call waits together for all sub-agents that start meanwhile and end later: no call waits
        for a sub-agent earlier than was recorded.
        """
        until = max(branch.until for branch in self._calls[at].branches)
        later = at + 1
        while later < min(until, len(self._calls)):
            until = max(until, *(one.until for one in self._calls[later].branches), until)
            later += 1
        return until

    def _branches(self, at: int) -> Iterator[Coroutine[Any, Any, None]]:
        for number, branch in enumerate(self._calls[at].branches):
            name = f"{self._name}{at}-{number}-"
            strand = _Strand(self._llm, branch.calls, name, self._depth + at + 1)
            yield strand.after(branch.delay_s)

    async def after(self, delay_s: float) -> None:
        """Make all the calls after ``delay_s`` seconds."""
        await self._wait(delay_s)
        await self.run(0, len(self._calls))

    async def _beside(self, at: int, until: int) -> None:
        """Make the calls that do not wait for the sub-agents of call ``at``."""
        await self._wait(self._calls[at].think_s)
        await self.run(at + 1, until)

    async def _make(self, at: int) -> None:
        call = self._calls[at]
        await self._llm.generate(
            call.prompt,
            name=f"{self._name}{at}",
            output_tokens=call.output_tokens,
            max_new_tokens=call.max_new_tokens,
            depth=self._depth + at,
        )

    async def _wait(self, seconds: float) -> None:
        if seconds > 0:
            await self._llm.sleep(seconds)
