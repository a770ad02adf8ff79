"""The leaderboard: schedulers of stored sweeps, ranked by significant differences."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import exp, fsum, isfinite, log
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.errors import DataError, UsageError, printable, unknown_name
from fairbench.files.formats import csv_reader
from fairbench.files.reader import opened
from fairbench.metrics.catalogue import CATALOGUE, key_of, metric_of
from fairbench.metrics.metric import Better, Form, Metric
from fairbench.metrics.shown_percentiles import shown_tail
from fairbench.results import significance
from fairbench.results.comparison import compare, seed_text
from fairbench.results.store import SUMMARY, SWEEP_FILE, StoredRun, SweepStore, read_json
from fairbench.results.summary import ABSENT, Value, check_summary, more_is_better, value_of
from fairbench.results.sweeps import BOUNDS

BOTH_BOUNDS = "a lower bound at some configurations, an upper bound at others"
NO_RATIO = "0 at some configuration, so that there is no ratio"


class Fold(Enum):
    """A way to combine the values of a metric in several configurations into one value."""

    MEAN = "mean"
    GEOMETRIC = "geometric mean"
    RATIO = "geometric mean of the ratios to the baseline"


class Score(NamedTuple):
    """A scheduler's value of a metric, with interval and paired difference from the baseline.

    ``bound`` is ``>`` or ``<`` if the value is only a lower or upper bound, as in ``Value``. If
    ``value`` is None, ``reason`` explains why the value is undefined.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    bound: str = ""
    against: significance.Decision | None = None
    reason: str = ""


def fold_of(metric: Metric, places: int) -> Fold:
    """Return how a leaderboard combines a metric's values in ``places`` configurations."""
    if places == 1 or metric.form.is_share or metric.form is Form.INDEX:
        return Fold.MEAN
    return Fold.RATIO if metric.unit else Fold.GEOMETRIC


def folded(values: Sequence[Value], fold: Fold) -> Value:
    """Combine a seed's values in all configurations into an arithmetic or geometric mean.

    The mean is undefined if any value is undefined, or if the values include both lower and upper
    bounds.
    """
    for value in values:
        if value.raw is None:
            return Value(None, reason=value.reason)
    bounds = {value.bound for value in values} - {""}
    if len(bounds) > 1:
        return Value(None, reason=BOTH_BOUNDS)
    numbers = [float(value.exact) for value in values]
    if fold is not Fold.MEAN:
        if min(numbers) <= 0:
            return Value(None, reason=NO_RATIO)
        numbers = [log(number) for number in numbers]
    return Value(fsum(numbers) / len(numbers), "".join(bounds))


def score(own: Sequence[Value], base: Sequence[Value], fold: Fold, metric: Metric) -> Score:
    """Return a scheduler's score: its values over seeds, compared with the baseline's values."""
    undefined = next((one for one in own if one.raw is None), None)
    if undefined is not None:
        return Score(None, reason=undefined.reason)
    found = significance.difference(base, own)
    against = found.decision(metric.better) if metric.better is not Better.NEITHER else None
    if fold is Fold.RATIO:
        if found.mean is None or found.undefined:
            return Score(None, against=against, reason="the baseline has no value")
        bound = significance.bound_of_difference(base, own)
        if bound is None:
            return Score(None, against=against, reason="only bounds are known of both")
        return _score_of_interval(
            significance.MeanInterval(found.mean, found.low, found.high), exp, bound, against
        )
    bounds = {value.bound for value in own} - {""}
    if len(bounds) > 1:
        return Score(None, against=against, reason=BOTH_BOUNDS)
    numbers = [float(value.raw) for value in own]
    if fold is Fold.GEOMETRIC:
        return _score_of_interval(significance.t_interval(numbers), exp, "".join(bounds), against)
    interval = significance.t_interval(numbers, least=0.0, most=metric.most)
    return _score_of_interval(interval, float, "".join(bounds), against)


def _score_of_interval(
    interval: significance.MeanInterval,
    back: Callable[[float], float],
    bound: str,
    against: significance.Decision | None,
) -> Score:
    """Convert a mean's interval to a score; ``back`` undoes the logarithm of geometric means."""
    low = None if interval.low is None or bound == "<" else back(interval.low)
    high = None if interval.high is None or bound == ">" else back(interval.high)
    return Score(back(interval.mean), low, high, bound, against)


