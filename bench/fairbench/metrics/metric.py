"""The type of a metric: name, unit, direction, format, columns of tables, and function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fairbench.metrics.reasons import Noted

if TYPE_CHECKING:
    from fairbench.metrics.records import Floats, Ints
    from fairbench.metrics.run_data import RunData
    from fairbench.metrics.sharing_incentive import RunBeside


LAST = 1_000  # A column that sets no position comes last in its table.


class Better(Enum):
    """Whether more or less of a metric is better; NEITHER if no direction is better."""

    MORE = "more"
    LESS = "less"
    NEITHER = ""


class Of(Enum):
    """Whether a metric describes the whole run, each client, or both."""

    RUN = "run"
    CLIENT = "client"
    BOTH = "run and client"


class Kind(Enum):
    """The type of a value in ``summary.json``, where an undefined number is null."""

    NUMBER = "number"
    COUNT = "count"
    FLAG = "flag"


class Needs(Enum):
    """Data that some metrics need, and that some servers and external logs do not report."""

    ADMISSION = "admission times"
    CACHED = "cached tokens"


CACHED = frozenset({Needs.CACHED})


class Form(Enum):
    """The format in which users see a metric's value."""

    AMOUNT = "1,234 or 1.23"
    SECONDS = "1,234 or 1.23; > 1.23 for a lower bound"
    WHOLE = "1,234"
    INDEX = "0.123"
    PERCENT = "12.3%"
    WHOLE_PERCENT = "12%"

    @property
    def is_share(self) -> bool:
        """Return whether the metric's values are fractions, written as percentages."""
        return self in (Form.PERCENT, Form.WHOLE_PERCENT)

    @property
    def factor(self) -> float:
        """The factor by which a metric's value is multiplied before the value is written."""
        return 100.0 if self.is_share else 1.0


DIGITS = {Form.SECONDS: 1, Form.INDEX: 3, Form.PERCENT: 3, Form.WHOLE_PERCENT: 3}


class Presence(Enum):
    """Whether stored summaries must contain a metric; older summaries lack newer metrics."""

    ALWAYS = "all"
    IN_REPORTS = "summaries from which a report or a new score is made"
    OPTIONAL = "none"


class Display(Enum):
    """The tables and pages that show metrics, each with a line or a column per metric."""

    SUMMARY = "a line of its own in the summary of a run"
    CLIENTS = "the clients of a run"
    HEADLINES = "the headlines of the report of a run"
    COMPARISON = "schedulers compared"
    CONTRAST = "two schedulers compared, unless all metrics are asked for"
    COMPARED_CLIENTS = "the clients under each scheduler"
    REPEATS = "repeated runs, one line each"
    SEEDS = "repeated runs seed by seed, and the headlines of their report"
    REPEATED_CLIENTS = "the clients of repeated runs"
    LIVE = "a live run beside its simulation"
    LIVE_CLIENTS = "the clients of a live run beside those of its simulation"


class Shown(NamedTuple):
    """The appearance of a metric in one display (a column, line or headline).

    - ``position`` orders the metrics of a display; the lowest position comes first.
    - ``heading`` replaces the metric's heading, and ``form`` replaces its number format.
    - A table that is too wide loses the columns with the lowest ``dropped`` first; columns whose
      ``dropped`` is None are always shown.
    - ``note`` explains a headline; ``{latency}`` in a note is replaced by the name of the latency.
    """

    display: Display
    position: int = LAST
    heading: str = ""
    form: Form | None = None
    dropped: int | None = None
    note: str = ""


class Column(NamedTuple):
    """The column of a metric in a table; ``heading`` has one or two lines.

    ``Metric`` and ``Shown`` describe all attributes except ``heading``.
    """

    key: str
    heading: str
    form: Form
    better: Better
    digits: int
    dropped: int | None = None
    note: str = ""

    @property
    def title(self) -> str:
        """The metric's heading on a single line."""
        return self.heading.replace("\n", " ")


# short names of enum members, for the definitions of metrics
MORE, LESS = Better.MORE, Better.LESS
CLIENT, BOTH = Of.CLIENT, Of.BOTH
COUNT = Kind.COUNT
ALWAYS, IN_REPORTS, OPTIONAL = Presence.ALWAYS, Presence.IN_REPORTS, Presence.OPTIONAL


Value: TypeAlias = "float | Noted"
Values: TypeAlias = "Floats | Ints | Sequence[float | Noted | None]"


def every_run(run: RunData) -> bool:
    """Return True; use this function as the condition of a metric that every run has."""
    return True


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: name, unit, direction, columns in tables, and the functions that compute it.

    - ``heading`` is the metric's name in words.
    - ``column`` is the title of a narrow column; the default is heading and unit.
    - ``meaning`` is the metric's text on the reference page; the default is the heading.
    - ``page`` is a link to a page that explains the metric.
    - ``digits`` is the number of decimals in lines that show a mean with its interval; the default
      follows from ``form``.
    - ``most`` is the metric's largest possible value; no metric is negative.
    - ``undefined`` is the reason why a value may be missing; without a reason, a value always
      exists.
    - ``when`` says whether a run has the metric.
    - ``compute`` returns the value for a run, and ``by_client`` returns a value for each client
      (None if the client does not have the metric). NaN means undefined.
    - ``beside`` computes a value for a run from this run and other runs, for example of other
      schedulers; ``clients_beside`` computes such a value for each client.
    - ``tail`` is the percentile, such as 99, of a tail latency, and 0 for any other metric; tables
      show only one tail percentile (``shown_percentiles``).
    - ``verdict`` is false if comparisons call a higher value "more", but never "better" or "worse".
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
    tail: int = 0
    verdict: bool = True
    meaning: str = ""
    page: str = ""
    # Comparing two metrics ignores their functions, because metrics with equal keys have equal
    # functions.
    when: Callable[[RunData], object] = field(default=every_run, compare=False)
    compute: Callable[[RunData], Value] | None = field(default=None, compare=False)
    by_client: Callable[[RunData], Values] | None = field(default=None, compare=False)
    beside: Callable[[RunBeside], Value] | None = field(default=None, compare=False)
    clients_beside: Callable[[RunBeside], Values] | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        return f"{self.heading}, {self.unit}" if self.unit else self.heading

    @property
    def of_comparison(self) -> bool:
        """Return whether the metric is computed from several runs that are compared."""
        return bool(self.beside or self.clients_beside)

    @property
    def nullable(self) -> bool:
        """Return whether the metric may be undefined."""
        return bool(self.undefined or self.needs)
