"""The input of metrics: tables of numpy columns, and the facts of a run.

Times are float seconds since the start of the run, and NaN means that the event never happened.
Clients are indices into ``Facts.clients``, and workers are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbench.core import ServiceBound, ServiceWeights
from fairbench.errors import DataError
from fairbench.metrics.arrays import Floats as Floats
from fairbench.metrics.arrays import Ints as Ints
from fairbench.metrics.arrays import is_long, part_bounds
from fairbench.targets import NO_TARGETS, RequestCosts, Targets

Codes: TypeAlias = NDArray[np.int8]
Flags: TypeAlias = NDArray[np.bool_]

FINISHED, REFUSED, UNFINISHED = 0, 1, 2
STATUS_NAMES = ("finished", "refused", "unfinished")

_DTYPES: dict[str, Any] = {"Ints": np.int64, "Floats": np.float64, "Codes": np.int8}


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table whose columns are the fields of the subclass, as arrays of equal length."""

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> Self:
        """Return a table of the given columns, cast to the types of the fields.

        Columns without a field of the same name are ignored. Raises DataError if a column without a
        default is missing, or if the columns have different lengths.
        """
        made: dict[str, NDArray[Any]] = {}
        for column in fields(cls):
            if column.name not in columns:
                if column.default is None:
                    continue
                raise DataError(f"{cls.__name__}: column {column.name!r} is missing")
            dtype = _DTYPES[str(column.type).removesuffix(" | None")]
            made[column.name] = np.asarray(columns[column.name], dtype=dtype)
        lengths = {name: len(column) for name, column in made.items()}
        for name, length in lengths.items():
            if length != next(iter(lengths.values())):
                raise DataError(
                    f"{cls.__name__}: column {name!r} has {length} rows, but the "
                    "first column has a different number of rows"
                )
        return cls(**made)

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns that are not None, by name, in the order of the fields."""
        columns = ((name, getattr(self, name)) for name in self._names())
        return {name: column for name, column in columns if column is not None}

    def _names(self) -> tuple[str, ...]:
        # mypy wrongly treats the class of a dataclass without ``eq`` as unhashable.
        table: Any = type(self)
        return _names_of(table)

    def take(self, rows: Flags | Ints) -> Self:
        """Return a table of the rows that a mask or an array of row numbers selects."""
        return type(self)(**{name: column[rows] for name, column in self.to_columns().items()})

    def __len__(self) -> int:
        return len(getattr(self, self._names()[0]))


@cache
def _names_of(table: Any) -> tuple[str, ...]:
    return tuple(column.name for column in fields(table))


@dataclass(frozen=True, slots=True, eq=False)
class Requests(Table):
    """The requests of a run, one row per request.

    - ``worker`` is the worker that runs the request, or -1 before the request is sent to a worker.
    - ``admitted_s`` is the first admission, ``retracted_s`` is the last retraction, and
      ``readmitted_s`` is the admission after the last retraction.
    - ``input_tokens`` is ``cached_tokens + extend_tokens`` at the first admission.
    - ``output_tokens`` is the number of output tokens produced by the end of the run.
    - ``recompute_tokens`` is the number of tokens computed again after retractions.
    - ``routed_s`` is the time at which a gateway released the request to its worker; None if the
      run has no gateway.
    - ``swapped_tokens`` is the number of KV tokens copied to host memory or back; None if the
      scheduler does not swap.
    - ``demoted`` is 1 for requests that admission control put behind all other requests; None if
      the run has no admission control.
    - ``decode_worker`` is the worker that generates the answer, or -1 before it is chosen;
      ``worker`` then only computes the prompt. ``reserved_s`` is the time at which the decode
      worker reserves memory, and ``computed_s`` is the end of the prompt's computation. ``sent_s``
      and ``received_s`` are the start and the end of the transfer of the KV cache to the decode
      worker. Columns about decode workers are None without prefill-decode disaggregation.
    - ``estimated`` is 1 if a server did not report the request's tokens; None if all tokens are
      known.
    - ``compulsory_tokens`` is the number of prompt tokens, at least 1, that no earlier prompt or
      answer of the run contains. An unfinished request has 0 compulsory tokens; the column is None
      if prompts are unknown.
    """

    request_id: Ints
    program_id: Ints
    client: Ints
    depth: Ints
    worker: Ints
    arrival_s: Floats
    admitted_s: Floats
    first_token_s: Floats
    finish_s: Floats
    retracted_s: Floats
    readmitted_s: Floats
    input_tokens: Ints
    cached_tokens: Ints
    extend_tokens: Ints
    output_tokens: Ints
    max_new_tokens: Ints
    retractions: Ints
    recompute_tokens: Ints
    status: Codes
    routed_s: Floats | None = None
    swapped_tokens: Ints | None = None
    demoted: Ints | None = None
    decode_worker: Ints | None = None
    reserved_s: Floats | None = None
    computed_s: Floats | None = None
    sent_s: Floats | None = None
    received_s: Floats | None = None
    estimated: Ints | None = None
    compulsory_tokens: Ints | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Programs(Table):
    """The programs of a run, one row per program.

    ``requests`` is the number of requests that the program sent. The columns ``demand_*`` are the
    total demand of the program, including requests that were never sent.
    """

    program_id: Ints
    client: Ints
    arrival_s: Floats
    finish_s: Floats
    requests: Ints
    demand_requests: Ints
    demand_input_tokens: Ints
    demand_output_tokens: Ints
    status: Codes


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Service(Table):
    """A service log: one row for each client in each period in which the batch does not change.

    A stretch consists of ``steps`` iterations of one worker with an unchanged batch. Each step
    lasts ``step_growth_s`` seconds longer than the step before, because contexts grow. A prefill
    iteration has ``steps`` 1. If rows of a worker overlap in time, the rows describe the same
    batch.

    - ``input_tokens`` and ``extend_charged_tokens`` count as service from ``start_s`` on, when the
      requests are admitted.
    - ``extend_tokens`` are the uncached input tokens, which count as service from ``end_s`` on.
    - ``output_tokens / steps`` tokens are added at the end of every step.
    - ``recompute_tokens`` are tokens computed again after retractions; no other column counts these
      tokens.
    - ``gpu_s`` is the client's part of the GPU time in seconds; None if the composition of
      iterations is unknown.
    """

    worker: Ints
    client: Ints
    start_s: Floats
    end_s: Floats
    steps: Ints
    step_growth_s: Floats
    batch_size: Ints
    context_tokens: Ints
    input_tokens: Ints
    extend_charged_tokens: Ints
    extend_tokens: Ints
    recompute_tokens: Ints
    output_tokens: Ints
    gpu_s: Floats | None = None

    def parts(self) -> Iterator[Service]:
        """Yield the log, split into parts in order of time if the log is long and sorted."""
        if not is_long(len(self)) or np.any(self.start_s[1:] < self.start_s[:-1]):
            yield self
            return
        for first, after in pairwise(part_bounds(self.start_s)):
            yield self.between(first, after)

    def between(self, first: int, after: int) -> Service:
        """Return the rows ``first`` to ``after - 1``."""
        columns = self.to_columns()
        return Service(**{name: column[first:after] for name, column in columns.items()})


class Padding(NamedTuple):
    """The padding (useless tokens) of each request of a client.

    Each input has ``input_tokens`` tokens that the client does not need, and only one of every
    ``output_multiple`` output tokens is needed.
    """

    input_tokens: int = 0
    output_multiple: int = 1


PLAIN = Padding()


class Client(NamedTuple):
    """A client of a run, with or without requests.

    - ``weight`` is the client's entitlement relative to other clients.
    - ``targets`` are the latency targets of the client's requests, and ``service_class`` is the
      name of the class that sets the targets, or "".
    - ``owner`` is the client's owner, or "" if the client has none or its name contains the owner.
    - ``padding`` describes the useless input and output tokens of the client's requests.
    """

    name: str
    misbehaving: bool
    weight: float = 1.0
    targets: Targets = NO_TARGETS
    service_class: str = ""
    owner: str = ""
    padding: Padding = PLAIN


class Window(NamedTuple):
    """A half-open time interval ``[start_s, end_s)``."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """The length of the window in seconds; an empty window has length 0."""
        return max(0.0, self.end_s - self.start_s)

    def holds(self, times_s: Floats) -> Flags:
        """Return a mask that is True for the times in the window."""
        inside: Flags = (times_s >= self.start_s) & (times_s < self.end_s)
        return inside


class FitLimits(NamedTuple):
    """The largest batch and the largest context to which a timing profile was fitted.

    ``decode_batch`` is the largest number of requests in a fitted iteration. ``context_tokens`` is
    the largest total context of a fitted iteration in tokens, or None if unknown.
    """

    decode_batch: int
    context_tokens: int | None


class LoneStep(NamedTuple):
    """A lone request's decode step time: ``step_s`` plus ``context_token_s`` per context token."""

    step_s: float
    context_token_s: float


