"""A table that compares two schedulers: both means, the difference and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from math import exp
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import CLIENTS, columns_of, columns_with_values, metric_of
from fairbench.metrics.metric import Better, Display, Form, Metric
from fairbench.metrics.shown_percentiles import common_percentiles, shown_tail
from fairbench.report.comparison_table import QUEUES_EMPTY
from fairbench.report.limit_lines import LEAST_LOSS, lost_against
from fairbench.report.numbers import UNDEFINED, bounded, number
from fairbench.report.table import MAX_WIDTH, first_fitting, plain_table, printed
from fairbench.results.comparison import Contrast, MetricContrast, SchedulerResults, seed_text
from fairbench.results.significance import MOST_SEEDS, POWER, Decision, Difference
from fairbench.results.summary import NOBODY_NAMED, bases, is_nobody_named

STYLES: dict[str, str] = {
    Decision.BETTER: "green",
    Decision.WORSE: "red",
    Decision.INCONCLUSIVE: "yellow",
}
NAME_WIDTH = 12  # Column headings wrap scheduler names at this number of characters.
MOST_ROWS = 8  # Without the flag --all, a comparison shows at most this number of metrics.
LIMIT = "limit_ratio"
REFERENCE = "jain_index_maxmin"  # This metric is shown beside Jain's index of service.
LEGEND = (
    "Differences are paired by seed, with 95% confidence intervals (Student's t); times "
    "are compared by their ratio (x). About 1 in 20 equal metrics is called better or "
    "worse by chance. Changes of less than 0.05% are called the same. "
    '"more seeds" estimates how many more seeds are needed for a decision with a '
    f"probability of {POWER:.0%}. Jain's index and computed service are only called more or "
    "less: Jain's index is best near that of a max-min allocation, and a scheduler with more "
    "cache hits computes less."
)
BEST = "min_entitlement_best_ratio"
OF_BEST = (
    ' "Of best total" compares a client\'s service with its fair share of the service under the '
    "scheduler with the most service; all other shares refer to the scheduler's own total."
)


class PairLayout(NamedTuple):
    """The layout of a table of pairs: the width of its labels, and the columns to leave out."""

    label: int
    without: frozenset[str] = frozenset()


COLUMNS = {"of": "difference in %", "more": "more seeds", "means": "both means"}
LAYOUTS = (
    PairLayout(28),
    PairLayout(28, frozenset({"of"})),
    PairLayout(20, frozenset({"of"})),
    PairLayout(20, frozenset({"of", "more"})),
    PairLayout(16, frozenset({"of", "more", "means"})),
)


def main_metrics(sides: Iterable[SchedulerResults]) -> list[str]:
    """Return the metrics, at most ``MOST_ROWS``, that are shown without ``--all``."""
    summaries = [run.summary for side in sides for run in side.runs]
    columns = columns_of(Display.CONTRAST, shown_tail(summaries), common_percentiles(summaries))
    columns = columns_with_values(columns, {key for summary in summaries for key in summary})
    by_seed: dict[int, list[float]] = {}
    for summary in summaries:
        if summary.get(LIMIT) is not None:
            by_seed.setdefault(summary["seed"], []).append(summary[LIMIT])
    differ = any(max(shares) - min(shares) >= LEAST_LOSS for shares in by_seed.values())
    return [one.key for one in columns if differ or one.key != LIMIT][:MOST_ROWS]


def shown_metrics(sides: Iterable[SchedulerResults]) -> list[str]:
    """Return the keys of the metrics that a comparison with ``--all`` shows."""
    summaries = [run.summary for side in sides for run in side.runs]
    tail = shown_tail(summaries)
    ranks = common_percentiles(summaries)
    columns = [
        *columns_of(Display.COMPARISON, tail, ranks),
        *columns_of(Display.REPEATS, tail, ranks),
    ]
    columns = columns_with_values(columns, {key for summary in summaries for key in summary})
    judged = (one for one in columns if one.better is not Better.NEITHER or one.key == REFERENCE)
    return list(dict.fromkeys(one.key for one in judged))


def contrast_text(
    contrasts: Sequence[Contrast], *, colour: bool = False, width: int = MAX_WIDTH
) -> str:
    """Return differences between schedulers as text with at most ``width`` characters per line.

    If the table is too wide, columns are left out; numbers are not shortened.
    """
    return printed(render_pairs(contrasts, width), colour=colour, width=width)


def render_pairs(contrasts: Sequence[Contrast], width: int = MAX_WIDTH) -> RenderableType:
    """Build the table of differences between schedulers, with a block of rows per configuration."""
    blocks: list[RenderableType] = [*(Text(one, "bold") for one in answers(contrasts)), Text()]
    for _, group in groupby(contrasts, lambda one: id(one.baseline)):
        here = list(group)
        baseline = here[0].baseline
        summaries = (side.first.summary for side in (baseline, *(one.other for one in here)))
        blocks += [Text(f"{bases(summaries)}; {baseline.place}"), Text()]
        for one in here:
            layout, table = first_fitting(LAYOUTS, partial(_pair_table, one), width)
            blocks += [*map(Text, _remarks(one)), table]
            if layout.without:
                names = ", ".join(name for key, name in COLUMNS.items() if key in layout.without)
                blocks.append(Text(f"  columns that do not fit: {names}; --json has all columns"))
            blocks.append(Text())
    best = any(row.metric == BEST for one in contrasts for row in one.metrics)
    return Group(*blocks, Text(LEGEND + OF_BEST * best))


def answers(contrasts: Sequence[Contrast]) -> Iterator[str]:
    """Yield a sentence for each pair of schedulers on the metrics that differ significantly."""
    places = {one.baseline.place for one in contrasts}
    for one in contrasts:
        where = f"{one.baseline.place}: " if len(places) > 1 else ""
        yield f"{where}{_contrast_answer(one)}"


def _contrast_answer(one: Contrast) -> str:
    """Return a sentence on the metrics in which one of two schedulers is better or worse."""
    name, against, total = one.other.scheduler, one.baseline.scheduler, len(one.metrics)
    metrics = "1 metric" if total == 1 else f"{total} metrics"
    found = [row for row in one.metrics if row.decision in (Decision.BETTER, Decision.WORSE)]
    count = len(found)
    undecided = sum(row.decision is Decision.INCONCLUSIVE for row in one.metrics)
    if not count and not undecided:
        return f"{name} and {against} are the same in {metrics}."
    if not count and one.exact:
        same = f"{total - undecided} of {metrics}; {undecided} cannot be compared"
        return f"{name} and {against} are the same in {same}."
    if not count and len(one.seeds) == 1:
        return f"One seed cannot show a difference between {name} and {against}; {MORE}"
    few = f"{len(one.seeds)} seeds are too few to tell"
    if not count:
        which = metrics if undecided == total else f"{undecided} of {metrics}"
        return f"{few} whether {name} differs from {against} in {which}."
    other = "1 other metric" if undecided == 1 else f"{undecided} other metrics"
    few = f" {other} cannot be compared." if one.exact else f" {few} for {other}."
    rest = few if undecided else ""
    if count == 1:
        text = _changed(found[0])
        than = "as" if text.endswith("as high") else "than"
        return f"{name}'s {text} {than} {against}'s.{rest}"
    return f"Under {name} instead of {against}, {'; '.join(_several(one.metrics))}.{rest}"


def _several(rows: Sequence[MetricContrast]) -> Iterator[str]:
    """Yield how many metrics are better and how many are worse, the larger number first.

    Metrics that are neither better nor worse are named if there are no others.
    """
    decided = [row for row in rows if row.decision in (Decision.BETTER, Decision.WORSE)]
    groups = {
        verdict: [row for row in decided if _verdict(row) == verdict]
        for verdict in (Decision.BETTER, Decision.WORSE)
    }
    for verdict, found in sorted(groups.items(), key=lambda each: -len(each[1])):
        if found:
            verb = "is" if len(found) == 1 else "are"
            named = ", ".join(map(_both_values, _examples(found)))
            yield f"{len(found)} of {len(rows)} metrics {verb} {verdict}: {named}"
    if not any(groups.values()):
        yield ", ".join(map(_both_values, decided))


MOST_EXAMPLES = 3


def _examples(rows: Iterable[MetricContrast]) -> list[MetricContrast]:
    """Return at most ``MOST_EXAMPLES`` metrics, the first in each unit."""
    first: dict[str, MetricContrast] = {}
    for row in rows:
        first.setdefault("%" if _entry(row.metric).form.is_share else _entry(row.metric).unit, row)
    return list(first.values())[:MOST_EXAMPLES]


def _both_values(row: MetricContrast) -> str:
    """Return a metric with both schedulers' values: ``service 22,412 instead of 25,617 tok/s``."""
    entry, client = _entry(row.metric), _client(row.metric)
    other, base = (bounded(one.raw, one.bound, entry.form) for one in (row.other, row.baseline))
    unit = f" {entry.unit}" if entry.unit and not entry.form.is_share else ""
    return f"{f'{client}: ' if client else ''}{entry.heading} {other} instead of {base}{unit}"


