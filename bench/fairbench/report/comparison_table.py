"""A table of schedulers by configuration, with the best and worst values marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import columns_of, columns_with_values, metric_of
from fairbench.metrics.contention import hides_backlog
from fairbench.metrics.metric import Better, Column, Display, Form
from fairbench.metrics.shown_percentiles import common_percentiles, shown_tail
from fairbench.report import numbers
from fairbench.report.numbers import UNDEFINED, WRITERS, bound_of, whole
from fairbench.report.result_lines import NO_ORDER
from fairbench.report.table import MAX_WIDTH, plain_table, printed, stacked
from fairbench.results.comparison import SchedulerResults, by_place, is_replay
from fairbench.results.significance import METHOD, Decision, difference, log_ratio, mean_value
from fairbench.results.summary import Value, bases, value_of

LABEL_WIDTH = 30  # A scheduler's name with its parameters is wrapped at this number of characters.
LIMITED = "~"
RATE = "service_rate_tok_s"
MAX_NAMED = 4
BEST, WORST, NEITHER = "*", "!", " "
STYLES = {BEST: "green", WORST: "red"}
SHARING = (
    "Sharing: latency of the worst-off well-behaved client, divided by its latency alone "
    "on 1/n of the cluster (at most 1: sharing pays off). "
)
LEGEND = (
    "{marks}. {sharing}Min. fair share of best: lowest fraction that a client received of its "
    "max-min fair share of the best total service."
)
CERTAIN = " (paired by seed, 95% each)"
MARKED = f"{BEST} best and {WORST} worst in a configuration, if significant"
ONE_SEED = "One seed cannot show a significant difference, so nothing is marked; use --num-runs 5"
QUEUES_EMPTY = "Queues were empty for more than 5% of the time"
DEMAND_LIMITED = (
    f"{LIMITED} {QUEUES_EMPTY}, so service partly reflects the load rather than the scheduler."
)


def comparison_columns(cells: Iterable[SchedulerResults] = ()) -> list[Column]:
    """Return the columns of the metrics by which schedulers are compared."""
    listed = list(cells)
    keys = {key for cell in listed for key in cell.combined}
    columns = columns_of(Display.COMPARISON, tail_of(listed), percentiles_of(listed))
    return columns_with_values(columns, keys)


def percentiles_of(cells: Iterable[SchedulerResults]) -> tuple[int, ...]:
    """Return the latency percentiles that the user chose; () if the choices differ."""
    return common_percentiles(cell.combined for cell in cells)


def tail_of(cells: Iterable[SchedulerResults]) -> int:
    """Return P99 if every run has enough latencies for a P99, or else P95."""
    return shown_tail(one.summary for cell in cells for one in cell.runs)


def comparison_text(
    cells: Sequence[SchedulerResults], *, colour: bool = False, width: int = MAX_WIDTH
) -> str:
    """Return the comparison as text whose lines have at most ``width`` characters.

    If the table is too wide, some columns move to a second table; numbers are not shortened.
    """
    return printed(render(cells, width), colour=colour, width=width)


def render(cells: Sequence[SchedulerResults], width: int = MAX_WIDTH) -> RenderableType:
    """Build a comparison's table; with several seeds, confidence intervals stand below means."""
    # The sharing incentive is computed only for simulated runs.
    sharing = any(cell.combined["simulated"] for cell in cells)
    columns = comparison_columns(cells)
    known = [one for one in columns if sharing or not one.key.startswith("sharing")]
    table = stacked(known, lambda shown: _schedulers_table(cells, shown), width)
    paired = CERTAIN if of_several_seeds(cells) else ""
    marks = MARKED + paired if can_tell(cells) else ONE_SEED
    legend = [Text(LEGEND.format(sharing=SHARING if sharing else "", marks=marks))]
    legend += [Text(DEMAND_LIMITED)] if any_limited(cells) else []
    legend += [Text(line) for line in _hidden(cells)]
    answer = Text(f"{sweep_title(cells)}.", style="bold")
    missing = [Text(line) for line in unfinished(cells)]
    return Group(answer, Text(), Text(provenance(cells)), *missing, Text(), table, Text(), *legend)


def of_several_seeds(cells: Iterable[SchedulerResults]) -> bool:
    """Return whether any scheduler was run with several seeds, so that intervals exist."""
    return any(len(cell.combined["seeds"]) > 1 for cell in cells)


