"""Several runs of one experiment, combined by ``results.intervals``, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from fairbench.report.table import basis
from fairbench.results.store import Summary

SHOWN = (
    ("service_rate_tok_s", "service, tok/s", 0),
    ("actual_service_tok_s", "actual service, tok/s", 0),
    ("output_rate_tok_s", "output, tok/s", 0),
    ("cache_hit_rate", "cache hit", 3),
    ("jain_index", "Jain index", 3),
    ("jain_index_actual", "Jain index, actual service", 3),
    ("jain_index_maxmin", "Jain index of a max-min allocation", 3),
    ("jain_index_entitlement", "Jain index per entitlement", 3),
    ("min_entitlement_ratio", "worst share of entitlement", 3),
    ("max_service_gap", "largest service gap, tokens", 0),
    ("service_gap_bound", "bound on the gap, tokens", 0),
    ("victim_p50_s", "well-behaved P50, s", 1),
    ("victim_p99_s", "well-behaved P99, s", 1),
)


def as_lines(combined: Summary) -> Iterator[str]:
    """The combined summary for people, at most 100 columns."""
    seeds = combined["seeds"]
    yield f"{basis(combined)}, dp {combined['dp']}, scheduler {combined['scheduler']}"
    yield f"workload {combined['workload']}, scenario {combined['scenario']}, " + (
        f"{len(seeds)} runs, seeds {seeds[0]} to {seeds[-1]}: mean [95% bootstrap interval]"
    )
    for label, text in results_of(combined):
        yield f"  {label:36}{text}"
    for client in combined["clients"]:
        behaviour = "misbehaves" if client["misbehaving"] else "well-behaved"
        rate = show(client["service_rate_tok_s"], 0)
        yield f"  {client['client'] + ', ' + behaviour + ', tok/s':36.36}{rate}"


def results_of(combined: Summary) -> Iterator[tuple[str, str]]:
    """The numbers over all clients: what each line is about, and what it says."""
    for key, label, digits in SHOWN:
        interval = combined[key]
        some = interval is not None and interval["runs"] < combined["num_runs"]
        of_runs = f" ({interval['runs']} of {combined['num_runs']} runs)" if some else ""
        yield label, f"{show(interval, digits)}{of_runs}"


def show(interval: Summary | None, digits: int) -> str:
    """``mean [low, high]``, with > or < for a lower or upper bound, or - if no run defines it."""
    if interval is None:
        return "-"
    mean, low, high = (f"{interval[key]:,.{digits}f}" for key in ("mean", "low", "high"))
    sign = "> " if interval.get("lower_bound") else "< " if interval.get("upper_bound") else ""
    return f"{sign}{mean} [{low}, {high}]"
