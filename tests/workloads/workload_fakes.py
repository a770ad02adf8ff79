"""A cluster with room for all calls. A call takes ``service_s``, and each branch has its time."""

from dataclasses import dataclass

import pytest

from fairbench.core import Demand, Prompt, Segment, prompt_tokens
from tests.shared_data import SHARED


@dataclass(frozen=True)
class Call:
    name: str
    prompt: Prompt
    output_tokens: int
    max_new_tokens: int
    depth: int
    start_s: float

    @property
    def input_tokens(self):
        return prompt_tokens(self.prompt)


class FakeLLM:
    def __init__(self, service_s=0.0):
        self.now_s = 0.0
        self.service_s = service_s
        self.calls = []

    async def generate(self, prompt, *, name, output_tokens, max_new_tokens, depth):
        assert all(segment.length > 0 for segment in prompt)
        assert 1 <= output_tokens <= max_new_tokens
        self.calls.append(Call(name, prompt, output_tokens, max_new_tokens, depth, self.now_s))
        self.now_s += self.service_s
        return Segment(f"out/{name}", output_tokens)

    async def sleep(self, seconds):
        assert seconds > 0
        self.now_s += seconds

    async def gather(self, branches):
        start_s, ends, results = self.now_s, [self.now_s], []
        for branch in branches:
            self.now_s = start_s
            results.append(await branch)
            ends.append(self.now_s)
        self.now_s = max(ends)
        return results


def calls_of(program, service_s=0.0):
    """Return all calls of a program, in the order in which the fake ran them."""
    llm = FakeLLM(service_s)
    coroutine = program.run(llm)
    with pytest.raises(StopIteration):
        coroutine.send(None)
    return llm.calls


def demand_of(calls):
    """Return the demand of the calls, to compare with ``program.demand``."""
    return Demand(
        requests=len(calls),
        input_tokens=sum(call.input_tokens for call in calls),
        output_tokens=sum(call.output_tokens for call in calls),
    )


def shared_data(name):
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"{path} is not there: it is others' data, which the project does not ship")
    return str(path)
