"""Contrasts for people: for each metric both means, the paired difference and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from math import exp
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import CLIENTS, columns_of, metric_of, told
from fairbench.metrics.metric import Better, Display, Form, Metric
from fairbench.metrics.shown_percentiles import common_percentiles, shown_tail
from fairbench.report.numbers import UNDEFINED, bounded, number
from fairbench.report.table import MAX_WIDTH, first_fitting, plain_table, printed
from fairbench.results.comparison import SchedulerResults
from fairbench.results.header import NOBODY_NAMED, bases, is_nobody_named
from fairbench.results.pair_comparison import Contrast, MetricContrast, seed_text
from fairbench.results.paired import MOST_SEEDS, POWER, Decision, Difference
from fairbench.results.values import values_of

STYLES: dict[str, str] = {
    Decision.BETTER: "green",
    Decision.WORSE: "red",
    Decision.INCONCLUSIVE: "yellow",
}
NAME_WIDTH = 12  # columns of a side's name at the head of its column
REFERENCE = "jain_index_maxmin"  # reference for Jain's index, which no scheduler should exceed
LEGEND = (
    "Differences are paired by seed, with 95% confidence intervals (Student's t); times "
    "are compared by their ratio (x). About 1 in 20 equal metrics is called better or "
    "worse by chance. Changes of less than 0.05% are called the same. "
    '"more seeds" estimates how many more seeds would decide with a '
    f"probability of {POWER:.0%}. Jain's index and computed service are only called more or "
    "less: Jain's index is best near that of a max-min allocation, and a scheduler with more "
    "cache hits computes less."
)


class Layout(NamedTuple):
    """The layout of a table: the width of its labels, and the omitted columns."""

    label: int
    without: frozenset[str] = frozenset()


COLUMNS = {"of": "difference in %", "more": "more seeds", "means": "both means"}
LAYOUTS = (
    Layout(28),
    Layout(28, frozenset({"of"})),
    Layout(20, frozenset({"of"})),
    Layout(20, frozenset({"of", "more"})),
    Layout(16, frozenset({"of", "more", "means"})),
)


def shown_metrics(sides: Iterable[SchedulerResults]) -> list[str]:
    """Return the default metrics: those of comparisons, then those of repeats."""
    summaries = [run.summary for side in sides for run in side.runs]
    tail = shown_tail(summaries)
    ranks = common_percentiles(summaries)
    columns = [
        *columns_of(Display.COMPARISON, tail, ranks),
        *columns_of(Display.REPEATS, tail, ranks),
    ]
    columns = told(columns, {key for summary in summaries for key in summary})
    judged = (one for one in columns if one.better is not Better.NEITHER or one.key == REFERENCE)
    return list(dict.fromkeys(one.key for one in judged))


def contrast_text(
    contrasts: Sequence[Contrast], *, colour: bool = False, width: int = MAX_WIDTH
) -> str:
    """Return the contrasts in lines of at most ``width`` columns; numbers are never cut."""
    return printed(render(contrasts, width), colour=colour, width=width)


def render(contrasts: Sequence[Contrast], width: int = MAX_WIDTH) -> RenderableType:
    """Render the contrasts, configuration by configuration."""
    blocks: list[RenderableType] = []
    for _, group in groupby(contrasts, lambda one: id(one.baseline)):
        here = list(group)
        blocks += [Text(_heading(here), style="bold"), Text()]
        for one in here:
            layout, table = first_fitting(LAYOUTS, partial(_table, one), width)
            left_out = map(Text, _left_out(layout.without))
            blocks += [*map(Text, _remarks(one)), table, *left_out, Text()]
    return Group(*blocks, Text(LEGEND))


def _heading(contrasts: Sequence[Contrast]) -> str:
    baseline = contrasts[0].baseline
    sides = [baseline, *(one.other for one in contrasts)]
    return f"{bases(side.first.summary for side in sides)}; {baseline.place}"


def _remarks(one: Contrast) -> Iterator[str]:
    sides = (one.baseline, one.other)
    yield f"{one.other.scheduler} against {one.baseline.scheduler}, {seed_text(one.seeds)}"
    if one.unlike:
        yield (f"  different load or cluster: {', '.join(one.unlike)}")
    if any(side.demand_limited for side in sides):
        yield (
            "  limited by demand: queues were empty for a part of the time, so rates show the load"
        )
    if len(one.seeds) > 1 and not any(map(_is_drawn, sides)):
        yield (
            "  all seeds gave the same results: differences are exact, but hold for this load only"
        )
    if any(is_nobody_named(side.first.summary) for side in sides):
        yield f"  {NOBODY_NAMED}"
    if one.left_out:
        yield (f"  left out, because only one side has them: {seed_text(one.left_out)}")


def _is_drawn(side: SchedulerResults) -> bool:
    """Return whether seeds have any effect; a replayed trace is equal under every seed."""
    found = [
        {key: one.raw for key, one in values_of(run.summary).items() if key != "seed"}
        for run in side.runs
    ]
    return any(one != found[0] for one in found)


def _left_out(without: frozenset[str]) -> Iterator[str]:
    if without:
        names = ", ".join(name for key, name in COLUMNS.items() if key in without)
        yield (f"  columns that do not fit: {names}; --json has all columns")


def _table(one: Contrast, layout: Layout) -> Table:
    table = plain_table(gap=1)
    table.add_column("", max_width=layout.label, overflow="fold")
    names = [one.baseline.scheduler, one.other.scheduler]
    for name in [] if "means" in layout.without else names:
        table.add_column(name, justify="right", max_width=NAME_WIDTH, overflow="fold")
    table.add_column("difference", justify="right", no_wrap=True)
    table.add_column("95% interval", justify="right", no_wrap=True)
    if "of" not in layout.without:
        heading = f"in % of\n{names[0]}"
        table.add_column(heading, justify="right", max_width=NAME_WIDTH, overflow="fold")
    table.add_column("", no_wrap=True)
    if "more" not in layout.without:
        table.add_column("more\nseeds", justify="right", no_wrap=True)
    for row in one.metrics:
        table.add_row(*_row(row, layout))
        if row.difference.obstacle:
            table.add_row(Text(f"  {row.difference.obstacle}", style="dim"))
    return table


def _row(row: MetricContrast, layout: Layout) -> Iterator[Text]:
    found, form = row.difference, _entry(row.metric).form
    yield Text(_label(row.metric))
    if "means" not in layout.without:
        yield from (
            Text(bounded(value.raw, value.bound, form)) for value in (row.baseline, row.other)
        )
    yield Text(signed(found, form))
    yield Text(_interval(row, form))
    if "of" not in layout.without:
        yield Text(UNDEFINED if row.ratio is None else f"{row.ratio - 1:+.1%}")
    verdict = _verdict(row)
    yield Text(verdict, style=STYLES.get(verdict, ""))
    if "more" not in layout.without:
        yield Text(_more(row))


def _verdict(row: MetricContrast) -> str:
    """Return the decision; "more" or "less" for a metric without a better direction."""
    entry, decision = _entry(row.metric), row.decision
    judged = entry.verdict and entry.better is not Better.NEITHER
    if judged or decision not in (Decision.BETTER, Decision.WORSE):
        return decision
    return "more" if (decision is Decision.BETTER) is (entry.better is Better.MORE) else "less"


def _interval(row: MetricContrast, form: Form) -> str:
    """Return the interval that decides; for times, the interval of their ratios."""
    found = row.ratios
    if row.difference.exact:
        return "exact"
    if found is None or found.low is None or found.high is None or found.decisive == 0:
        return signed_interval(row.difference, form)
    return f"[{number(exp(found.low))}x, {number(exp(found.high))}x]"


def _entry(metric: str) -> Metric:
    entry = metric_of(metric)
    assert entry is not None, f"{metric} is not in the catalogue"
    return entry


def _label(metric: str) -> str:
    """Return the metric's label, after the client's name if it belongs to a client."""
    client = metric.removeprefix(CLIENTS).rpartition(".")[0] if metric.startswith(CLIENTS) else ""
    label = _entry(metric).label
    return f"{client}: {label}" if client else label


def _more(row: MetricContrast) -> str:
    """Return how many more seeds are needed; "" if none, or if more would not help."""
    if row.decision is not Decision.INCONCLUSIVE or row.difference.obstacle:
        return ""
    if row.difference.deviation is None:
        return UNDEFINED
    return f"> {MOST_SEEDS:,}" if row.more_seeds is None else f"{row.more_seeds:,}"


def signed(found: Difference, form: Form) -> str:
    """Return the mean difference; ``>`` or ``<`` if it is only a bound."""
    if found.mean is None:
        return UNDEFINED
    if found.decisive == 0:
        return "0"
    text = _number(found.mean, found, form) + (" pts" if form.is_share else "")
    if not found.bounded:
        return text
    if found.low is None and found.high is None:
        return UNDEFINED
    return f"> {text}" if found.high is None else f"< {text}"


def signed_interval(found: Difference, form: Form) -> str:
    """Return ``[low, high]``, or the known part."""
    if found.decisive == 0:
        return ""
    low, high = (
        None if end is None else _number(end, found, form) for end in (found.low, found.high)
    )
    if low is not None and high is not None:
        return f"[{low}, {high}]"
    if low is None and high is None:
        return UNDEFINED
    return f"> {low}" if high is None else f"< {high}"


def _number(value: float, found: Difference, form: Form) -> str:
    """Return a number with the precision suited to the largest of the three numbers."""
    if form.is_share:
        return f"{100 * value:+.1f}"
    if form is Form.INDEX:
        return f"{value:+.3f}"
    ends = (found.mean, found.low, found.high)
    largest = max(abs(end) for end in ends if end is not None)
    decimals = 0 if largest >= 100 or form is Form.WHOLE else 1 if largest >= 10 else 2
    return f"{value:+,.{decimals}f}"
