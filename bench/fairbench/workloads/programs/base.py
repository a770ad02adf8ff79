"""The interface of program kinds, their parameter types, and random lengths and time gaps.

Random lengths have a lognormal distribution, clipped to a range; the requested mean is the mean
after clipping.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from functools import lru_cache
from math import exp, log
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Gt, Le

from fairbench.core import LENGTH, LLM, Demand, Prompt, Segment
from fairbench.workloads.items import Item

# The number of tokens in a constant part of a prompt; 0 means that prompts have no such part.
PartTokens = Annotated[int, Ge(0), Le(10**7)]
# The type of both output lengths and output limits, such as ``max_new_tokens``.
OutputTokens = Annotated[int, Ge(1), Le(10**6)]
MeanTokens = Annotated[float, Ge(1), Le(1e7)]
# The standard deviation of the logarithm of a random length.
Sigma = Annotated[float, Ge(0), Le(3)]
Scale = Annotated[float, Gt(0), Le(1000)]
# The mean of exponential gaps between calls in seconds; 0 means no gaps.
MeanGap = Annotated[float, Ge(0), Le(1e6)]


class Job(ABC):
    """A client's unit of work: LLM calls that depend on each other, and their total demand.

    Jobs that arrive at the same instant start in the order of ``turn``, the position in a trace
    file. Without a ``turn``, jobs with equal arrival times start in the order of their clients.
    """

    turn: int | None = None

    def __init__(self, program_id: int, client: str, demand: Demand) -> None:
        self.program_id = program_id
        self.client = client
        self.demand = demand

    @abstractmethod
    async def run(self, llm: LLM) -> None:
        """Make all calls of the program. Raises ProgramFailed if a call is refused."""


class Program(Job):
    """A program: one job of a client, whose kind a workload file can name.

    To define a kind, write a subclass and add the subclass to ``KINDS``. The subclass needs
    ``kind``, ``build``, ``run`` and a frozen dataclass ``Params``. The fields of ``Params`` are the
    keys of a workload file's table ``[params]``, without defaults. ``build`` draws all random
    values, as ``demand`` counts tokens before a run.
    """

    kind: ClassVar[str]
    Params: ClassVar[Any]

    @classmethod
    @abstractmethod
    def build(
        cls, params: Any, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Draw a random program; if ``item`` is given, its lengths replace random lengths.

        Args:
            params: Parameters of the program kind.
            rng: The random generator of the program.
            program_id: The number of the program in the run.
            client: The name of the client that runs the program.
            item: Item of a real data set, or None if lengths are random.
        """

    @classmethod
    def pick(cls, params: Any, rng: random.Random, number: int) -> int:
        """Return the index of a program's item in the data set; by default, ``number``.

        Program kinds override ``pick`` if several programs use the same item of the data set.

        Args:
            params: Parameters of the program kind.
            rng: The random generator of the program.
            number: Number of the program, counted across all clients of the run.
        """
        return number

    @classmethod
    def has_turns(cls, params: Any) -> bool:
        """Return whether programs of this kind may make several calls."""
        return True

    @classmethod
    def pauses(cls, params: Any) -> bool:
        """Return whether time passes between the program's calls, such as a user's think time."""
        return False


def content_key(program_id: int, item: Item | None) -> str:
    """Return the key of a program's input: the item's key, or without an item the program's id."""
    return str(program_id) if item is None else item.key


def check_range(params: Any, name: str) -> None:
    """Raise ValueError if the parameter ``name``_min is greater than ``name``_max."""
    least, most = getattr(params, f"{name}_min"), getattr(params, f"{name}_max")
    if least > most:
        raise ValueError(f"{name}_min = {least}: must be at most {name}_max = {most}")


def prompt_of(*segments: Segment) -> Prompt:
    """Return the prompt that consists of all non-empty segments."""
    return tuple(filter(LENGTH, segments))


LONGEST_INPUT = 8  # Random input lengths are clipped at this multiple of the requested mean.

_PHI = NormalDist().cdf


def sample_input(rng: random.Random, mean_tokens: float, sigma: float) -> int:
    """Draw the lognormal length of a part of a prompt, in tokens.

    The length is at most ``LONGEST_INPUT`` x ``mean_tokens``.
    """
    return sample_length(rng, mean_tokens, sigma, LONGEST_INPUT * mean_tokens)


def sample_length(rng: random.Random, mean_tokens: float, sigma: float, high: float) -> int:
    """Draw a length in [1, high] tokens from a lognormal distribution.

    ``mean_tokens`` is the mean of the clipped lengths, and must be below ``high``. ``sigma`` is the
    standard deviation of the length's logarithm before clipping. The length is constant if
    ``sigma`` is 0, or if the mean is at most 1.
    """
    if sigma == 0 or mean_tokens <= 1:
        return max(1, round(mean_tokens))
    drawn = exp(rng.normalvariate(_location(mean_tokens, sigma, high), sigma))
    if drawn <= 1:
        return 1
    return round(drawn if drawn < high else high)


def sample_exchanges(
    rng: random.Random, params: Any, asked: str, answered: str, count: int
) -> list[tuple[int, int]]:
    """Draw the input and output lengths of ``count`` exchanges, in tokens.

    ``asked`` and ``answered`` are prefixes of parameter names: ``user``, for example, selects
    ``user_tokens`` and ``user_sigma``.
    """
    inputs = (getattr(params, f"{asked}_tokens"), getattr(params, f"{asked}_sigma"))
    outputs = (getattr(params, f"{answered}_tokens"), getattr(params, f"{answered}_sigma"))
    most = params.max_new_tokens
    return [(sample_input(rng, *inputs), sample_length(rng, *outputs, most)) for _ in range(count)]


def sample_gap(rng: random.Random, mean_s: float) -> float:
    """Draw a random gap in seconds from an exponential distribution; 0 if the mean is 0."""
    return rng.expovariate(1 / mean_s) if mean_s > 0 else 0.0


def check_mean(params: Any, name: str) -> None:
    """Raise ValueError unless a mean length is below ``max_new_tokens``.

    The mean length is ``params.{name}_tokens``. If ``{name}_sigma`` is 0, the mean may equal
    ``max_new_tokens``.
    """
    mean_tokens, sigma = getattr(params, f"{name}_tokens"), getattr(params, f"{name}_sigma")
    most = params.max_new_tokens
    if mean_tokens > most or (sigma and mean_tokens == most):
        raise ValueError(f"{name}_tokens = {mean_tokens}: must be below max_new_tokens = {most}")


def check_allowed(max_new_tokens: int | None, **output_tokens: int) -> None:
    """Raise ValueError if an output is longer than ``max_new_tokens`` (None: no limit)."""
    for field, tokens in output_tokens.items():
        if max_new_tokens is not None and tokens > max_new_tokens:
            raise ValueError(
                f"max_new_tokens = {max_new_tokens}: must be at least {field} = {tokens}"
            )


@lru_cache(maxsize=256)
def _location(mean: float, sigma: float, high: float) -> float:
    """Return the mu of a lognormal distribution with mean ``mean`` when clipped to [1, high]."""
    assert 1 < mean < high
    below, above = -10 * sigma, log(high) + 10 * sigma
    for _ in range(100):
        mu = (below + above) / 2
        low_z, high_z = -mu / sigma, (log(high) - mu) / sigma
        middle = exp(mu + sigma**2 / 2) * (_PHI(high_z - sigma) - _PHI(low_z - sigma))
        clipped_mean = _PHI(low_z) + middle + high * _PHI(-high_z)
        if clipped_mean < mean:
            below = mu
        else:
            above = mu
    return (below + above) / 2