def _hidden(cells: Iterable[SchedulerResults]) -> Iterator[str]:
    names = [
        f"{cell.place} {cell.scheduler}"
        for cell in cells
        if any(hides_backlog(one.summary) for one in cell.runs)
    ]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    if names:
        yield f"Hidden backlog in {', '.join(names[:MAX_NAMED])}{more}: {NO_ORDER}."


def any_limited(cells: Iterable[SchedulerResults]) -> bool:
    """Return whether low demand, not the cluster's capacity, limits the throughput of any run."""
    return any(cell.demand_limited for cell in cells)


def provenance(cells: Sequence[SchedulerResults]) -> str:
    """Return a text that says on which hardware and seeds runs were simulated or measured."""
    where = bases(cell.combined for cell in cells)
    seeds = sorted({seed for cell in cells for seed in cell.combined["seeds"]})
    if len(seeds) == 1:
        return f"{where}, seed {seeds[0]}"
    return f"{where}, {len(seeds)} seeds: {METHOD}"


def unfinished(cells: Sequence[SchedulerResults]) -> Iterator[str]:
    """Yield a warning if points of the sweep are missing, with the effect on marks."""
    points = max((cell.combined.get("sweep_points", 0) for cell in cells), default=0)
    finished = sum(len(cell.combined["seeds"]) for cell in cells)
    if finished < points:
        unequal = not all(map(_of_equal_seeds, by_place(cells).values()))
        marks = " Configurations whose schedulers have different seeds have no marks."
        yield f"Only {finished} of {points} points are finished.{marks if unequal else ''}"


def _of_equal_seeds(cells: Iterable[SchedulerResults]) -> bool:
    return len({frozenset(cell.combined["seeds"]) for cell in cells}) <= 1


class ShownValue(NamedTuple):
    """A value in the table: its text, its mark (best or worst), and its interval."""

    text: str
    mark: str
    ends: str


def shown(interval: Interval | None, column: Column, runs: int, mark: str = "") -> ShownValue:
    """Return a table cell: a metric's text, its mark (best or worst) and its interval."""
    if interval is None:
        return ShownValue(UNDEFINED, mark, "")
    return ShownValue(bounded(interval, column), mark, ends_of(interval, column, runs))


def compared_rows(
    cells: Sequence[SchedulerResults], columns: Sequence[Column]
) -> Iterator[tuple[str, list[tuple[str, list[ShownValue]]]]]:
    """Yield the name of each configuration, with each scheduler's row of table cells."""
    for place, here in by_place(cells).items():
        rows = [
            (
                cell.scheduler,
                [
                    shown(cell.combined.get(one.key), one, cell.planned_runs, mark)
                    for one, mark in zip(columns, marks, strict=True)
                ],
            )
            for cell, marks in zip(here, cell_marks(here, columns), strict=True)
        ]
        yield f"{place} {LIMITED}" if any_limited(here) else place, rows


def _schedulers_table(cells: Sequence[SchedulerResults], columns: Sequence[Column]) -> Table:
    table = plain_table(gap=1)
    table.add_column("", max_width=LABEL_WIDTH, overflow="fold")
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for place, rows in compared_rows(cells, columns):
        table.add_row(Text(place, style="bold"))
        for scheduler, values in rows:
            table.add_row(Text(f"  {scheduler}"), *map(_value_cell, values))
    return table


def _value_cell(value: ShownValue) -> Text:
    text = Text().append(value.text + value.mark, style=STYLES.get(value.mark, ""))
    return text.append(f"\n{value.ends} ", style="dim") if value.ends else text


def ends_of(interval: Interval, column: Column, runs: int) -> str:
    """Return an interval as ``low-high``, or "" for an interval of length 0, as in trace replays.

    If runs are missing or lack a value, the text ends with a count such as ``(3/5)``: 3 of 5 runs
    have a value.
    """
    ends = ""
    if interval["low"] is not None:
        low, high = (WRITERS[column.form](interval[key]) for key in ("low", "high"))
        ends = "" if low == high else f"{low}-{high}"
    return f"{ends} ({interval['runs']}/{runs})".strip() if interval["runs"] < runs else ends


def bounded(interval: Interval, column: Column) -> str:
    """Return the mean in the column's format, as ``> x`` or ``< x`` if the mean is a bound."""
    return numbers.bounded(interval["mean"], bound_of(interval), column.form)


class Compared(NamedTuple):
    """The schedulers of one configuration, and the name of the best scheduler or None."""

    place: str
    cells: tuple[SchedulerResults, ...]
    best: str | None


