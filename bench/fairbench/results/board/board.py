"""The leaderboard: a row per scheduler, over configurations and seeds that all rows share.

A row that lacks a run of a configuration or seed has no rank and no numbers: it is named with the
missing runs. A metric that no row has at a configuration is named, too, and leaves that
configuration out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.metrics.catalogue import CATALOGUE, key_of
from fairbench.metrics.metric import Better
from fairbench.metrics.shown_percentiles import shown_tail
from fairbench.results.board.fold import Fold, Ranks, Score, fold_of, folded, rank_ranges, score
from fairbench.results.board.stored import Line, Missing
from fairbench.results.intervals import LEVEL
from fairbench.results.pair_comparison import seed_text
from fairbench.results.values import ABSENT, Value, more_is_better, value_of

MOST_PLACES = 3  # limit on the missing runs of a row that are named
MIN_SHARE = "min_entitlement_best_ratio"

Table = Mapping[str, Mapping[tuple[str, int], Line]]
"""The lines by scheduler, then by place and seed."""


@dataclass(frozen=True, slots=True)
class BoardMetric:
    """A metric of a board, the way of combining configurations, and those where it is undefined."""

    key: str
    fold: Fold
    places: tuple[str, ...]
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A scheduler. ``ranks`` is None if the sort metric is undefined."""

    name: str
    ranks: Ranks | None
    scores: Mapping[str, Score]


@dataclass(frozen=True, slots=True)
class Board:
    """The rows, best first; ``incomplete`` are schedulers without some runs."""

    metrics: tuple[BoardMetric, ...]
    baseline: str
    places: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[BoardRow, ...]
    incomplete: Mapping[str, str]
    missing: tuple[Missing, ...]
    demand_limited: tuple[str, ...]
    fewest: int | None  # the fewest latencies of a well-behaved client in any run, if known
    summary: Mapping[str, Any]  # the machine of one of the runs


def chosen(lines: Sequence[Line], places: Collection[str], rows: Collection[str]) -> list[Line]:
    """Return the lines of the given configurations and schedulers; no name means all.

    A configuration may be named by its first words, such as ``tot s1``. Raises UsageError for a
    name that matches nothing.
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
    lines: Sequence[Line],
    missing: Iterable[Missing] = (),
    *,
    sort: str | None = None,
    baseline: str | None = None,
) -> Board:
    """Return the board of some lines, sorted by a metric, against a baseline.

    Without ``sort`` the metric is the minimum fair share of the best total. Raises UsageError for
    an unknown metric or baseline, DataError if no row is whole, or for a run given twice.
    """
    table = _table(lines)
    places = tuple(dict.fromkeys(line.place for line in lines))
    seeds = tuple(sorted({line.seed for line in lines}))
    incomplete = {name: text for name in table if (text := _lacks(table[name], places, seeds))}
    base = _baseline(table, incomplete, baseline)
    tail = shown_tail(line.summary for line in lines)
    usual = ("service_rate_tok_s", MIN_SHARE, f"victim_p{tail}_s", f"sharing_incentive_p{tail}")
    first = key_of(sort or MIN_SHARE)
    more_is_better(first, [key for line in lines[:1] for key in line.summary])
    whole = {name: runs for name, runs in table.items() if name not in incomplete}
    keys = dict.fromkeys((first, *usual))
    metrics = [_metric(key, whole, places, seeds) for key in keys]
    rows = _rows(whole, base, metrics, seeds)
    counts = [n for line in lines if (n := line.summary.get("victim_n")) is not None]
    limited = dict.fromkeys(line.place for line in lines if line.summary.get("demand_limited"))
    return Board(
        *(tuple(metrics), base, places, seeds, tuple(rows), incomplete),
        *(tuple(missing), tuple(limited), min(map(int, counts), default=None)),
        lines[0].summary,
    )


def _table(lines: Iterable[Line]) -> Table:
    table: dict[str, dict[tuple[str, int], Line]] = {}
    for line in lines:
        runs = table.setdefault(line.scheduler, {})
        if (line.place, line.seed) in runs:
            raise DataError(
                f"{line.place}, {line.scheduler}, seed {line.seed}: this run is there twice; "
                "remove one"
            )
        runs[line.place, line.seed] = line
    if not table:
        raise DataError("the leaderboard has no finished run to rank")
    return table


def _lacks(runs: Collection[tuple[str, int]], places: Iterable[str], seeds: Sequence[int]) -> str:
    """Return the configurations and seeds without a run, or "" if there are none."""
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
    """Return a metric over the configurations where some row defines it in every seed."""
    left_out = {}
    for place in places:
        values = [_values(runs, place, seeds, key) for runs in table.values()]
        if all(any(one.raw is None for one in row) for row in values):
            left_out[place] = next(one.reason for one in values[0] if one.raw is None)
    kept = tuple(place for place in places if place not in left_out)
    return BoardMetric(key, fold_of(CATALOGUE[key], len(kept)), kept, left_out)


def _values(
    runs: Mapping[tuple[str, int], Line], place: str, seeds: Sequence[int], key: str
) -> list[Value]:
    return [value_of(runs[place, seed].summary, key) for seed in seeds]


def _rows(
    table: Table, base: str, metrics: Sequence[BoardMetric], seeds: Sequence[int]
) -> list[BoardRow]:
    """Return the rows in order; those without a value of the first metric come last."""
    samples = {
        metric.key: {name: _sample(runs, metric, seeds) for name, runs in table.items()}
        for metric in metrics
    }
    first, sorted_by = metrics[0], samples[metrics[0].key]
    better = CATALOGUE[first.key].better
    ranked = [name for name in table if all(one.raw is not None for one in sorted_by[name])]
    ranked.sort(key=lambda name: _mean(sorted_by[name]), reverse=better is Better.MORE)
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
    runs: Mapping[tuple[str, int], Line], metric: BoardMetric, seeds: Sequence[int]
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


def _mean(values: Sequence[Value]) -> float:
    return fsum(float(one.raw) for one in values) / len(values)


def board_json(board: Board) -> dict[str, Any]:
    """Return the board for programs; undefined and unknown values are None."""
    return {
        "level": LEVEL,
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
