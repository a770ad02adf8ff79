"""A test of fairbench's main conclusions with wrong timing profiles.

    fairbench sweep results/tables/profile-error.toml
    python studies profile-error results/runs/profile-error

The script writes results/tables/profile-error.csv. Schedulers are compared in runs with equal
seeds, in which the timing profile has the same random error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fairbench.config.sweep import read_sweep
from fairbench.hardware.catalogue import MEASURED
from fairbench.results.store import Summary, runs_in
from fairbench_studies.dlpm.claims.pairs import Pair
from fairbench_studies.dlpm.claims.places import contended
from fairbench_studies.kit.outcomes import Outcome, Seen
from fairbench_studies.kit.rows import ROOT, write_rows

SWEEP = ROOT / "results/tables/profile-error.toml"
TABLE = SWEEP.with_suffix(".csv")
CONCLUSIONS = (
    Pair("throughput, D2LPM over VTC", "service_rate_tok_s", "d2lpm", "vtc"),
    Pair("throughput, D2LPM over RR+LPM", "service_rate_tok_s", "d2lpm", "lpm"),
    Pair("well-behaved P95, RR+LPM over D2LPM", "victim_p95_s", "lpm", "d2lpm"),
    Pair("well-behaved P95, VTC over D2LPM", "victim_p95_s", "vtc", "d2lpm"),
    Pair("Jain's index, VTC over D2LPM", "jain_index", "vtc", "d2lpm", 0.0, is_ratio=False),
    Pair("Jain's index, D2LPM over RR+LPM", "jain_index", "d2lpm", "lpm", 0.0, is_ratio=False),
)
AS_IT_IS, OTHER = "no error", "operator profile"
LEVELS = {0.0: AS_IT_IS, 10.0: "10%", 20.0: "20%", 40.0: "40%"}
COLUMNS = (*LEVELS.values(), OTHER)

Seeds = Mapping[str, Mapping[int, Summary]]
"""The summaries of runs with the same timing profile, keyed by scheduler and seed."""


def column_of(summary: Summary) -> str:
    """Return the heading of the table column to which a run belongs."""
    if not summary["timing_profile"].endswith(MEASURED):
        return OTHER
    return LEVELS[float(summary.get("timing_error_pct") or 0.0)]


def asked(pair: Pair, runs: Seeds) -> list[Seen]:
    """Return, for each seed, the value that is compared with the threshold of a conclusion."""
    return [
        pair.seen({name: {seed: runs[name][seed]} for name in pair.compared})
        for seed in sorted(runs[pair.above])
    ]


def competed(pair: Pair, runs: Seeds) -> bool:
    """Return whether clients competed for service in the runs of the compared schedulers."""
    return contended(runs[name] for name in pair.compared)


def sign(pair: Pair, seen: Seen) -> Outcome:
    """Return the verdict on a statement about two schedulers, judged from a single seed."""
    if seen.low is not None and seen.low > pair.flip:
        return Outcome.HOLDS
    reversed_ = seen.high is not None and seen.high < pair.flip
    return Outcome.REVERSED if reversed_ else Outcome.INCONCLUSIVE


def shown(pair: Pair, seen: Sequence[Seen]) -> str:
    """Return the range of values over seeds as text, such as ``1.08x to 1.23x``.

    A value that is only a bound begins with ``<`` or ``>``.
    """
    values = sorted((one.value, one.bound) for one in seen if one.value is not None)
    if not values:
        return "-"
    unit, digits = ("x", 2) if pair.is_ratio else ("", 3)
    sign = "" if pair.is_ratio else "+"
    ends = [f"{bound}{value:{sign},.{digits}f}{unit}" for value, bound in (values[0], values[-1])]
    return " to ".join(dict.fromkeys(ends))


def verdict(signs: Mapping[str, Sequence[Outcome]]) -> str:
    """Return a text that names the timing profile's errors that reverse the study's conclusion."""
    usual = set(signs[AS_IT_IS])
    if len(usual) > 1:
        counts = Counter(signs[AS_IT_IS])
        return "inconclusive without error: " + ", ".join(
            f"{n} {name}" for name, n in counts.items()
        )
    flips = [column for column in COLUMNS if set(signs[column]) != usual]
    said = "holds" if usual == {Outcome.HOLDS} else "reversed"
    return f"{said}; " + (f"not at {', '.join(flips)}" if flips else "the sign never changes")


def table(summaries: Iterable[Summary]) -> list[dict[str, str]]:
    """Return a table row for each main conclusion and configuration."""
    cells: dict[str, dict[str, dict[str, dict[int, Summary]]]] = {}
    for summary in summaries:
        of_cell = cells.setdefault(f"{summary['workload']} {summary['scenario']}", {})
        of = of_cell.setdefault(column_of(summary), {}).setdefault(summary["scheduler"], {})
        of[summary["seed"]] = summary
    rows: list[dict[str, str]] = []
    for cell, columns in cells.items():
        for pair in CONCLUSIONS:
            found = {column: asked(pair, columns[column]) for column in COLUMNS}
            row = {
                column: shown(pair, seen)
                + ("" if competed(pair, columns[column]) else " (not contended)")
                for column, seen in found.items()
            }
            signs = {column: [sign(pair, one) for one in seen] for column, seen in found.items()}
            rows.append(
                {"configuration": cell, "conclusion": pair.name, **row, "verdict": verdict(signs)}
            )
    return rows


def main(folder: str) -> None:
    """Test each of ``CONCLUSIONS`` with the runs in ``folder``, and write profile-error.csv."""
    order = [grid["workload"] for grid in read_sweep(str(SWEEP)).grid]
    summaries = [run.summary for run in runs_in(Path(folder) / "runs")]
    rows = table(sorted(summaries, key=lambda one: order.index(one["workload"])))
    write_rows(TABLE, rows)