def compared(cells: Sequence[SchedulerResults]) -> list[Compared]:
    """Return each configuration with its best scheduler by latency.

    A configuration's best scheduler has a significantly lower latency than all other schedulers
    over several seeds, or a lower latency in an exact replay.
    """
    column = latency_column(cells)
    found = []
    for place, here in by_place(cells).items():
        marks = cell_marks(here, [column])
        best = [cell.scheduler for cell, (mark,) in zip(here, marks, strict=True) if mark == BEST]
        found.append(Compared(place, tuple(here), best[0] if len(best) == 1 else None))
    return found


def latency_column(cells: Sequence[SchedulerResults]) -> Column:
    """Return the table column for the tail latency of well-behaved clients."""
    tail = tail_of(cells)
    return Column(f"victim_p{tail}_s", f"P{tail}", Form.SECONDS, Better.LESS, 3)


def sweep_title(cells: Sequence[SchedulerResults]) -> str:
    """Return a sentence that names the scheduler with the lowest latency in a sweep."""
    places, column = compared(cells), latency_column(cells)
    what = f"{column.heading} of the well-behaved clients"
    schedulers = list(dict.fromkeys(cell.scheduler for cell in cells))
    if len(schedulers) == 1:
        return _of_one(cells, len(places), what)
    if not can_tell(cells) and all(_of_equal_seeds(one.cells) for one in places):
        return f"{_lowest(places, what)} (one seed, so no difference is significant)"
    if len(places) == 1:
        best = next((one for one in places[0].cells if one.scheduler == places[0].best), None)
        if best is None:
            return f"No scheduler has a significantly lower {what} than all others{_seeds(cells)}"
        return f"{best.scheduler} has the lowest {what}: {_at(best, column)}"
    best_names = [one.best for one in places if one.best is not None]
    if not best_names:
        return f"No scheduler has a significantly lower {what} in any configuration{_seeds(cells)}"
    return _most_wins(what, sorted(best_names, key=schedulers.index), len(places))


FEW_SEEDS = 5  # With fewer seeds, a title says how many there were.


def _seeds(cells: Sequence[SchedulerResults]) -> str:
    """Return the number of seeds in parentheses if it is small, and "" otherwise."""
    seeds = max(len(cell.runs) for cell in cells)
    return f" ({seeds} seeds)" if 1 < seeds < FEW_SEEDS else ""


def _most_wins(what: str, winners: Sequence[str], places: int) -> str:
    wins = Counter(winners)
    most = max(wins.values())
    names = ", ".join(name for name, count in wins.items() if count == most)
    return f"Lowest {what}: {names} in {most} of {places} configurations"


def _of_one(cells: Sequence[SchedulerResults], places: int, what: str) -> str:
    column, name = latency_column(cells), cells[0].scheduler
    known = [cell for cell in cells if mean_of(cell, column.key) is not None]
    where = "1 configuration" if places == 1 else f"{places} configurations"
    if not known:
        return f"{name} in {where}"
    ends = [pick(known, key=lambda one: mean_of(one, column.key) or 0.0) for pick in (min, max)]
    low, high = (f"{written_of(one, column)} s" for one in ends)
    return f"{name} has a {what} of {low if low == high else f'{low} to {high}'} in {where}"


def _lowest(places: Sequence[Compared], what: str) -> str:
    column = latency_column([cell for one in places for cell in one.cells])
    known = [[c for c in one.cells if mean_of(c, column.key) is not None] for one in places]
    best = [min(one, key=lambda cell: mean_of(cell, column.key) or 0.0) for one in known if one]
    if not best:
        return f"No scheduler has a {what}"
    if len(places) == 1:
        return f"{best[0].scheduler} has the lowest {what}: {_at(best[0], column)}"
    return _most_wins(what, [cell.scheduler for cell in best], len(places))


def _at(cell: SchedulerResults, column: Column) -> str:
    return f"{written_of(cell, column)} s at {whole(mean_of(cell, RATE))} tok/s"


def mean_of(cell: SchedulerResults, key: str) -> float | None:
    """Return the mean of a scheduler's metric over the seeds, or None if it is undefined."""
    interval: Interval | None = cell.combined.get(key)
    return None if interval is None else interval["mean"]


def written_of(cell: SchedulerResults, column: Column) -> str:
    """Return the mean of a metric as text, as ``> x`` or ``< x`` if the mean is a bound."""
    interval: Interval | None = cell.combined.get(column.key)
    return UNDEFINED if interval is None else bounded(interval, column)