MORE = "use --num-runs 5."


def _changed(row: MetricContrast) -> str:
    """Return a metric with its change as text: ``largest service gap is 3,500 tokens smaller``."""
    entry, found, ratio = _entry(row.metric), row.difference, row.ratio
    mean = found.mean or 0.0
    up = (ratio > 1) if ratio is not None else mean > 0
    much = number(abs(mean))
    if entry.form.is_share:
        much = f"{100 * abs(mean):.1f} points"
    elif entry.form is Form.INDEX:
        much = f"{abs(mean):.3f}"
    elif entry.form is Form.WHOLE:
        much = f"{abs(mean):,.0f} {entry.unit}"
    elif ratio is not None:
        much = f"{abs(ratio - 1):.1%}" if ratio < TIMES else f"{number(ratio)} times as high"
    least = "at least " if found.bounded else ""
    ways = (" smaller", " larger") if entry.form is Form.WHOLE else (" lower", " higher")
    way = "" if much.endswith("as high") else ways[up]
    client = _client(row.metric)
    return f"{f'{client}: ' if client else ''}{entry.heading} is {least}{much}{way}"


TIMES = 2.0  # A larger ratio of two means is written as a multiple instead of a percentage.


def _remarks(one: Contrast) -> Iterator[str]:
    sides = (one.baseline, one.other)
    yield f"{one.other.scheduler} against {one.baseline.scheduler}, {seed_text(one.seeds)}"
    if one.unlike:
        yield (f"  different load or cluster: {', '.join(one.unlike)}")
    if any(side.demand_limited for side in sides):
        yield (
            f"  {QUEUES_EMPTY[0].lower()}{QUEUES_EMPTY[1:]}, so throughput partly reflects the load"
        )
    if one.exact:
        gave = "all seeds gave" if len(one.seeds) > 1 else "in a replay, all seeds give"
        yield f"  {gave} the same results: differences are exact, but hold for this load only"
    if any(is_nobody_named(side.first.summary) for side in sides):
        yield f"  {NOBODY_NAMED}"
    if lost := ("" if one.unlike else lost_between(one.baseline, one.other)):
        yield f"  {lost}"
    if one.left_out:
        yield (f"  left out, because only one side has them: {seed_text(one.left_out)}")


