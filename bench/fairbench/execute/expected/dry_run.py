"""Programs without a cluster: their requests, and hits in a cache that never evicts."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple

from fairbench.core import Prompt, Segment
from fairbench.workloads.programs.base import Job


class Call(NamedTuple):
    """A request's token counts: input, cached part of the input, output, and reserved output."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    max_new_tokens: int


class EndlessCache:
    """A cache that keeps all prompts and answers for ever, in whole segments."""

    def __init__(self) -> None:
        self._root: dict[Segment, Any] = {}

    def hit(self, prompt: Prompt) -> int:
        """Return the number of cached tokens at the prompt's beginning."""
        node, tokens = self._root, 0
        for segment in prompt:
            if segment not in node:
                break
            node, tokens = node[segment], tokens + segment.length
        return tokens

    def add(self, prompt: Prompt) -> None:
        node = self._root
        for segment in prompt:
            node = node.setdefault(segment, {})


def calls_of(program: Job, cache: EndlessCache) -> list[Call]:
    """Return a program's requests, concurrent ones in order; each is cached once answered."""
    llm = _DryLLM(program, cache)
    try:
        program.run(llm).send(None)
    except StopIteration:
        return llm.calls
    raise AssertionError("a program awaits something that is not a call")


class _DryLLM:
    """A ``core.LLM`` that answers at once."""

    def __init__(self, program: Job, cache: EndlessCache) -> None:
        self.calls: list[Call] = []
        self._program_id, self._cache = program.program_id, cache

    async def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Segment:
        output = min(output_tokens, max_new_tokens)
        tokens = sum(segment.length for segment in prompt)
        self.calls.append(Call(tokens, self._cache.hit(prompt), output, max_new_tokens))
        answer = Segment(f"{self._program_id}/{name}", output)
        self._cache.add((*prompt, answer))
        return answer

    async def sleep(self, seconds: float) -> None:
        """Do nothing: no time passes."""

    async def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        return [await branch for branch in branches]