Interval = Mapping[str, Any]
"""A metric over several runs, as the dictionary that ``combine_summaries`` returns."""

Sample = Mapping[int, Value]
"""The values of a metric over several runs, by seed."""


def cell_marks(
    cells: Sequence[SchedulerResults], columns: Sequence[Column]
) -> list[tuple[str, ...]]:
    """Return the mark of each scheduler in each column: best, worst, or ``NEITHER``.

    Only significant differences of metrics that rank schedulers are marked. With a single seed,
    only values of simulated trace replays are marked as best or worst, because arrivals in a replay
    are not random.
    """
    if not can_tell(cells):
        return [(NEITHER,) * len(columns)] * len(cells)
    return list(zip(*(_of_column(cells, column) for column in columns), strict=True))


def _of_column(cells: Sequence[SchedulerResults], column: Column) -> list[str]:
    entry = metric_of(column.key)
    if entry is not None and not entry.verdict:
        return [NEITHER] * len(cells)
    samples = [
        {one.summary["seed"]: value_of(one.summary, column.key) for one in cell.runs}
        for cell in cells
    ]
    return marks_of(samples, column.better, in_seconds=entry is not None and entry.unit == "s")


def can_tell(cells: Iterable[SchedulerResults]) -> bool:
    """Return whether several seeds or trace replays allow a test of scheduler differences."""
    return any(
        any(len(cell.runs) > 1 for cell in here)
        or all(is_replay(run) for cell in here for run in cell.runs)
        for here in by_place(cells).values()
    )


def marks_of(samples: Sequence[Sample], better: Better, *, in_seconds: bool = False) -> list[str]:
    """Mark each sample (a scheduler's values) as ``BEST``, ``WORST`` or ``NEITHER``.

    A sample is best if it is equal to or significantly better than every other sample. A sample is
    worst if every other sample is equal to it or significantly better. Samples with different seeds
    get no marks. Several seeds are compared by the confidence interval of paired differences, and a
    single seed is compared by its values. If ``in_seconds`` is True, values are compared by paired
    ratios instead of paired differences. Values that agree in three digits count as equal. If all
    samples are equal, all get the mark ``NEITHER``.
    """
    if better is Better.NEITHER:
        return [NEITHER] * len(samples)
    known = [any(value.raw is not None for value in sample.values()) for sample in samples]
    defined = [sample for sample, there in zip(samples, known, strict=True) if there]
    if len({frozenset(sample) for sample in defined}) > 1:
        return [NEITHER] * len(samples)
    not_worse = partial(_not_worse, better=better, in_seconds=in_seconds)
    marks = iter([_mark(defined, row, not_worse) for row in range(len(defined))])
    return [next(marks) if there else NEITHER for there in known]


def _mark(samples: Sequence[Sample], row: int, not_worse: Callable[[Sample, Sample], bool]) -> str:
    own = samples[row]
    others = [one for number, one in enumerate(samples) if number != row]
    best = all(not_worse(own, other) for other in others)
    worst = all(
        not_worse(other, own) or (_unlimited(own) and _unlimited(other)) for other in others
    )
    return NEITHER if best == worst else BEST if best else WORST


def _not_worse(one: Sample, other: Sample, better: Better, *, in_seconds: bool) -> bool:
    """Return whether the sample ``one`` equals ``other`` or is significantly better."""
    seeds = sorted(one)
    if len(seeds) == 1:
        return _badness(one, better)[1] <= _badness(other, better)[0]
    mine, theirs = ([side[seed] for seed in seeds] for side in (one, other))
    found = log_ratio(theirs, mine) if in_seconds else None
    found = found or difference(theirs, mine)
    exact = found.runs > 1 and not (found.bounded or found.undefined)
    if exact and _digits(mine) == _digits(theirs):
        return True
    return found.decision(better) in (Decision.BETTER, Decision.SAME)


def _digits(values: Sequence[Value]) -> str:
    return f"{mean_value(values).raw:.3g}"


def _badness(sample: Sample, better: Better) -> tuple[float, float]:
    """Return the smallest and largest value of a sample, negated if larger values are better."""
    (value,) = sample.values()
    turned = float(f"{value.raw:.3g}") * (-1 if better is Better.MORE else 1)
    return -inf if value.bound == "<" else turned, inf if value.bound == ">" else turned


def _unlimited(sample: Sample) -> bool:
    return any(value.bound == ">" for value in sample.values())
