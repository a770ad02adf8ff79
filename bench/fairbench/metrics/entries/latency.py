"""Metrics of latency: of requests, of programs, and of the sending of the load."""

from __future__ import annotations

import re
from dataclasses import replace

from fairbench.metrics.metric import (
    ALWAYS,
    CLIENT,
    COUNT,
    IN_REPORTS,
    LESS,
    OPTIONAL,
    Display,
    Form,
    Metric,
    Shown,
)
from fairbench.metrics.reasons import LATENCIES, NO_COHORT, NO_VICTIM, NOT_SENT, STATISTICS
from fairbench.metrics.tail import P95, P99, TAILS


def of_requests(statistic: str, latency: str) -> Metric:
    """Return the metric for a statistic, such as p90, of a latency of all completed requests."""
    known = "tpot" if (statistic, latency) == ("mean", "itl") else latency
    return Metric(
        key=f"{statistic}_{latency}_ms",
        heading=f"{statistic} {latency.upper()}",
        unit="ms",
        better=LESS,
        undefined=LATENCIES[known],
    )


def chosen_metric(key: str) -> Metric | None:
    """Return the entry of a user-chosen percentile (``chosen_percentiles``), or None for others."""
    match = re.fullmatch(r"(victim_)?p([1-9][0-9]?)_(s|(?:ttft|tpot|e2el)_ms)", key)
    if match is None or (match[1] and match[3] != "s"):
        return None
    rank = int(match[2])
    if match[3] != "s":
        return of_requests(f"p{rank}", match[3].removesuffix("_ms"))
    usual = VICTIM_P50 if match[1] else CLIENT_P50
    return replace(
        usual,
        key=key,
        heading=usual.heading.replace("50", str(rank)),
        column=usual.column.replace("50", str(rank)),
        presence=OPTIONAL,
    )


VICTIM_P50 = Metric("victim_p50_s", "well-behaved P50", column="P50\ns", unit="s", better=LESS,
    form=Form.SECONDS, undefined=NO_VICTIM, presence=ALWAYS,
    shown=(Shown(Display.COMPARISON, 6, dropped=3), Shown(Display.REPEATS, 12),
        Shown(Display.LIVE, 9)))  # fmt: skip
CLIENT_P50 = Metric("p50_s", "P50", column="P50\ns", unit="s", better=LESS, of=CLIENT,
    form=Form.SECONDS, undefined=NO_COHORT, presence=ALWAYS,
    shown=(Shown(Display.CLIENTS, 5), Shown(Display.COMPARED_CLIENTS, 3),
        Shown(Display.REPEATED_CLIENTS, 4), Shown(Display.LIVE_CLIENTS, 2)))  # fmt: skip

METRICS = (
    *(of_requests(statistic, latency) for latency in LATENCIES for statistic in STATISTICS),
    VICTIM_P50,
    *(
        Metric(f"victim_p{tail}_s", f"well-behaved P{tail}", column=f"P{tail}\ns", unit="s",
            better=LESS, form=Form.SECONDS, undefined=NO_VICTIM,
            presence=ALWAYS if tail == P99 else OPTIONAL, tail=tail,
            shown=(
                Shown(Display.HEADLINES, 2, heading=f"well-behaved P{tail}", note="{latency}"),
                Shown(Display.COMPARISON, 7), Shown(Display.REPEATS, 13),
                Shown(Display.SEEDS, 2), Shown(Display.LIVE, 10)))
        for tail in TAILS
    ),
    Metric("victim_n", "fewest latencies of a well-behaved client", kind=COUNT,
        presence=IN_REPORTS),
    CLIENT_P50,
    *(
        replace(CLIENT_P50, key=f"p{rank}_s", heading=f"P{rank}", column=f"P{rank}\ns",
            presence=ALWAYS if rank != P95 else OPTIONAL, tail=rank,
            shown=tuple(Shown(display, position + 1) for display, position, *_ in CLIENT_P50.shown))
        for rank in TAILS
    ),
    Metric("latency_n", "n", of=CLIENT, kind=COUNT,
        shown=(Shown(Display.CLIENTS, 7, dropped=2),)),
    Metric("latency_unfinished", "n unfinished", better=LESS, of=CLIENT, kind=COUNT),
    Metric("latency_refused", "n refused", better=LESS, of=CLIENT, kind=COUNT),
    *(
        Metric(f"lateness_{statistic}_ms", f"{statistic} lateness of the load", unit="ms",
            undefined=NOT_SENT)
        for statistic in ("p50", "p99", "max")
    ),
    Metric("held", "requests queued by a limit on concurrency", kind=COUNT),
)  # fmt: skip
