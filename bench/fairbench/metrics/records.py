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
from fairbench.metrics.service_parts import is_long, part_bounds
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
    """Equally long columns: the fields of the subclasses."""

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> Self:
        """A table from any array-likes, cast to the right types; other columns are ignored.

        Raises DataError if a column is missing that has no default, or if they differ in length.
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
                raise DataError(f"{cls.__name__}: column {name!r} has {length} rows, unlike others")
        return cls(**made)

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name, in the order of the fields, without those that it does not have."""
        columns = ((name, getattr(self, name)) for name in self._names())
        return {name: column for name, column in columns if column is not None}

    def _names(self) -> tuple[str, ...]:
        table: Any = type(self)  # a class is hashable, which mypy does not see of those without eq
        return _names_of(table)

    def take(self, rows: Flags | Ints) -> Self:
        """The table of the rows that a mask or an index array selects."""
        return type(self)(**{name: column[rows] for name, column in self.to_columns().items()})

    def __len__(self) -> int:
        return len(getattr(self, self._names()[0]))


@cache
def _names_of(table: Any) -> tuple[str, ...]:
    """The columns that such a table can have. (A thousand clients have parts of tables each.)"""
    return tuple(column.name for column in fields(table))


@dataclass(frozen=True, slots=True, eq=False)
class Requests(Table):
    """One row per request made.

    ``worker`` is -1 before dispatch. ``admitted_s`` is the first admission; ``retracted_s`` and
    ``readmitted_s`` are the last retraction and the admission after it. ``input_tokens`` is
    ``cached_tokens + extend_tokens`` once admitted (first admission); ``output_tokens`` is what was
    produced so far; ``recompute_tokens`` were computed again after retractions. ``routed_s`` is
    when it went to its worker, where a gateway held it before; None is at its arrival.
    ``swapped_tokens`` were copied to the host's memory or back; None where no scheduler does that.
    ``demoted`` is 1 for whom admission control put behind the others; None where it does not.
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


@dataclass(frozen=True, slots=True, eq=False)
class Programs(Table):
    """One row per program: ``requests`` were made, ``demand_*`` is all it will ever ask for."""

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
    """One row per client and stretch of ``steps`` iterations of one worker's unchanged batch.

    Each step lasts ``step_growth_s`` longer than the one before. ``input_tokens`` and
    ``extend_charged_tokens`` are booked at ``start_s`` (admission), ``extend_tokens`` (computed by
    this iteration) at ``end_s``, and ``output_tokens / steps`` at the end of every step. A prefill
    iteration is a row of one step. ``recompute_tokens`` are in none of the other columns. The rows
    of one worker either share their stretch or do not overlap in time. ``gpu_s`` is the client's
    part of the stretch; None where nobody says what iterations consisted of.
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
        """It a part at a time if it is long and in order of time; see ``service_log``."""
        if not is_long(len(self)) or np.any(self.start_s[1:] < self.start_s[:-1]):
            yield self
            return
        for first, after in pairwise(part_bounds(self.start_s)):
            yield self.between(first, after)

    def between(self, first: int, after: int) -> Service:
        """The rows from ``first`` up to ``after``."""
        columns = self.to_columns()
        return Service(**{name: column[first:after] for name, column in columns.items()})


class Padding(NamedTuple):
    """What of a client's requests is of no use to it.

    So many tokens of each input, and all but one in ``output_multiple`` of its output.
    """

    input_tokens: int = 0
    output_multiple: int = 1


PLAIN = Padding()


class Client(NamedTuple):
    """A registered client, whether or not it ever sent anything.

    ``weight`` is what it is entitled to, relative to the others, ``targets`` what each of its
    requests was promised, ``service_class`` with whom it shares that ("" if with nobody).
    ``owner`` is whose it is ("": by its name), ``padding`` what it asks for and does not need.
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
        """Its length, 0 if it is empty."""
        return max(0.0, self.end_s - self.start_s)


class FitLimits(NamedTuple):
    """The largest decode iterations that a timing profile was fitted to; None: no limit known."""

    decode_batch: int
    context_tokens: int | None


class LoneStep(NamedTuple):
    """What a decode step takes with a single request: at no context, and more per token of it."""

    step_s: float
    context_token_s: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What the tables do not say about a run.

    ``window`` is [end of warm-up, end of arrivals), ``horizon_s`` when the run ended,
    ``pool_tokens`` the KV pool of one worker, ``bound`` the theorem that holds for router and
    local scheduler together, or None with ``bound_unavailable`` = why. ``fit`` is what the timing
    profile was fitted to, ``lone`` its decode step, ``costs`` all that it says; None on real
    servers, or where nobody knows. ``percentiles`` of latency are shown in place of the usual ones.
    ``tenant_weights`` are by tenant, whose names end in /, 1 where there is none.
    ``hit_alone`` is the cache hit rate that a client has alone on its share of the pool, if known.
    ``sessions``: programs are recorded sessions, with time to think between their calls.
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

    @property
    def client_weights(self) -> Floats:
        """What each client is entitled to; service divided by it is *normalised*."""
        return np.array([client.weight for client in self.clients], dtype=np.float64)

    @property
    def weighted(self) -> bool:
        """Whether some client's weight differs from 1."""
        return any(client.weight != 1 for client in self.clients)