Sample = Sequence[Value]
"""A scheduler's values of a metric, one per seed; all schedulers list the seeds in equal order."""


class Ranks(NamedTuple):
    """A scheduler's rank (from 1), and its best and worst rank within statistical error."""

    rank: int
    first: int
    last: int


def rank_ranges(samples: Sequence[Sample], better: Better) -> list[Ranks]:
    """Return each row's best and worst possible rank; rows must be sorted, best first.

    ``first``, a row's best possible rank, is 1 plus the number of significantly better rows.
    ``last``, a row's worst possible rank, is the number of rows that are not significantly worse
    than this row. Pairs are compared at 95% confidence without correction, so about one of 20 pairs
    of equal schedulers is reported as different.
    """
    ahead, behind = [0] * len(samples), [0] * len(samples)
    for one in range(len(samples)):
        for other in range(one + 1, len(samples)):
            sign = significance.difference(samples[one], samples[other]).decisive
            if sign:
                first = one if (sign < 0) is (better is Better.MORE) else other
                behind[first] += 1
                ahead[one + other - first] += 1
    count = len(samples)
    return [
        Ranks(row + 1, 1 + better_rows, count - worse_rows)
        for row, (better_rows, worse_rows) in enumerate(zip(ahead, behind, strict=True))
    ]


# A sweep's metrics.csv begins with the columns ``place`` (configuration), ``cell`` (scheduler) and
# ``seed``.
LABELS = ("place", "cell", "seed")
KEPT = (
    *("timing_profile", "timing_error_pct", "engine", "served", "emulated", "simulated", "dp"),
    *("demand_limited", "queue_empty_share", "refused"),
    *("service_rate_tok_s", "min_entitlement_best_ratio", "min_entitlement_ratio"),
    *("victim_n", "victim_p50_s", "victim_p95_s", "victim_p99_s"),
    *("sharing_incentive_p50", "sharing_incentive_p95", "sharing_incentive_p99"),
    *("jain_index_actual", "cache_hit_rate", "max_service_gap", "limit_ratio", *BOUNDS),
)
TEXTS = ("timing_profile", "engine", "served")
UNSAID = "the file gives no reason"
FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class BoardLine:
    """A run in the leaderboard: its configuration, scheduler, seed and summary."""

    place: str
    scheduler: str
    seed: int
    summary: Mapping[str, Any]


