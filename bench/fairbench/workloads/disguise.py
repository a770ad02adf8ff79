"""Programs in disguise: changes that a cheating client makes to its calls.

The useful text and the number of calls stay the same, so a client that sends the same programs
unchanged is its honest twin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from fairbench.core import LLM, Demand, Prompt, Segment
from fairbench.workloads.programs.base import Job, Program

KEEP_ALIVE_S = 60.0  # gap between a program's end, or a repetition of its padding, and the next one


@dataclass(frozen=True, slots=True)
class Disguise:
    """Padding before each prompt in tokens, and factors on the length and limit of answers.

    Padding is the beginning of a copied client's latest first prompt, if any, followed by the
    ``owner``'s own text; with ``fresh``, the own text is new for each call. No part of the padding
    is useful. After its work, a program sends its padding ``keep_alive`` times alone, for an answer
    of one token, so that all of it stays cached. An answer continues to ``output_multiple`` times
    its length; only its beginning is in later prompts. ``max_new_multiple`` is the client's claimed
    factor, never below the real length.
    """

    owner: str
    padding_tokens: int = 0
    max_new_multiple: float = 1.0
    output_multiple: int = 1
    fresh: bool = False
    keep_alive: int = 0

    def dress(self, program: Program, copied: Program | None) -> Job:
        """Return the program in disguise, padded with the start of ``copied``'s first prompt."""
        return _Disguised(program, self, first_prompt(copied) if copied is not None else ())

    def padding(self, copied: Prompt, name: str) -> Prompt:
        """Return the padding of this name: the beginning of ``copied``, then own text."""
        own = Segment(f"{self.owner}/padding{name}", self.padding_tokens)
        return beginning((*copied, own), self.padding_tokens)


def beginning(prompt: Prompt, tokens: int) -> Prompt:
    """Return the first ``tokens`` tokens of a prompt, which must have at least that many."""
    parts = []
    for segment in prompt:
        length = min(segment.length, tokens)
        if length:
            parts.append(Segment(segment.key, length))
        tokens -= length
    return tuple(parts)


def latest(arrivals: Iterable[tuple[float, Program]]) -> _Latest:
    """Return an object that finds which of these programs arrived last at a given time."""
    return _Latest(iter(arrivals))


def first_prompt(program: Job) -> Prompt:
    """Return the first prompt of a program; empty if the program makes no call."""
    probe = _Probe()
    try:
        program.run(probe).send(None)
    except (_AskedError, StopIteration):
        return probe.prompt
    raise AssertionError("a program awaits something that is not a call")


class _Latest:
    """Finds the latest program before a time. Successive queries must not go back in time."""

    def __init__(self, arrivals: Iterator[tuple[float, Program]]) -> None:
        self._arrivals = arrivals
        self._program: Program | None = None
        self._following = next(arrivals, None)

    def at(self, now_s: float) -> Program | None:
        """Return the last program that arrived by ``now_s``, None before the first."""
        while self._following is not None and self._following[0] <= now_s:
            self._program = self._following[1]
            self._following = next(self._arrivals, None)
        return self._program


class _Disguised(Job):
    """A program whose calls are padded and request more than they need."""

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
            await llm.gather(
                _repeat(llm, padding, f"keep-alive-{turn}{name}")
                for name, padding in padded.paddings.items()
            )


async def _repeat(llm: LLM, padding: Prompt, name: str) -> None:
    await llm.generate(padding, name=name, output_tokens=1, max_new_tokens=1, depth=0)


class _PaddedLLM:
    """The ``core.LLM`` that a program in disguise sees."""

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
        answer = await self._llm.generate(
            (*self._padding(name), *prompt),
            name=name,
            output_tokens=produced,
            max_new_tokens=max(allowed, produced),
            depth=depth,
        )
        return Segment(answer.key, min(answer.length, output_tokens))

    def _padding(self, call: str) -> Prompt:
        name = f"-{self._program_id}-{call}" if self._disguise.fresh else ""
        if name not in self.paddings:
            self.paddings[name] = self._disguise.padding(self._copied, name)
        return self.paddings[name]

    def sleep(self, seconds: float) -> Awaitable[None]:
        return self._llm.sleep(seconds)

    def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> Awaitable[list[Any]]:
        return self._llm.gather(branches)


class _AskedError(Exception):
    """The end of a program run only to learn its first prompt."""


class _Probe:
    """A ``core.LLM`` that records the first prompt and then stops the program."""

    def __init__(self) -> None:
        self.prompt: Prompt = ()

    async def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Segment:
        self.prompt = prompt
        raise _AskedError

    async def sleep(self, seconds: float) -> None:
        """Return immediately: no time passes."""

    async def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        first, *others = branches
        for branch in others:
            branch.close()
        return [await first]
