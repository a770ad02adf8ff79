"""The interface of program kinds, and the types of their parameters."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Gt, Le

from fairbench.core import LENGTH, LLM, Demand, Prompt, Segment
from fairbench.workloads.items import Item

PartTokens = Annotated[int, Ge(0), Le(10**7)]
"""Length of a fixed prompt part; 0 leaves it out."""

OutputTokens = Annotated[int, Ge(1), Le(10**6)]
"""Length of an output, or the limit on it."""

MeanTokens = Annotated[float, Ge(1), Le(1e7)]
"""Mean of a sampled length."""

Sigma = Annotated[float, Ge(0), Le(3)]
"""Standard deviation of the logarithm of a sampled length; 0 makes it constant."""

Scale = Annotated[float, Gt(0), Le(1000)]
"""A factor by which lengths are multiplied."""

MeanGap = Annotated[float, Ge(0), Le(1e6)]
"""Mean of an exponential gap in seconds; 0 leaves it out."""


class Job(ABC):
    """A client's unit of work: LLM calls with dependencies between them, and their demand.

    ``turn`` is its position among the jobs that arrive at the same instant, in the order of a trace
    file; None means the position of its client.
    """

    turn: int | None = None

    def __init__(self, program_id: int, client: str, demand: Demand) -> None:
        self.program_id = program_id
        self.client = client
        self.demand = demand

    @abstractmethod
    async def run(self, llm: LLM) -> None:
        """Make all the calls. Raises ProgramFailed if a call is refused."""


class Program(Job):
    """A job of a kind that workload files can name.

    Subclass this, one kind per file: define ``kind``, a frozen dataclass ``Params`` without
    defaults (the keys of ``[params]`` in a workload file), ``build`` and ``run``, and add the class
    to ``KINDS``. All random values are drawn in ``build``, so ``run`` makes no choice and
    ``demand`` is exact.
    """

    kind: ClassVar[str]
    Params: ClassVar[Any]

    @classmethod
    @abstractmethod
    def build(
        cls, params: Any, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Sample one program; the lengths of ``item``, if given, replace sampled lengths.

        Args:
            params: Parameters of the program kind.
            rng: Random stream of the program.
            program_id: Number of the program in the run.
            client: Name of the program's client.
            item: Item of a real dataset, or None for sampled lengths.
        """

    @classmethod
    def pick(cls, params: Any, rng: random.Random, number: int) -> int:
        """Return the index of the data item for a client's program, by default ``number``.

        A kind that uses the same content repeatedly overrides this method.

        Args:
            params: Parameters of the program kind.
            rng: Random stream of the program.
            number: Number of the program, counted across all clients of the run.
        """
        return number

    @classmethod
    def pauses(cls, params: Any) -> bool:
        """Return whether time passes between the program's calls, as for a thinking user."""
        return False


def content_key(program_id: int, item: Item | None) -> str:
    """Return the key of a program's own input: a fresh key, or the key of the real item."""
    return str(program_id) if item is None else item.key


def check_range(params: Any, name: str) -> None:
    """Raise ValueError unless the parameter ``name``_min is at most ``name``_max."""
    least, most = getattr(params, f"{name}_min"), getattr(params, f"{name}_max")
    if least > most:
        raise ValueError(f"{name}_min = {least}: must be at most {name}_max = {most}")


def prompt_of(*segments: Segment) -> Prompt:
    """Return a prompt of these segments, without empty ones."""
    return tuple(filter(LENGTH, segments))


def growing_demand(prompt_tokens: int, exchanges: Iterable[tuple[int, int]]) -> Demand:
    """Return the demand of calls in which each prompt extends the previous prompt.

    Each exchange is (tokens, output tokens): the prompt grows by the tokens and then by the output.
    """
    requests = inputs = outputs = 0
    for added, said in exchanges:
        prompt_tokens += added
        requests, inputs, outputs = requests + 1, inputs + prompt_tokens, outputs + said
        prompt_tokens += said
    return Demand(requests=requests, input_tokens=inputs, output_tokens=outputs)