def lines_csv(lines: Iterable[BoardLine]) -> str:
    """Return the lines as CSV without rounding, so that ``read_lines`` restores every number."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((*LABELS, *KEPT))
    for line in lines:
        values = [_written(line.summary.get(key)) for key in KEPT]
        writer.writerow([line.place, line.scheduler, line.seed, *values])
    return file.getvalue()


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(key for key in value if key in KEPT)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def holds_lines(path: Path) -> bool:
    """Return whether a file begins with the header of a leaderboard's CSV file.

    Raises DataError if the file cannot be read.
    """
    head = ",".join(LABELS).encode()
    if path.suffix != ".csv":
        return False
    with opened(path, f"{path}") as file:
        return file.read(len(head)) == head


def read_lines(path: Path) -> list[BoardLine]:
    """Read the runs in a leaderboard's CSV file, or in a sweep's ``metrics.csv``.

    Raises DataError with the file, line and column of the error.
    """
    try:
        reader = csv_reader(path, f"{path}")
        for label in LABELS:
            if label not in (reader.fieldnames or ()):
                raise DataError(f"{path}: line 1: column {label!r}: missing")
        return [_line(row, f"{path}: line {reader.line_num}") for row in reader]
    except csv.Error as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _line(row: Mapping[str | None, Any], where: str) -> BoardLine:
    if None in row or None in row.values():
        raise DataError(f"{where}: must have as many columns as line 1")
    seed = row["seed"]
    if not (seed.isascii() and seed.isdigit() and len(seed) < 20):
        raise DataError(f"{where}: seed = {seed!r}: must be a whole number")
    read = {
        key: _value(key, text, where)
        for key, text in row.items()
        if key is not None and (key in KEPT or metric_of(key)) and key not in BOUNDS
    }
    summary = {key: value for key, value in read.items() if value is not None or metric_of(key)}
    bounds = {key: row.get(key, "").split() for key in BOUNDS}
    notes = {key: UNSAID for key, value in summary.items() if value is None}
    place, scheduler = printable(row["place"]), printable(row["cell"])
    return BoardLine(place, scheduler, int(seed), {**summary, **bounds, "notes": notes})


def _value(key: str, text: str, where: str) -> Any:
    if not text or key in TEXTS:
        return text or None
    if text in FLAGS:
        return FLAGS[text]
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise DataError(f"{where}: {key} = {text!r}: must be a number, or empty")
    return value


UNFINISHED = "not finished"


class Missing(NamedTuple):
    """A run of a sweep that did not finish (configuration, scheduler, seed), and the reason."""

    point: str
    reason: str


class Stored(NamedTuple):
    """The finished runs of sweeps, as lines of a leaderboard, and the missing runs."""

    lines: list[BoardLine]
    missing: list[Missing]


def read_stored(paths: Sequence[Path]) -> Stored:
    """Read the runs of sweep directories or CSV files for a comparison of all runs.

    Raises DataError if a path cannot be read, or is neither a sweep nor a CSV file. Raises
    DataError if directories have different runs of one experiment and seed, or if several files
    have the same configuration and seed.
    """
    files = [path for path in paths if path.suffix == ".csv"]
    if files and len(files) < len(paths):
        raise DataError(
            f"{files[0]}: CSV files cannot be combined with directories of sweeps; give only "
            "one kind"
        )
    if files:
        return Stored(_lines(files), [])
    for path in paths:
        if not (path / SWEEP_FILE).exists():
            kind = "is not the directory of a sweep" if path.is_dir() else "no such directory"
            raise DataError(f"{path}: {kind}")
    stores = [SweepStore(path) for path in paths]
    alone = {key: rows for store in stores for key, rows in store.alone().items()}
    runs, missing = _runs_of(stores)
    lines = [
        BoardLine(cell.place, cell.scheduler, run.summary["seed"], run.summary)
        for cell in compare(runs, alone)
        for run in cell.runs
    ]
    return Stored(lines, missing)


def _runs_of(stores: Sequence[SweepStore]) -> tuple[Collection[StoredRun], list[Missing]]:
    """Return each finished run of the sweeps once, and the missing runs."""
    runs: dict[str, StoredRun] = {}
    missing: list[Missing] = []
    for store in stores:
        finished = store.finished()
        for point in read_json(store.path / "index.json")["points"]:
            if point["identity"] not in finished:
                failure = store.path / "failed" / f"{point['identity']}.json"
                failed = failure.exists()
                reason = f"failed: {read_json(failure)['error']}" if failed else UNFINISHED
                missing.append(Missing(point["name"], reason))
        for identity, run in finished.items():
            check_summary(run.summary, run.path / SUMMARY)
            if identity in runs and runs[identity].summary != run.summary:
                raise DataError(
                    f"{runs[identity].path} and {run.path}: the same run has different "
                    "results; keep one of them"
                )
            runs.setdefault(identity, run)
    return runs.values(), missing


def _lines(files: Sequence[Path]) -> list[BoardLine]:
    """Read the runs in CSV files; each seed of a configuration must be in a single file."""
    lines: list[BoardLine] = []
    seen: dict[tuple[str, int], Path] = {}
    for file in files:
        read = read_lines(file)
        for line in read:
            if (other := seen.setdefault((line.place, line.seed), file)) != file:
                what = f"seed {line.seed} of {line.place} is in {other} too"
                raise DataError(
                    f"{file}: {what}; the runs of a configuration with the same seed must be in "
                    "a single file, because only the runs of one file are compared"
                )
        lines += read
    return lines


MOST_PLACES = 3
MIN_SHARE = "min_entitlement_best_ratio"
LIMIT = "limit_ratio"  # CSV files of older versions lack this metric.

Table = Mapping[str, Mapping[tuple[str, int], BoardLine]]
"""The runs of the leaderboard: a mapping by (configuration, seed) for each scheduler."""


@dataclass(frozen=True, slots=True)
class BoardMetric:
    """A metric of the leaderboard; ``fold`` combines the values of configurations ``places``."""

    key: str
    fold: Fold
    places: tuple[str, ...]
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A scheduler's row of the leaderboard.

    ``ranks`` is None if the scheduler has no value of the metric by which rows are sorted.
    """

    name: str
    ranks: Ranks | None
    scores: Mapping[str, Score]


