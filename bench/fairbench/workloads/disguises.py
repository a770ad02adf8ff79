"""Strategies of heavy clients: disguises of programs, and reactions when a request ends.

A disguise alters a program's requests, but keeps the useful text and the number of calls. A
disguised client is compared with its honest twin, which sends the programs without the disguise. A
reaction uses only facts that a client of a server observes: the start and end of a request, and the
number of cached prompt tokens, which servers report.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple, TypeAlias

from fairbench.core import LLM, Demand, Prompt, Segment
from fairbench.workloads.programs.base import Job, Program

KEEP_ALIVE_S = 60.0  # pause in seconds before a program sends its padding again, to keep it cached


@dataclass(frozen=True, slots=True)
class Disguise:
    """The changes to a heavy client's calls: padding, longer answers and raised output limits.

    The padding is ``padding_tokens`` tokens of useless text in front of each prompt. If the
    disguise copies a client, the padding begins with the first prompt of that client's latest
    program. Padding that is not copied is text that no other client sends. If ``fresh`` is True,
    each call gets new text. After its last call, a program sends ``keep_alive`` requests that
    contain only the padding, to keep the padding in the KV cache.

    Answers are ``output_multiple`` times as long as honest answers, but later prompts repeat only
    the honest part of each answer. ``max_new_multiple`` multiplies the output limit that a request
    claims; the claimed limit is never below the real output length.
    """

    owner: str
    padding_tokens: int = 0
    max_new_multiple: float = 1.0
    output_multiple: int = 1
    fresh: bool = False
    keep_alive: int = 0

    def dress(self, program: Program, copied: Program | None) -> Job:
        """Return the disguised program; the padding starts with the first prompt of ``copied``."""
        return _Disguised(program, self, first_prompt(copied) if copied is not None else ())

    def padding(self, copied: Prompt, name: str) -> Prompt:
        """Return padding: the beginning of ``copied``, then text that only this client sends."""
        own = Segment(f"{self.owner}/padding{name}", self.padding_tokens)
        return first_tokens((*copied, own), self.padding_tokens)


def first_tokens(prompt: Prompt, tokens: int) -> Prompt:
    """Return the first ``tokens`` tokens of a prompt that has at least this length."""
    parts = []
    for segment in prompt:
        length = min(segment.length, tokens)
        if length:
            parts.append(Segment(segment.key, length))
        tokens -= length
    return tuple(parts)


def latest_program(arrivals: Iterable[tuple[float, Program]]) -> _Latest:
    """Return an object whose ``program_at`` returns the latest program before a given time."""
    return _Latest(iter(arrivals))


def first_prompt(program: Job) -> Prompt:
    """Return the first prompt of a program, or an empty prompt if the program makes no call."""
    probe = _Probe()
    try:
        program.run(probe).send(None)
    except (_FirstCallMadeError, StopIteration):
        return probe.prompt
    raise AssertionError("a program awaits something other than an LLM call")


class _Latest:
    """A lookup of a client's latest program, for times in ascending order."""

    def __init__(self, arrivals: Iterator[tuple[float, Program]]) -> None:
        self._arrivals = arrivals
        self._program: Program | None = None
        self._following = next(arrivals, None)

    def program_at(self, now_s: float) -> Program | None:
        """Return the last program that arrived by ``now_s``, or None if no program had arrived."""
        while self._following is not None and self._following[0] <= now_s:
            self._program = self._following[1]
            self._following = next(self._arrivals, None)
        return self._program


class _Disguised(Job):
    def __init__(self, program: Program, disguise: Disguise, copied: Prompt) -> None:
        wanted = program.demand
        turns = disguise.keep_alive * (wanted.requests if disguise.fresh else 1)
        requests = wanted.requests + turns
        demand = Demand(
            requests=requests,
            input_tokens=wanted.input_tokens + requests * disguise.padding_tokens,
            output_tokens=wanted.output_tokens * disguise.output_multiple + turns,
        )
        super().__init__(program.program_id, program.client, demand)
        self.turn = program.turn
        self._program = program
        self._disguise = disguise
        self._copied = copied

    async def run(self, llm: LLM) -> None:
        padded = _PaddedLLM(llm, self._disguise, self._copied, self.program_id)
        await self._program.run(padded)
        for turn in range(self._disguise.keep_alive):
            await llm.sleep(KEEP_ALIVE_S)
            await llm.gather(padded.send_padding(name, turn) for name in padded.paddings)


class _PaddedLLM:
    """A ``core.LLM`` that adds the disguise to each call of a program."""

    def __init__(self, llm: LLM, disguise: Disguise, copied: Prompt, program_id: int) -> None:
        self.paddings: dict[str, Prompt] = {}
        self._llm = llm
        self._disguise = disguise
        self._copied = copied
        self._program_id = program_id

    async def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Segment:
        produced = output_tokens * self._disguise.output_multiple
        allowed = ceil(max_new_tokens * self._disguise.max_new_multiple)
        key = f"-{self._program_id}-{name}" if self._disguise.fresh else ""
        if key not in self.paddings:
            self.paddings[key] = self._disguise.padding(self._copied, key)
        answer = await self._llm.generate(
            (*self.paddings[key], *prompt),
            name=name,
            output_tokens=produced,
            max_new_tokens=max(allowed, produced),
            depth=depth,
        )
        return Segment(answer.key, min(answer.length, output_tokens))

    async def send_padding(self, name: str, turn: int) -> None:
        """Send a request whose prompt is only the program's padding; its answer has one token."""
        padding, name = self.paddings[name], f"keep-alive-{turn}{name}"
        await self._llm.generate(padding, name=name, output_tokens=1, max_new_tokens=1, depth=0)

    def sleep(self, seconds: float) -> Awaitable[None]:
        return self._llm.sleep(seconds)

    def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> Awaitable[list[Any]]:
        return self._llm.gather(branches)


class _FirstCallMadeError(Exception):
    """An exception that stops a program when its first call has revealed the prompt."""


class _Probe:
    """A ``core.LLM`` that records a program's first prompt and then ends the program."""

    def __init__(self) -> None:
        self.prompt: Prompt = ()

    async def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Segment:
        self.prompt = prompt
        raise _FirstCallMadeError

    async def sleep(self, seconds: float) -> None:
        """Skip a pause of the program, because only the program's first prompt is needed."""

    async def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        first, *others = branches
        for branch in others:
            branch.close()
        return [await first]


LONG_S = 1.0  # With at least this TTFT in seconds, a client assumes that its request was queued.
# A client assumes an eviction if the cached part of a prompt falls below half of the highest cached
# part so far.
LOST = 0.5


class EndedRequest(NamedTuple):
    """A finished request of a client: seconds to the first token, prompt tokens, cached tokens."""

    ttft_s: float
    input_tokens: int
    cached_tokens: int


Reaction: TypeAlias = Callable[[EndedRequest], bool]
"""A function that is called when a request of a client ends; it may keep state.

A ``Reaction`` that returns True starts all waiting programs of the client.
"""


class AtRefill:
    """A reaction that starts programs after a queued request, as credit may be renewed then."""

    def __call__(self, ended: EndedRequest) -> bool:
        return ended.ttft_s >= LONG_S


class AtEviction:
    """A reaction that starts programs when the client's prefix seems to have been evicted."""

    def __init__(self) -> None:
        self._best = 0.0

    def __call__(self, ended: EndedRequest) -> bool:
        part = ended.cached_tokens / ended.input_tokens
        self._best = max(self._best, part)
        return part < LOST * self._best


REACTIONS: Mapping[str, Callable[[], Reaction]] = {"refill": AtRefill, "eviction": AtEviction}
