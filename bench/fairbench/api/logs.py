"""The Python functions for ``fairbench diagnose``, ``score`` and ``plan``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack

from fairbench import report
from fairbench.config.flags import RUN, PlanFlags
from fairbench.doors import LOG_GROUP, through

if TYPE_CHECKING:
    from fairbench.report.pages.page import Page
    from fairbench.workloads.traces.read import TraceParams

# ``diagnose`` assumes that the log's cluster runs FCFS, and compares fair schedulers with FCFS.
FCFS = "fcfs"
FAIR = ("vtc", "d2lpm", "fair-finish")
NUM_RUNS = 3  # The number of seeds of each cluster size in a plan.

Data = Any
"""A table in one of the accepted forms: a pandas data frame, an object with Arrow's interface, a
list of dicts, a dict of columns, or the name of a file."""


class Answer:
    """The answer that ``diagnose``, ``score`` or ``plan`` returns.

    ``summary`` has the keys that the command prints with ``--json``. ``print(answer)`` shows the
    text that the command prints.
    """

    def __init__(self, summary: dict[str, Any], text: str, page: Callable[[], Page]) -> None:
        self.summary = summary
        self._text = text
        self._page = page

    def save_report(self, path: str | PathLike[str]) -> None:
        """Write a page with charts to a file whose name ends in .html or .md.

        Raises UsageError if the file cannot be written, or if its name has another ending.
        """
        report.write_page(self._page(), Path(path), "save_report")

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


class LogTools(Protocol):
    """The interface of the package that reads logs, which is an entry point of ``LOG_GROUP``.

    The first three methods receive the arguments of the functions below.
    """

    def diagnose(self, **asked: Any) -> Answer: ...

    def score(self, **asked: Any) -> Answer: ...

    def plan(self, **asked: Any) -> Answer: ...

    def log_page(self, params: TraceParams, /) -> Page:
        """Return the report page of an access log."""
        ...

    def plan_page(self, directory: Path, /) -> Page:
        """Return the report page of a capacity plan; raise DataError if it is not finished."""
        ...

    def print_plan(self, answer: Mapping[str, Any], directory: Path, /, *, as_json: bool) -> None:
        """Print the answer of a capacity plan on stdout, as text or JSON."""


def log_tools() -> LogTools:
    """Return the tools for logs, which an installed package registered.

    Raises UsageError if the package does not fit this version of fairbench.
    """
    tools: LogTools = through(LOG_GROUP, "tools")
    return tools


def diagnose(
    data: Data,
    *,
    # The argument is named after the flag --map, although ``map`` is also a Python function.
    map: Mapping[str, str] | None = None,
    time_unit: Literal["s", "ms", "us", "ns"] | None = None,
    dp: int | None = None,
    gpu: str | None = None,
    model: str | None = None,
    engine: str | None = None,
    scheduler: Sequence[str] = (FCFS, *FAIR),
    slo: Sequence[str] = (),
    no_plan: bool = False,
    show_progress: bool = False,
) -> Answer:
    """Find in a log the heavy clients, the clients that wait because of them, and a remedy.

    ``data`` is a data frame, an Arrow table, a list of dicts, or the name of a file. ``map`` names
    the columns of fields that have uncommon names, such as ``{"client": "team"}``. ``time_unit`` is
    the unit of times in columns whose names state no unit. All other arguments are flags of
    ``fairbench diagnose``. Pass several schedulers or latency targets as a list.

    Raises UsageError for a wrong argument and DataError for wrong data; the message is one line.
    """
    return log_tools().diagnose(**locals())


def score(
    *data: Data,
    map: Mapping[str, str] | None = None,
    layout: str | None = None,
    time_unit: Literal["s", "ms", "us", "ns"] | None = None,
    line: int | None = None,
    clients: Sequence[str] = (),
    misbehaving: Sequence[str] = (),
    weights: Mapping[str, float] | None = None,
    goodput: Mapping[str, str] | None = None,
    percentiles: str | None = None,
    latency: Literal["program", "ttft"] = "program",
    window_start: float | None = None,
    window_end: float | None = None,
) -> Answer:
    """Compute every fairness metric from the request records of any serving system.

    ``data`` is a data frame, an Arrow table, a list of dicts, or the names of files that form one
    run. Every argument except ``data`` is a flag of ``fairbench score``. Three flags are dicts.
    ``map`` maps fields to column names, such as ``{"client": "team"}``; ``weights`` maps clients to
    weights; and ``goodput`` maps latencies to targets, such as ``{"ttft": "500"}``.

    Raises UsageError for a wrong argument and DataError for wrong data; the message is one line.
    """
    return log_tools().score(**locals())


def plan(
    data: Data | None = None,
    *,
    slo: Sequence[str],
    map: Mapping[str, str] | None = None,
    scheduler: Sequence[str] = (RUN["scheduler"].default,),
    dp: tuple[int, int] | None = None,
    max: Literal["users"] | None = None,
    gpu: Sequence[str] = (RUN["gpu"].default,),
    price: Mapping[str, float] | None = None,
    loads: Sequence[float] = (1.0,),
    settings: Mapping[str, Any] | None = None,
    num_runs: int = NUM_RUNS,
    certain: bool = False,
    every: bool = False,
    no_sharing: bool = False,
    show_progress: bool = False,
    **flags: Unpack[PlanFlags],
) -> Answer:
    """Find the smallest cluster that meets targets under the load of a log or workload.

    ``data`` is an access log; without ``data``, a flag in ``flags`` names a workload. ``slo`` lists
    the latency and fairness targets, such as ``["ttft_p99<2s"]``. ``dp`` is a pair, the minimum
    and the maximum number of replicas to try, by default (1, 32). With ``max="users"``, ``plan``
    finds the largest number of users (clients) that a fixed cluster, such as ``dp=(4, 4)``, can
    serve within the targets. ``flags`` are flags of ``fairbench plan``. ``plan`` leaves no files on
    disk.

    ``plan`` raises no error if no cluster in the range meets the targets, but reports this in its
    result. Raises UsageError for a wrong argument and DataError for wrong data; the message is one
    line.
    """
    return log_tools().plan(**locals())