@dataclass(frozen=True, slots=True)
class Board:
    """A leaderboard with the best row first; ``incomplete`` names schedulers that lack runs."""

    metrics: tuple[BoardMetric, ...]
    baseline: str
    places: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[BoardRow, ...]
    incomplete: Mapping[str, str]
    missing: tuple[Missing, ...]
    demand_limited: tuple[str, ...]
    # ``fewest`` is the number of latencies of the well-behaved client with the fewest latencies, or
    # None if the numbers are unknown.
    fewest: int | None
    summary: Mapping[str, Any]  # the summary of a run; the title names the hardware in this summary


def chosen(
    lines: Sequence[BoardLine], places: Collection[str], rows: Collection[str]
) -> list[BoardLine]:
    """Return the runs of the named configurations and schedulers; without names, return all runs.

    A name such as ``tot s1`` selects all configurations whose names begin with these words. Raises
    UsageError if a name matches no run.
    """
    known = dict.fromkeys(line.place for line in lines)
    names = dict.fromkeys(line.scheduler for line in lines)
    for row in rows:
        if row not in names:
            raise unknown_name("row", row, names)
    wanted = set()
    for place in places:
        found = [one for one in known if f"{one} ".startswith(f"{place} ")]
        if not found:
            raise unknown_name("place", place, known)
        wanted.update(found)
    return [
        line
        for line in lines
        if (line.place in wanted or not places) and (line.scheduler in rows or not rows)
    ]


def make_board(
    lines: Sequence[BoardLine],
    missing: Iterable[Missing] = (),
    *,
    sort: str | None = None,
    baseline: str | None = None,
) -> Board:
    """Return the leaderboard of the given runs, sorted by a metric, with a baseline.

    Without ``sort``, rows are sorted by the metric ``min_entitlement_best_ratio``. Raises
    UsageError for an unknown metric or baseline, and DataError if a run is given twice or if no
    scheduler has all runs.
    """
    table = _lines_by_row(lines)
    places = tuple(dict.fromkeys(line.place for line in lines))
    seeds = tuple(sorted({line.seed for line in lines}))
    incomplete = {name: text for name in table if (text := _lacks(table[name], places, seeds))}
    base = _baseline(table, incomplete, baseline)
    tail = shown_tail(line.summary for line in lines)
    usual: tuple[str, ...] = (
        "service_rate_tok_s",
        MIN_SHARE,
        f"victim_p{tail}_s",
        f"sharing_incentive_p{tail}",
    )
    if any(line.summary.get(LIMIT) is not None for line in lines):
        usual += (LIMIT,)
    first = key_of(sort or MIN_SHARE)
    more_is_better(first, [key for line in lines[:1] for key in line.summary])
    whole = {name: runs for name, runs in table.items() if name not in incomplete}
    keys = dict.fromkeys((first, *usual))
    metrics = [_metric(key, whole, places, seeds) for key in keys]
    rows = _ranked_rows(whole, base, metrics, seeds)
    counts = [n for line in lines if (n := line.summary.get("victim_n")) is not None]
    limited = dict.fromkeys(line.place for line in lines if line.summary.get("demand_limited"))
    return Board(
        *(tuple(metrics), base, places, seeds, tuple(rows), incomplete),
        *(tuple(missing), tuple(limited), min(map(int, counts), default=None)),
        lines[0].summary,
    )


def _lines_by_row(lines: Iterable[BoardLine]) -> Table:
    table: dict[str, dict[tuple[str, int], BoardLine]] = {}
    for line in lines:
        runs = table.setdefault(line.scheduler, {})
        if (line.place, line.seed) in runs:
            raise DataError(
                f"{line.place}, {line.scheduler}, seed {line.seed}: this run is given twice; "
                "remove one of the two"
            )
        runs[line.place, line.seed] = line
    if not table:
        raise DataError("the leaderboard has no finished run to rank")
    return table


