"""Sentences on a run's limit (the highest possible service), and on causes of lost GPU time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from fairbench.metrics.limit import ARRIVALS, WORK
from fairbench.report.numbers import number, percent, whole, whole_percent
from fairbench.results.store import Summary

LOSSES = {
    "recomputed": "prefixes computed again",
    "small_batches": "small batches",
    "retracted": "retractions",
    "unfinished": "unfinished requests",
    "idle_waiting": "idle while others waited",
    "idle": "idle",
}
"""Descriptions of the causes of lost GPU time, by key."""
LEAST_LOSS = 0.005  # Reports omit causes that waste less than this fraction of the GPU time.


NEEDED = (
    *("limit_ratio", "least_makespan_s"),
    *(f"time_{key}_ratio" for key in ("prefill", "decode", "small_prefill", "small_decode")),
    *(f"time_{key}_ratio" for key in LOSSES if key != "small_batches"),
)
"""The metrics that lines about a run's highest possible service need."""


def has_limit(summary: Summary) -> bool:
    """Return whether the summary contains the limit (the highest possible service) of the run."""
    return all(summary.get(key) is not None for key in NEEDED)


def losses(summary: Summary) -> dict[str, float]:
    """Return the fraction of GPU time lost to each cause in ``LOSSES``, in descending order."""
    small = summary["time_small_prefill_ratio"] + summary["time_small_decode_ratio"]
    found = {"small_batches": small} | {
        key: summary[f"time_{key}_ratio"] for key in LOSSES if key != "small_batches"
    }
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def limit_line(summary: Summary) -> str:
    """Return a line on the service, relative to the highest possible service, and lost GPU time."""
    replicas = f"{number(summary['dp'])} replica" + "s" * (summary["dp"] != 1)
    least = f"{number(summary['least_makespan_s'])} s"
    if not has_limit(summary):  # On real servers, the GPU time is unknown.
        return f"{percent(summary['limit_ratio'])} of the least time, {least} on {replicas}"
    named = _named_losses(list(losses(summary).items()))
    lost = f"; lost GPU time: {named}" if named else ""
    if summary.get("limit_cause", WORK) != WORK:
        what = "the arrivals take" if summary["limit_cause"] == ARRIVALS else "one program takes"
        needed = summary["time_prefill_ratio"] + summary["time_decode_ratio"]
        return f"{what} {least} at least; {percent(needed)} of GPU time was needed{lost}"
    return f"{percent(summary['limit_ratio'])} of what {replicas} could do{lost}"


def limit_lines(summary: Summary) -> Iterator[str]:
    """Yield lines on a run's highest possible service, or on why this service is unknown."""
    if summary.get("complete") is False and "limit_cause" in summary:
        yield "unknown, because the run is incomplete"
    elif summary.get("limit_ratio") is not None and "least_makespan_s" in summary:
        yield limit_line(summary)
        if summary.get("limit_memory_ratio") is not None:
            yield _memory_line(summary)
    elif reason := summary.get("notes", {}).get("limit"):
        yield reason


def lost_against(first: Sequence[Summary], second: Sequence[Summary], names: list[str]) -> str:
    """Say which of two schedulers loses more GPU time, and why; "" if both lose about as much.

    ``first`` and ``second`` contain one summary per seed; all runs have the same load. The text
    contains the lost GPU time by cause, as means over the seeds in percent of all GPU time.
    """
    if not all(map(has_limit, (*first, *second))):
        return ""
    more = {
        key: fmean(losses(one)[key] for one in second) - fmean(losses(one)[key] for one in first)
        for key in LOSSES
    }
    if sum(more.values()) < 0:
        names, more = names[::-1], {key: -part for key, part in more.items()}
    whole_loss = sum(more.values())
    if whole_loss < LEAST_LOSS:
        return ""
    parts = sorted(more.items(), key=lambda one: -one[1])
    causes = _named_losses([(key, part) for key, part in parts if part > 0])
    gains = _named_losses([(key, -part) for key, part in reversed(parts) if part < 0])
    saved = f"; it saves {gains}" if gains else ""
    return (
        f"{names[1]} loses {whole_percent(whole_loss)} of GPU time to {names[0]}: {causes}{saved}"
    )


def _memory_line(summary: Summary) -> str:
    """Return a line on what the KV memory allows; ratios that the line above states are omitted."""
    ratio = percent(summary["limit_memory_ratio"])
    hits = summary.get("cache_hit_rate")
    here = "" if hits is None else f"{percent(hits)}, "
    most = f"cache hits {here}at most {percent(summary['limit_hit_rate'])}"
    what = "this KV memory and order of requests"
    if ratio == percent(summary["limit_ratio"]):
        return f"{most} with {what}"
    return f"{ratio} of what {what} allow; {most}"


def _named_losses(parts: Sequence[tuple[str, float]]) -> str:
    return ", ".join(
        f"{whole_percent(part)} {LOSSES[key]}" for key, part in parts if part >= LEAST_LOSS
    )


def limit_sentences(summary: Summary) -> Iterator[str]:
    """Yield sentences that compare a run's time, service and latency with theoretical limits."""
    if not has_limit(summary):
        return
    replicas = f"{number(summary['dp'])} replica" + "s" * (summary["dp"] != 1)
    yield (
        f"No scheduler can finish these requests on {replicas} in less than "
        f"{number(summary['least_makespan_s'])} s, even if each distinct prefix is computed once "
        "in the cluster and all batches are full."
    )
    cause = summary.get("limit_cause", WORK)
    if cause != WORK:
        what = "the last requests arrive late" if cause == ARRIVALS else "one program is that long"
        yield f"More replicas would not shorten this time, because {what}."
    needed = summary["time_prefill_ratio"] + summary["time_decode_ratio"]
    yield f"The requests needed {percent(needed)} of the GPU time of this run."
    if lost := _named_losses(list(losses(summary).items())):
        yield f"The rest was lost: {lost}."
    if summary.get("limit_memory_ratio") is not None:
        yield (
            "The KV memory does not hold all distinct prefixes. In this order of requests no "
            f"eviction policy hits more than {percent(summary['limit_hit_rate'])} of the input. "
            "With that hit rate, no scheduler could finish in less than "
            f"{percent(summary['limit_memory_ratio'])} of this run's time."
        )
    if part := _part_of(summary, "service_rate_tok_s", "limit_fair_service_tok_s"):
        yield (
            f"Service was {whole_percent(part)} of the "
            f"{whole(summary['limit_fair_service_tok_s'])} tok/s that any scheduler could give at "
            "max-min fair shares."
        )
    if times := _part_of(summary, "victim_p95_s", "victim_least_p95_s"):
        least = "at least " if "victim_p95_s" in summary.get("censored", ()) else ""
        yield (
            f"The P95 of well-behaved clients is {least}{number(times)} times their P95 alone on "
            f"an idle cluster ({number(summary['victim_least_p95_s'])} s)."
        )


def _part_of(summary: Summary, key: str, limit: str) -> float | None:
    if summary.get(key) is None or not summary.get(limit):
        return None
    return float(summary[key]) / float(summary[limit])
