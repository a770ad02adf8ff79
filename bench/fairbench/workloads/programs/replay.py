"""Programs of recorded calls: the calls of a trace, unchanged, or randomly drawn sessions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Demand, Prompt, Segment, prompt_tokens
from fairbench.errors import UsageError
from fairbench.workloads.items import Branch, Item, Recorded, RecordedCall, all_calls
from fairbench.workloads.programs.base import Program
from fairbench.workloads.traces.read import TraceParams, read_trace


class CallSequence(Program):
    """A sequence of recorded calls; each call starts once the previous call is answered."""

    def __init__(self, program_id: int, client: str, calls: tuple[RecordedCall, ...]) -> None:
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


class ReplayProgram(CallSequence):
    """A program that replays the recorded calls of a trace."""

    kind = "replay"

    @dataclass(frozen=True, slots=True)
    class Params:
        """``pauses`` states whether a program's latency includes the pauses between its calls."""

        pauses: bool

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Build the program with the calls of ``item``; raise UsageError for any other item."""
        if not isinstance(item, Recorded):
            raise UsageError("program replay: needs arrivals of kind replay with params.file")
        return cls(program_id, client, item.calls)

    @classmethod
    def has_turns(cls, params: Params) -> bool:
        return params.pauses

    @classmethod
    def pauses(cls, params: Params) -> bool:
        return params.pauses


class _Strand:
    """The sequence of calls of one program or sub-agent.

    ``name`` is the first part of the calls' names. ``depth`` is the number of calls of the program
    before the first call of the sequence.
    """

    def __init__(self, llm: LLM, calls: tuple[RecordedCall, ...], name: str, depth: int) -> None:
        self._llm, self._calls, self._name, self._depth = llm, calls, name, depth

    async def run(self, first: int, start_after: int) -> None:
        """Make the calls ``first`` to ``start_after`` - 1, with their pauses and sub-agents."""
        at = first
        while at < start_after:
            call = self._calls[at]
            if call.gap_s > 0:
                await self._llm.gather([self._make_call(at), self._wait(call.gap_s)])
            else:
                await self._make_call(at)
            if call.branches:
                until = min(start_after, self._waiting_call(at))
                branches = [
                    _Strand(
                        self._llm, one.calls, f"{self._name}{at}-{number}-", self._depth + at + 1
                    ).start_after(one.delay_s)
                    for number, one in enumerate(call.branches)
                ]
                await self._llm.gather([*branches, self._beside(at, until)])
                at = until
                continue
            if call.think_s > 0:
                await self._llm.sleep(call.think_s)
            at += 1

    def _waiting_call(self, at: int) -> int:
        """Return the index of the first call that waits for the sub-agents started by call ``at``.

        In a replay, a call waits for at least the sub-agents for which it waited in the recording.
        """
        until = max(branch.until for branch in self._calls[at].branches)
        later = at + 1
        while later < min(until, len(self._calls)):
            until = max(until, *(one.until for one in self._calls[later].branches), until)
            later += 1
        return until

    async def start_after(self, delay_s: float) -> None:
        """Make all calls of the program after ``delay_s`` seconds."""
        await self._wait(delay_s)
        await self.run(0, len(self._calls))

    async def _beside(self, at: int, until: int) -> None:
        """Make calls ``at`` + 1 to ``until`` - 1 while the sub-agents of call ``at`` run."""
        await self._wait(self._calls[at].think_s)
        await self.run(at + 1, until)

    async def _make_call(self, at: int) -> None:
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


MOST_TOKENS = 10**7


class Session(CallSequence):
    """A random session of a trace; content that no other recorded session shares is renamed."""

    kind = "session"

    @dataclass(frozen=True, slots=True)
    class Params:
        """``file`` is a trace with sessions: a path, or a name in a folder of ``FAIRBENCH_DATA``.

        A session is drawn only if its longest prompt has ``least_tokens`` to ``most_tokens``
        tokens. A session ends after ``most_calls`` calls, not counting calls of sub-agents.
        ``think_scale`` multiplies all recorded pauses.
        """

        file: str
        least_tokens: Annotated[int, Ge(0), Le(MOST_TOKENS)]
        most_tokens: Annotated[int, Ge(1), Le(MOST_TOKENS)]
        most_calls: Annotated[int, Ge(1), Le(100_000)]
        think_scale: Annotated[float, Ge(0), Le(1e6)]

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Draw a random session that fits the parameters.

        Raises UsageError if no session fits the parameters, and DataError for an invalid file.
        """
        found = _sessions(params.file, params.least_tokens, params.most_tokens)
        calls = found[rng.randrange(len(found))].calls[: params.most_calls]
        own = _Copy(f"{program_id}", params.think_scale)
        return cls(program_id, client, tuple(map(own.renamed_call, calls)))

    @classmethod
    def pauses(cls, params: Params) -> bool:
        return params.think_scale > 0


class _Copy:
    """A copy of a recorded session, with new names for content that no other session shares."""

    def __init__(self, name: str, think_scale: float) -> None:
        self._name = name
        self._scale = think_scale

    def renamed_call(self, call: RecordedCall) -> RecordedCall:
        return call._replace(
            prompt=self._renamed_prompt(call.prompt, call.shared_tokens),
            gap_s=call.gap_s * self._scale,
            think_s=call.think_s * self._scale,
            branches=tuple(
                Branch(
                    one.delay_s * self._scale, tuple(map(self.renamed_call, one.calls)), one.until
                )
                for one in call.branches
            ),
        )

    def _renamed_prompt(self, prompt: Prompt, shared: int) -> Prompt:
        """Replace the content of a prompt after its first ``shared`` tokens by new content."""
        made: list[Segment] = []
        for key, length in prompt:
            same = min(shared, length)
            shared -= same
            if same:
                made.append(Segment(f"{Session.kind}/{key}", same))
            if length > same:
                made.append(Segment(f"{self._name}/{key}", length - same))
        return tuple(made)


@lru_cache(maxsize=8)
def _sessions(file: str, least_tokens: int, most_tokens: int) -> tuple[Recorded, ...]:
    trace, unused = read_trace(TraceParams(file)).trace, random.Random(0)
    programs = (
        program.item
        for client in range(len(trace.clients))
        for program in trace.programs(client, unused, 1.0)
    )
    found = tuple(
        one
        for one in programs
        if least_tokens
        <= max(prompt_tokens(call.prompt) for call in all_calls(one.calls))
        <= most_tokens
    )
    if not found:
        raise UsageError(
            f"session.file = {file!r}: must hold a session whose longest prompt has from "
            f"{least_tokens:,} (least_tokens) to {most_tokens:,} tokens (most_tokens)"
        )
    return found