def _lacks(runs: Collection[tuple[str, int]], places: Iterable[str], seeds: Sequence[int]) -> str:
    gaps = {place: [seed for seed in seeds if (place, seed) not in runs] for place in places}
    texts = [f"{place} {seed_text(gap)}" for place, gap in gaps.items() if gap]
    more = f"; and {len(texts) - MOST_PLACES} more" if len(texts) > MOST_PLACES else ""
    return "; ".join(texts[:MOST_PLACES]) + more


def _baseline(table: Table, incomplete: Mapping[str, str], wanted: str | None) -> str:
    if wanted is not None and wanted not in table:
        raise unknown_name("baseline", wanted, table)
    if wanted is not None and wanted in incomplete:
        raise UsageError(f"baseline {wanted!r}: has no run for {incomplete[wanted]}")
    found = wanted or next((name for name in table if name not in incomplete), None)
    if found is None:
        name, lacks = next(iter(incomplete.items()))
        raise DataError(
            f"no scheduler has a run for every configuration and seed: {name} lacks {lacks}"
        )
    return found


def _metric(key: str, table: Table, places: Iterable[str], seeds: Sequence[int]) -> BoardMetric:
    left_out = {}
    for place in places:
        values = [
            [value_of(runs[place, seed].summary, key) for seed in seeds] for runs in table.values()
        ]
        if all(any(one.raw is None for one in row) for row in values):
            left_out[place] = next(one.reason for one in values[0] if one.raw is None)
    kept = tuple(place for place in places if place not in left_out)
    return BoardMetric(key, fold_of(CATALOGUE[key], len(kept)), kept, left_out)


def _ranked_rows(
    table: Table, base: str, metrics: Sequence[BoardMetric], seeds: Sequence[int]
) -> list[BoardRow]:
    """Return the rows, sorted by the first metric; rows that lack this metric come last."""
    samples = {
        metric.key: {name: _sample(runs, metric, seeds) for name, runs in table.items()}
        for metric in metrics
    }
    first, sorted_by = metrics[0], samples[metrics[0].key]
    better = CATALOGUE[first.key].better
    ranked = [name for name in table if all(one.raw is not None for one in sorted_by[name])]
    means = {name: fsum(float(one.raw) for one in sorted_by[name]) / len(seeds) for name in ranked}
    ranked.sort(key=means.__getitem__, reverse=better is Better.MORE)
    ranges = rank_ranges([sorted_by[name] for name in ranked], better)
    ranks = dict(zip(ranked, ranges, strict=True))
    return [
        BoardRow(
            name,
            ranks.get(name),
            {
                one.key: score(
                    samples[one.key][name], samples[one.key][base], one.fold, CATALOGUE[one.key]
                )
                for one in metrics
            },
        )
        for name in [*ranked, *(name for name in table if name not in ranks)]
    ]


def _sample(
    runs: Mapping[tuple[str, int], BoardLine], metric: BoardMetric, seeds: Sequence[int]
) -> list[Value]:
    if not metric.places:
        return [ABSENT] * len(seeds)
    return [
        folded(
            [value_of(runs[place, seed].summary, metric.key) for place in metric.places],
            metric.fold,
        )
        for seed in seeds
    ]


def board_json(board: Board) -> dict[str, Any]:
    """Return the leaderboard as JSON types, with None for undefined and unknown values."""
    return {
        "level": significance.LEVEL,
        "baseline": board.baseline,
        "places": list(board.places),
        "seeds": list(board.seeds),
        "metrics": [
            {
                "metric": one.key,
                "better": CATALOGUE[one.key].better.value,
                "folded": one.fold.value,
                "places": list(one.places),
                "left_out": dict(one.left_out),
            }
            for one in board.metrics
        ],
        "rows": [_row_json(row) for row in board.rows],
        "incomplete": dict(board.incomplete),
        "missing": [one._asdict() for one in board.missing],
        "demand_limited": list(board.demand_limited),
        "fewest_latencies": board.fewest,
    }


def _row_json(row: BoardRow) -> dict[str, Any]:
    ranks = row.ranks._asdict() if row.ranks else {"rank": None, "first": None, "last": None}
    return {
        "scheduler": row.name,
        **ranks,
        "scores": {
            key: {**one._asdict(), "against": one.against.value if one.against else None}
            for key, one in row.scores.items()
        },
    }
