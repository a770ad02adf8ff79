"""Programs in disguise: changes that a cheating client makes to its calls.

The text that it was after stays the same, and so does the number of its calls, so that whoever
sends the same programs as they are is its honest twin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from fairbench.core import LLM, Demand, Prompt, Segment, prompt_tokens
from fairbench.workloads.programs.base import Job, Program


@dataclass(frozen=True, slots=True)
class Disguise:
    """Padding before each prompt in tokens, and factors on the length and limit of answers.

    Padding is the beginning of what a client that is copied last asked first, if there is one, and
    of a text of the ``owner``'s own; none of it is useful to anyone. An answer goes on until it is
    ``output_multiple`` times as long as it was; only its beginning is in later prompts.
    ``max_new_multiple`` is how many times as long the client says that it may be, which is never
    less than it will be.
    """

    owner: str
    padding_tokens: int = 0
    max_new_multiple: float = 1.0
    output_multiple: int = 1

    def dress(self, program: Program, copied: Program | None) -> Job:
        """Return the program in disguise, padded with the start of ``copied``'s first prompt."""
        prompt = first_prompt(copied) if copied is not None else ()
        padding = (*prompt, Segment(f"{self.owner}/padding", self.padding_tokens))
        return _Disguised(program, self, beginning(padding, self.padding_tokens))


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
    """Return an object that tells which of these programs arrived last at a given time."""
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
    """A program whose calls are padded and ask for more than they need."""

    def __init__(self, program: Program, disguise: Disguise, padding: Prompt) -> None:
        wanted, tokens = program.demand, prompt_tokens(padding)
        demand = Demand(
            requests=wanted.requests,
            input_tokens=wanted.input_tokens + wanted.requests * tokens,
            output_tokens=wanted.output_tokens * disguise.output_multiple,
        )
        super().__init__(program.program_id, program.client, demand)
        self.turn = program.turn
        self._program = program
        self._disguise = disguise
        self._padding = padding

    async def run(self, llm: LLM) -> None:
        await self._program.run(_PaddedLLM(llm, self._disguise, self._padding))


class _PaddedLLM:
    """The ``core.LLM`` that a program in disguise sees."""

    def __init__(self, llm: LLM, disguise: Disguise, padding: Prompt) -> None:
        self._llm = llm
        self._disguise = disguise
        self._padding = padding

    async def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Segment:
        produced = output_tokens * self._disguise.output_multiple
        allowed = ceil(max_new_tokens * self._disguise.max_new_multiple)
        answer = await self._llm.generate(
            (*self._padding, *prompt),
            name=name,
            output_tokens=produced,
            max_new_tokens=max(allowed, produced),
            depth=depth,
        )
        return Segment(answer.key, min(answer.length, output_tokens))

    def sleep(self, seconds: float) -> Awaitable[None]:
        return self._llm.sleep(seconds)

    def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> Awaitable[list[Any]]:
        return self._llm.gather(branches)


class _AskedError(Exception):
    """Ends a program that is run only to learn its first prompt."""


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
        """Return at once: no time passes."""

    async def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        first, *others = branches
        for branch in others:
            branch.close()
        return [await first]