def lost_between(first: SchedulerResults, second: SchedulerResults) -> str:
    """Say which of two schedulers loses more GPU time, and why; "" if both lose about as much."""
    if not (seeds := first.by_seed.keys() & second.by_seed.keys()):
        return ""
    ours, others = ([side.by_seed[seed].summary for seed in seeds] for side in (first, second))
    return lost_against(ours, others, [first.scheduler, second.scheduler])


def _pair_table(one: Contrast, layout: PairLayout) -> Table:
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
        table.add_row(*_metric_row(row, layout))
        if row.difference.obstacle:
            reason = _reason_undefined(one, row.metric)
            text = f"{row.difference.obstacle}: {reason}" if reason else row.difference.obstacle
            table.add_row(Text(f"  {text}", style="dim"))
    return table


def _reason_undefined(one: Contrast, metric: str) -> str:
    """Return why a metric is undefined in a run of the comparison, or "" if no run says so."""
    runs = (run.summary for side in (one.baseline, one.other) for run in side.runs)
    notes = (summary.get("notes", {}).get(metric) for summary in runs)
    return next((str(note) for note in notes if note), "")


def _metric_row(row: MetricContrast, layout: PairLayout) -> Iterator[Text]:
    found, form = row.difference, _entry(row.metric).form
    yield Text(metric_label(row.metric))
    if "means" not in layout.without:
        yield from (
            Text(bounded(value.raw, value.bound, form)) for value in (row.baseline, row.other)
        )
    yield Text(signed(found, form))
    yield Text(_deciding_interval(row, form))
    if "of" not in layout.without:
        yield Text(UNDEFINED if row.ratio is None else f"{row.ratio - 1:+.1%}")
    verdict = _verdict(row)
    yield Text(verdict, style=STYLES.get(verdict, ""))
    if "more" not in layout.without:
        yield Text(_more(row))


