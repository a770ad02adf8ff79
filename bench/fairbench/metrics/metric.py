"""A metric: name, format, direction, tables that show it, and reasons for no value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fairbench.metrics.records import Facts, Floats
    from fairbench.metrics.tables import Tables


LATENCIES = {
    "ttft": "no request completed",
    "tpot": "no completed request has two tokens",
    "e2el": "no request completed",
    "itl": "the records hold each request's first and last token, not the ones between",
}
"""Latencies of single requests, with the reasons why one may be undefined."""
STATISTICS = ("mean", "median", "std", "p50", "p99")

EMPTY_WINDOW = "the run ended before its window began"
NO_TIME = "the run lasted no time"
NO_SERVICE = "no client was served in the window"
NO_DEMAND = "no client was entitled to any service in the window"
NOT_CONTENDED = "not contended: no client was short of service"
TOO_FEW_REQUESTS = "no client that was entitled to four requests or more had to wait"
QUEUE_ESTIMATED = "estimated from the times to first token: the server reported no admissions"
NOT_ALL_ACTIVE = "the clients were never all active together"
NO_COHORT = "no request arrived in the window"
NO_VICTIM = "there is no well-behaved client"
NO_BOUND = "no theorem bounds the difference"
NO_TENANTS = "no client has a tenant, or no one was short of service"
NOT_SENT = "no request was sent"
NOT_ALONE_IN_MEMORY = "no run of the client alone was simulated, or its hit rate there was 0"
NOT_ALONE = "the client alone was not simulated"


LAST = 1_000  # the position of a column that states none


class Better(Enum):
    """The better direction of a metric, which may be neither."""

    MORE = "more"
    LESS = "less"
    NEITHER = ""


class Of(Enum):
    """The subject of a metric: the whole run, each client, or both."""

    RUN = "run"
    CLIENT = "client"
    BOTH = "run and client"


class Kind(Enum):
    """The type of a value in the JSON; a number that is undefined is null there."""

    NUMBER = "number"
    COUNT = "count"
    FLAG = "flag"


class Needs(Enum):
    """The data that not every server reports, and that external measurements may lack."""

    ADMISSION = "admission times"
    CACHED = "cached tokens"


class Form(Enum):
    """The format in which a value is written for people."""

    AMOUNT = "1,234 or 1.23"
    SECONDS = "as an amount; > x where it is only a lower bound"
    WHOLE = "1,234"
    INDEX = "0.123"
    PERCENT = "12.3%"
    WHOLE_PERCENT = "12%"

    @property
    def is_share(self) -> bool:
        """Return whether 1 is written as 100%."""
        return self in (Form.PERCENT, Form.WHOLE_PERCENT)

    @property
    def factor(self) -> float:
        """The number as which a value of 1 is written."""
        return 100.0 if self.is_share else 1.0


DIGITS = {Form.SECONDS: 1, Form.INDEX: 3, Form.PERCENT: 3, Form.WHOLE_PERCENT: 3}


class Presence(Enum):
    """The stored summaries that must have a metric; older summaries lack later additions."""

    ALWAYS = "all"
    IN_REPORTS = "those that a report or a new score is made from"
    OPTIONAL = "none"


class Display(Enum):
    """The places where metrics are shown, one line or one column each."""

    SUMMARY = "a line of its own in the summary of a run"
    CLIENTS = "the clients of a run"
    HEADLINES = "what the report of a run shows first"
    COMPARISON = "schedulers compared"
    COMPARED_CLIENTS = "the clients under each scheduler"
    REPEATS = "repeated runs, one line each"
    SEEDS = "repeated runs seed by seed, and what their report shows first"
    REPEATED_CLIENTS = "the clients of repeated runs"
    LIVE = "a live run beside its simulation"
    LIVE_CLIENTS = "the clients of both"


class Shown(NamedTuple):
    """The appearance of a metric in a table.

    ``heading`` and ``form`` replace the metric's own. ``position`` orders the columns. A table that
    is too wide drops the columns with ``dropped``, lowest first. ``note`` explains a headline;
    ``{latency}`` in a note stands for the subject of the run's latencies.
    """

    display: Display
    position: int = LAST
    heading: str = ""
    form: Form | None = None
    dropped: int | None = None
    note: str = ""


class Column(NamedTuple):
    """A metric as one table shows it; ``heading`` is on one or two lines."""

    key: str
    heading: str
    form: Form
    better: Better
    digits: int
    dropped: int | None = None
    note: str = ""

    @property
    def title(self) -> str:
        """The heading on one line."""
        return self.heading.replace("\n", " ")


# Short names for the entries.
MORE, LESS = Better.MORE, Better.LESS
CLIENT, BOTH = Of.CLIENT, Of.BOTH
COUNT = Kind.COUNT
ALWAYS, IN_REPORTS, OPTIONAL = Presence.ALWAYS, Presence.IN_REPORTS, Presence.OPTIONAL


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its heading, unit, direction and computation.

    ``heading`` names it in words, ``column`` in the head of a narrow column (by default heading and
    unit). ``digits`` are the decimals in lines of means with intervals, by default the format's. No
    value is negative, and none is above ``most``. ``undefined`` is the reason why it may have no
    value; a metric without a reason always has one. ``compute`` gives the value of a run from its
    tables and facts, ``compute_clients`` the values of all clients by index. Metrics without these
    functions are computed together by ``metrics.summary``, by the code for real servers, or
    (``of_comparison``) from several runs. NaN means undefined. ``tail`` is its percentile if that
    is high: tables show one such metric (``metrics.tail``); 0 for other metrics. ``verdict`` is
    true if a difference between schedulers is better or worse, and false if it is only more or
    less.
    """

    key: str
    heading: str
    _: KW_ONLY
    column: str = ""
    unit: str = ""
    better: Better = Better.NEITHER
    of: Of = Of.RUN
    kind: Kind = Kind.NUMBER
    form: Form = Form.AMOUNT
    digits: int | None = None
    most: float = inf
    undefined: str = ""
    needs: frozenset[Needs] = frozenset()
    presence: Presence = Presence.OPTIONAL
    shown: tuple[Shown, ...] = ()
    of_comparison: bool = False
    tail: int = 0
    verdict: bool = True
    compute: Callable[[Tables, Facts], float] | None = None
    compute_clients: Callable[[Tables, Facts], Floats] | None = None

    @property
    def label(self) -> str:
        """The heading with the unit, for a line."""
        return f"{self.heading}, {self.unit}" if self.unit else self.heading

    @property
    def nullable(self) -> bool:
        """Return whether the metric may be undefined."""
        return bool(self.undefined or self.needs)