class WorkPrices(NamedTuple):
    """Lower bounds on GPU time on one replica, in seconds, from a timing profile and engine limits.

    - ``token_s``: the time of a prompt token in the linear layers of a full prefill batch.
    - ``request_s``: the fixed time that each request adds to a prefill batch.
    - ``attention_s``: the attention time for one pair of a new prompt token and an earlier token.
    - ``read_s``: the time to read a cached prompt token.
    - ``decode_token_s``: the time of an output token in the largest batch, without attention.
    - ``context_s``: the time to read a token of context in a decode step.
    - ``lone_first_s``: the time to compute one prompt token of a lone request, without attention.
    - ``lone_token_s``: the decode step time of a lone request, minus the time for its context.
    - ``lone_context_s``: the time in which a lone request reads a context token in a decode step.
    """

    token_s: float
    request_s: float
    attention_s: float
    read_s: float
    decode_token_s: float
    context_s: float
    lone_first_s: float
    lone_token_s: float
    lone_context_s: float

    def prompt_s(self, input_tokens: Ints, new_tokens: Ints) -> Floats:
        """Return the least time in seconds to compute each prompt's last ``new_tokens`` tokens."""
        cached = input_tokens - new_tokens
        pairs = new_tokens * cached + new_tokens * (new_tokens + 1) / 2
        attention_s = np.maximum(self.attention_s * pairs, self.read_s * cached)
        prompt_s: Floats = self.token_s * new_tokens + self.request_s + attention_s
        return prompt_s

    def answer_s(self, input_tokens: Ints, output_tokens: Ints) -> Floats:
        """Return the least time in seconds to decode each answer after its first token."""
        steps = np.maximum(output_tokens - 1, 0)
        return self.decoded_s(steps, steps * input_tokens + steps * (steps + 1) // 2)

    def decoded_s(self, tokens: Ints, context_tokens: Ints) -> Floats:
        """Return a lower bound, in seconds, on the time to decode ``tokens`` output tokens.

        ``context_tokens`` is the total number of tokens to which the decode steps attend.
        """
        time_s: Floats = self.decode_token_s * tokens + self.context_s * context_tokens
        return time_s

    def alone_s(self, input_tokens: Ints, output_tokens: Ints) -> Floats:
        """Return the least time in seconds that each request takes on an idle replica.

        The cache is assumed to contain all prompt tokens but the last one.
        """
        attention_s = np.maximum(self.attention_s * input_tokens, self.read_s * (input_tokens - 1))
        steps = np.maximum(output_tokens - 1, 0)
        context = steps * input_tokens + steps * (steps + 1) // 2
        time_s: Floats = self.lone_first_s + attention_s + self.lone_token_s * steps
        time_s += self.lone_context_s * context
        return time_s


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a run that its tables, such as ``Requests``, do not contain.

    - ``window`` is [end of warm-up, end of arrivals); ``horizon_s`` is the end of the run.
    - ``workers`` is the number of workers, and ``pool_tokens`` is the size of one worker's KV pool.
    - ``prefill_workers`` is the number of prefill-only workers, which have the lowest numbers. None
      means that every worker computes both prompts and answers.
    - ``latency`` says whether program latency or time to first token is reported.
    - ``bound`` holds the parameters of the theorem that bounds the run's service gap. If ``bound``
      is None, ``bound_unavailable`` says why no theorem applies.
    - ``fit`` is the range to which the timing profile was fitted. ``lone`` is the decode step time
      of a request that runs alone. ``costs`` predicts the times of prefill and decode steps.
      ``fit``, ``lone`` and ``costs`` are None on real servers or without a timing profile.
    - ``percentiles`` are the percentiles of latency that the user chose; empty means the defaults.
    - ``tenant_weights`` are the weights of tenants, whose names end in /; the default is 1.
    - ``hit_alone`` maps a client to its cache hit rate if it ran alone with its fair share of the
      pool.
    - ``prices`` gives the least GPU time of requests; None on real servers or without a profile.
    - ``least_computed`` is the least number of prompt tokens that must be computed under any
      eviction policy, given the order of requests and the KV memory of all replicas.
      ``least_computed`` is None if unknown, or if all prefixes fit into memory.
    - ``closed_loop`` are the clients that start a program only after an earlier program has ended.
    - ``failed`` is the number of requests that failed; ``Requests`` shows them as refused.
    - ``sessions`` tells whether programs are recorded sessions, with think time between calls.
    """

    clients: tuple[Client, ...]
    window: Window
    horizon_s: float
    workers: int
    pool_tokens: int
    weights: ServiceWeights = field(default_factory=ServiceWeights)
    latency: Literal["program", "ttft"] = "program"
    bound: ServiceBound | None = None
    bound_unavailable: str = "this scheduler has no bound"
    fit: FitLimits | None = None
    lone: LoneStep | None = None
    costs: RequestCosts | None = None
    percentiles: tuple[int, ...] = ()
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    hit_alone: Mapping[str, float] = field(default_factory=dict)
    prices: WorkPrices | None = None
    least_computed: int | None = None
    closed_loop: frozenset[int] = frozenset()
    sessions: bool = False
    prefill_workers: int | None = None
    failed: int = 0

    @property
    def client_weights(self) -> Floats:
        """The weight of each client, by which service is divided before clients are compared."""
        return np.array([client.weight for client in self.clients], dtype=np.float64)


class TokenGaps(NamedTuple):
    """The gaps between tokens of requests; arrays have one element per gap.

    - ``request`` is the row of the gap's request in the table of requests.
    - ``start_s`` is the time of the token before the gap, and ``gap_s`` is the length of the gap.
    - ``names`` lists the names of requests in the log, by row of the table of requests; a request
      without a name has "".
    """

    request: Ints
    start_s: Floats
    gap_s: Floats
    names: Sequence[str] = ()

    @classmethod
    def after(cls, first_s: Floats, gaps_s: Sequence[Floats | None], names: Sequence[str]) -> Self:
        """Return a table of the gaps ``gaps_s`` that follow each request's first token."""
        answered = np.isfinite(first_s).tolist()
        known = [
            np.empty(0) if one is None or not has_token else one
            for one, has_token in zip(gaps_s, answered, strict=True)
        ]
        request = np.repeat(np.arange(len(known)), [len(one) for one in known])
        starts = [at_s + np.cumsum(one) - one for at_s, one in zip(first_s, known, strict=True)]
        nothing = np.empty(0)
        start_s, gap_s = np.concatenate([nothing, *starts]), np.concatenate([nothing, *known])
        return cls(request, start_s, gap_s, names)


class Measurements(NamedTuple):
    """Measurements from a live run's driver or from a log that ``Tables`` does not contain.

    - ``gaps_s`` are the seconds between consecutive tokens of completed requests; None if unknown.
    - ``late_ms`` is the delay of each request between its planned and its real sending time.
    - ``held_s`` is the time that each request waited for a free slot under a limit on concurrency.
    - ``estimated`` is the number of answers for which the server did not report token counts.
    - ``token_gaps`` are the gaps before tokens (or pieces of answers) of all requests; None if
      unknown.
    - ``sessions`` are the names of sessions in a log, by program id; empty if unknown.
    """

    gaps_s: Floats | None = None
    late_ms: Floats | None = None
    held_s: Floats | None = None
    estimated: int = 0
    token_gaps: TokenGaps | None = None
    sessions: Sequence[str] = ()

    def session(self, program_id: int) -> str:
        """Return a session's name, or its program id if the session has no name."""
        return self.sessions[program_id] if self.sessions else f"{program_id}"

    @property
    def held(self) -> int:
        """The number of requests that had to wait for a slot under a limit on concurrency."""
        return 0 if self.held_s is None else int(np.count_nonzero(self.held_s > 0))


NO_MORE = Measurements()
