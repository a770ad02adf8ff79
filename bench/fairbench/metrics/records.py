"""The input contract: tables of numpy columns, and the facts of a run.

Times are float seconds since the start of the run and NaN means never. Clients are indices into
``Facts.clients``, workers are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbench.core import ServiceBound, ServiceWeights
from fairbench.errors import DataError
from fairbench.metrics.arrays import is_long, part_bounds
from fairbench.targets import NO_TARGETS, RequestCosts, Targets

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int8]
Flags: TypeAlias = NDArray[np.bool_]

FINISHED, REFUSED, UNFINISHED = 0, 1, 2
STATUS_NAMES = ("finished", "refused", "unfinished")

_DTYPES: dict[str, Any] = {"Ints": np.int64, "Floats": np.float64, "Codes": np.int8}


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table of equally long columns, which are the fields of the subclass."""

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> Self:
        """Return a table from array-likes, cast to the right types; others are ignored.

        Raises DataError if a column without default is missing, or if lengths differ.
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
                    f"{cls.__name__}: column {name!r} has {length} rows, and the other "
                    "columns have another number"
                )
        return cls(**made)

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """Return the present columns by name, in the order of the fields."""
        columns = ((name, getattr(self, name)) for name in self._names())
        return {name: column for name, column in columns if column is not None}

    def _names(self) -> tuple[str, ...]:
        # a class is hashable, which mypy does not see for dataclasses without eq
        table: Any = type(self)
        return _names_of(table)

    def take(self, rows: Flags | Ints) -> Self:
        """Return the table of the rows that a mask or an index array selects."""
        return type(self)(**{name: column[rows] for name, column in self.to_columns().items()})

    def __len__(self) -> int:
        return len(getattr(self, self._names()[0]))


@cache
def _names_of(table: Any) -> tuple[str, ...]:
    return tuple(column.name for column in fields(table))


@dataclass(frozen=True, slots=True, eq=False)
class Requests(Table):
    """A table with one row per request.

    - ``worker`` is -1 before dispatch.
    - ``admitted_s`` is the first admission. ``retracted_s`` and ``readmitted_s`` are the last
    retraction and the admission after it.
    - ``input_tokens`` is ``cached_tokens + extend_tokens`` once admitted (first admission).
    - ``output_tokens`` is the output so far.
    - ``recompute_tokens`` were computed again after retractions.
    - ``routed_s`` is the time at which a gateway released the request to its worker. None means
    on arrival.
    - ``swapped_tokens`` were copied to host memory or back; None if no scheduler does that.
    - ``demoted`` is 1 for requests that admission control put behind the others; None without
    admission control.
    - ``decode_worker`` generates the answer where ``worker`` only computes the prompt (-1 before it
    is chosen), ``reserved_s`` is when it reserved memory, ``computed_s`` when the prompt was ready,
    ``sent_s`` and ``received_s`` are the transfer of the KV cache. None if one worker does both.
    - ``estimated`` is 1 if a server did not report the request's tokens; None if all are known.
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


@dataclass(frozen=True, slots=True, eq=False)
class Programs(Table):
    """A row per program: ``requests`` made so far, and ``demand_*``, its total demand."""

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
    """A row per client and stretch of ``steps`` iterations of one worker's unchanged batch.

    Each step lasts ``step_growth_s`` longer than the previous step. ``input_tokens`` and
    ``extend_charged_tokens`` are booked at ``start_s`` (admission). ``extend_tokens`` (computed by
    this iteration) are booked at ``end_s``, and ``output_tokens / steps`` at the end of every step.
    A prefill iteration is a row of one step. ``recompute_tokens`` are in no other column. The rows
    of one worker either share their stretch or do not overlap in time. ``gpu_s`` is the client's
    part of the stretch; None if the composition of iterations is unknown.
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
        """Yield the log in parts if it is long and in order of time (see ``service_log``)."""
        if not is_long(len(self)) or np.any(self.start_s[1:] < self.start_s[:-1]):
            yield self
            return
        for first, after in pairwise(part_bounds(self.start_s)):
            yield self.between(first, after)

    def between(self, first: int, after: int) -> Service:
        """Return the rows from ``first`` up to ``after``."""
        columns = self.to_columns()
        return Service(**{name: column[first:after] for name, column in columns.items()})


class Padding(NamedTuple):
    """The useless part of a client's requests.

    ``input_tokens`` tokens of each input are padding, and so are all but one in ``output_multiple``
    of its output tokens.
    """

    input_tokens: int = 0
    output_multiple: int = 1


PLAIN = Padding()


class Client(NamedTuple):
    """A client of the run, even if it never sent anything.

    ``weight`` is its entitlement relative to the others, ``targets`` are the promises for each of
    its requests, and ``service_class`` is the class that shares these targets ("" without a class).
    ``owner`` is its owner's name ("" if its own name states the owner), ``padding`` the tokens that
    it requests and does not need.
    """

    name: str
    misbehaving: bool
    weight: float = 1.0
    targets: Targets = NO_TARGETS
    service_class: str = ""
    owner: str = ""
    padding: Padding = PLAIN


class Window(NamedTuple):
    """The half-open interval ``[start_s, end_s)``."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """The window's length, 0 if it is empty."""
        return max(0.0, self.end_s - self.start_s)

    def holds(self, times_s: Floats) -> Flags:
        """Return which times lie in the window."""
        inside: Flags = (times_s >= self.start_s) & (times_s < self.end_s)
        return inside


class FitLimits(NamedTuple):
    """The largest decode iterations of a timing profile's fit; None without known limits."""

    decode_batch: int
    context_tokens: int | None


class LoneStep(NamedTuple):
    """The duration of a decode step of a lone request: constant, and per context token."""

    step_s: float
    context_token_s: float


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a run that the tables do not contain.

    - ``window`` is [end of warm-up, end of arrivals); ``horizon_s`` is the end of the run.
    - ``pool_tokens`` is the KV pool of one worker. ``prefill_workers`` is the number of the first
    workers that alone compute prompts; None if all do.
    - ``bound`` is the theorem for router and local scheduler together. If None,
    ``bound_unavailable`` gives the reason.
    - ``fit`` is the range to which the timing profile was fitted, ``lone`` its decode step of a
    single request, and ``costs`` all its times. They are None on real servers, or if unknown.
    - ``percentiles`` of latency replace the default ones.
    - ``tenant_weights`` are by tenant, whose names end in /; the default is 1.
    - ``hit_alone`` is a client's cache hit rate alone on its share of the pool, if known.
    - ``failed`` is the number of requests that are refused in the tables, but broke off instead.
    - ``sessions`` means that programs are recorded sessions, with think time between calls.
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
    sessions: bool = False
    prefill_workers: int | None = None
    failed: int = 0

    @property
    def client_weights(self) -> Floats:
        """The weights of clients; service divided by weight is called *normalised*."""
        return np.array([client.weight for client in self.clients], dtype=np.float64)
