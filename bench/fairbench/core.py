"""The basic types that all modules use: segments, prompts, requests and service.

Names of variables end in the unit of their value, as in ``deadline_s``. Simulated time is an
integer number of picoseconds (``PS_PER_S``), so that sums of iteration times are exact. Schedulers
and users of fairbench see times in seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

PS_PER_S = 10**12

# limits on a client's weight, which is its share of service relative to other clients
LIGHTEST, HEAVIEST = 1e-6, 1e6


class Segment(NamedTuple):
    """A segment is a part of a prompt: ``length`` tokens with the identifier ``key``.

    If two segments have the same key, the shorter segment is a prefix of the longer segment.
    Two segments with different keys share no prefix. A segment stores no token ids: a document of
    21,000 tokens, for example, needs one key and one length.
    """

    key: str
    length: int


Prompt = tuple[Segment, ...]
# ``new_tuple`` creates a NamedTuple three times as fast as a call of its class.
new_tuple = tuple.__new__
LENGTH = itemgetter(1)  # a function that reads a segment's length faster than ``segment.length``


def prompt_tokens(prompt: Prompt) -> int:
    """Return the number of tokens in all segments of a prompt."""
    return sum(map(LENGTH, prompt))


# If this dataclass were frozen, creating an instance would take three times as long.
@dataclass(slots=True, eq=False)
class Request:
    """An LLM call as schedulers see it, without the true output length.

    - ``max_new_tokens`` is the client's limit, not the number of tokens that will be produced.
    - ``depth`` is the call's depth in its program: the number of calls on the longest chain of
      earlier calls that this call depends on.
    - ``calls_left`` is the number of calls that the program has yet to make, or None if unknown.
    - ``arrival_s`` and the deadlines are times in seconds on the clock of the scheduler's host.
    - ``deadline_s`` is the time by which the call should have finished.
    - ``first_token_by_s`` is the time at which the call's first token is due.
    - ``token_every_s`` is the promised mean time in seconds between the tokens after the first
      token.
    - ``priority`` is a number that the client chooses; each scheduler defines whether larger
      numbers go first.
    - ``demoted`` is True for a request that admission control placed behind all other requests.
    """

    request_id: Final[int]
    client: Final[str]
    program_id: Final[int]
    depth: Final[int]
    prompt: Final[Prompt]
    input_tokens: Final[int]
    max_new_tokens: Final[int]
    arrival_s: Final[float] = 0.0
    deadline_s: Final[float | None] = None
    priority: Final[int] = 0
    calls_left: Final[int | None] = None
    first_token_by_s: Final[float | None] = None
    demoted: bool = False
    token_every_s: Final[float | None] = None

    @property
    def next_deadline_s(self) -> float | None:
        """The earlier of the first-token and end deadlines; None if a request has neither."""
        if self.first_token_by_s is None or self.deadline_s is None:
            return self.deadline_s if self.first_token_by_s is None else self.first_token_by_s
        return min(self.first_token_by_s, self.deadline_s)


class LLM(Protocol):
    """The interface through which a program (the code of a client's task) calls the model.

    A program can call the model, wait, and run branches in parallel. To run both in simulated time
    and against an HTTP server, a program may await only methods of ``LLM``.
    """

    def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Awaitable[Segment]:
        """Run one call; return the produced tokens as a segment for later prompts.

        ``name`` identifies the output of the call and is unique within the program.
        ``output_tokens`` is the true output length, which schedulers do not see. Raises
        ProgramFailed if the cluster refuses the call.
        """
        ...

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait for ``seconds`` of the cluster's time, simulated or real."""
        ...

    def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> Awaitable[list[Any]]:
        """Run branches in parallel; return the results in the order of ``branches``."""
        ...


@dataclass(frozen=True, slots=True)
class Demand:
    """The total work of a program in tokens, which is known when the program starts.

    Metrics use a program's demand to detect starvation, because a starved program never sends its
    later requests.
    """

    requests: int
    input_tokens: int
    output_tokens: int


OUTPUT_PRICE = 2  # price of an output token in input tokens ([VTC] §3.1, [DLPM] §3)


@dataclass(frozen=True, slots=True)
class ServiceWeights:
    """The price of an input token (``extend``) and of an output token (``output``)."""

    extend: int = 1
    output: int = OUTPUT_PRICE


@dataclass(frozen=True, slots=True)
class ServiceBound:
    """A proven bound on the difference in service between two clients.

    ``view`` says what counts as service: ``"actual"`` (uncached input + 2 x output tokens) or
    ``"client"`` (input + 2 x output tokens). ``weights`` are the prices of input and output tokens,
    and the service bound holds for ``workers`` workers. ``quantum_tokens`` is a client's credit Q^u
    per refill (0 for VTC). ``source`` names the theorem that proves the service bound.
    """

    view: str
    quantum_tokens: int
    source: str
    weights: ServiceWeights = ServiceWeights()
    workers: int = 1


@dataclass(frozen=True, slots=True)
class NoBound:
    """The reason why no theorem bounds the difference in service between two clients."""

    reason: str


class CostModel(Protocol):
    """A predictor of the durations of an engine's iterations, for schedulers that compare times.

    In the simulator, the timing profile is the cost model. On a real server, the cost model is
    fitted to measured durations of engine steps.
    """

    def prefill_s(self, cached_tokens: int, new_tokens: int) -> float:
        """Return the seconds to prefill ``new_tokens`` that follow ``cached_tokens``."""
        ...

    def decode_step_s(self, requests: int, context_tokens: int) -> float:
        """Return the seconds of a decode step; ``context_tokens`` is the sum over all requests."""
        ...