def _verdict(row: MetricContrast) -> str:
    """Return the decision on a metric, or "more" or "less" if neither direction is better."""
    entry, decision = _entry(row.metric), row.decision
    judged = entry.verdict and entry.better is not Better.NEITHER
    if judged or decision not in (Decision.BETTER, Decision.WORSE):
        return decision
    return "more" if (decision is Decision.BETTER) is (entry.better is Better.MORE) else "less"


def _deciding_interval(row: MetricContrast, form: Form) -> str:
    """Format the confidence interval of two schedulers' mean difference or, for times, ratio."""
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


def metric_label(metric: str) -> str:
    """Return a metric's label, such as ``cache hit``; after the client for a client's metric."""
    label, client = _entry(metric).label, _client(metric)
    return f"{client}: {label}" if client else label


def _client(metric: str) -> str:
    return metric.removeprefix(CLIENTS).rpartition(".")[0] if metric.startswith(CLIENTS) else ""


def _more(row: MetricContrast) -> str:
    """Return how many more seeds a verdict needs; "" if more seeds would change nothing."""
    if row.decision is not Decision.INCONCLUSIVE or row.difference.obstacle:
        return ""
    if row.difference.deviation is None:
        return UNDEFINED
    return f"> {MOST_SEEDS:,}" if row.more_seeds is None else f"{row.more_seeds:,}"


def signed(found: Difference, form: Form) -> str:
    """Return the schedulers' mean difference as text, with ``>`` or ``<`` before a bound."""
    if found.mean is None:
        return UNDEFINED
    if found.decisive == 0:
        return "0"
    text = _signed_number(found.mean, found, form) + (" pts" if form.is_share else "")
    if not found.bounded:
        return text
    if found.low is None and found.high is None:
        return UNDEFINED
    return f"> {text}" if found.high is None else f"< {text}"


def signed_interval(found: Difference, form: Form) -> str:
    """Return an interval as ``[low, high]``, or ``> low`` or ``< high`` if one end is unknown."""
    if found.decisive == 0:
        return ""
    low, high = (
        None if end is None else _signed_number(end, found, form) for end in (found.low, found.high)
    )
    if low is not None and high is not None:
        return f"[{low}, {high}]"
    if low is None and high is None:
        return UNDEFINED
    return f"> {low}" if high is None else f"< {high}"


def _signed_number(value: float, found: Difference, form: Form) -> str:
    if form.is_share:
        return f"{100 * value:+.1f}"
    if form is Form.INDEX:
        return f"{value:+.3f}"
    ends = (found.mean, found.low, found.high)
    largest = max(abs(end) for end in ends if end is not None)
    decimals = 0 if largest >= 100 or form is Form.WHOLE else 1 if largest >= 10 else 2
    return f"{value:+,.{decimals}f}"
