"""Metrics of latency: of requests, of programs, and of the sending of the load."""

from __future__ import annotations

import re
from dataclasses import replace

from fairbench.metrics.metric import Better, Display, Form, Kind, Metric, Of, Presence, Shown
from fairbench.metrics.reasons import LATENCIES, NO_COHORT, NO_VICTIM, NOT_SENT, STATISTICS
from fairbench.metrics.tail import P95, P99, TAILS


def of_requests(statistic: str, latency: str) -> Metric:
    """Return the metric for a statistic, such as p90, of a latency of all completed requests."""
    known = "tpot" if (statistic, latency) == ("mean", "itl") else latency
    return Metric(
        key=f"{statistic}_{latency}_ms",
        heading=f"{statistic} {latency.upper()}",
        unit="ms",
        better=Better.LESS,
        undefined=LATENCIES[known],
    )


def chosen_metric(key: str) -> Metric | None:
    """Return the entry of a user-chosen percentile (``metrics.percentiles``), None for others."""
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
        presence=Presence.OPTIONAL,
    )


VICTIM_P50 = Metric(
    key="victim_p50_s",
    heading="well-behaved P50",
    column="P50\ns",
    unit="s",
    better=Better.LESS,
    form=Form.SECONDS,
    digits=1,
    undefined=NO_VICTIM,
    presence=Presence.ALWAYS,
    shown=(
        Shown(Display.COMPARISON, 6, dropped=3),
        Shown(Display.REPEATS, 12),
        Shown(Display.LIVE, 9),
    ),
)
CLIENT_P50 = Metric(
    key="p50_s",
    heading="P50",
    column="P50\ns",
    unit="s",
    better=Better.LESS,
    of=Of.CLIENT,
    form=Form.SECONDS,
    digits=1,
    undefined=NO_COHORT,
    presence=Presence.ALWAYS,
    shown=(
        Shown(Display.CLIENTS, 5),
        Shown(Display.COMPARED_CLIENTS, 3),
        Shown(Display.REPEATED_CLIENTS, 4),
        Shown(Display.LIVE_CLIENTS, 2),
    ),
)

METRICS = (
    *(of_requests(statistic, latency) for latency in LATENCIES for statistic in STATISTICS),
    VICTIM_P50,
    *(
        Metric(
            key=f"victim_p{tail}_s",
            heading=f"well-behaved P{tail}",
            column=f"P{tail}\ns",
            unit="s",
            better=Better.LESS,
            form=Form.SECONDS,
            digits=1,
            undefined=NO_VICTIM,
            presence=Presence.ALWAYS if tail == P99 else Presence.OPTIONAL,
            tail=tail,
            shown=(
                Shown(Display.HEADLINES, 2, heading=f"well-behaved P{tail}", note="{latency}"),
                Shown(Display.COMPARISON, 7),
                Shown(Display.REPEATS, 13),
                Shown(Display.SEEDS, 2),
                Shown(Display.LIVE, 10),
            ),
        )
        for tail in TAILS
    ),
    Metric(
        key="victim_n",
        heading="fewest latencies of a well-behaved client",
        kind=Kind.COUNT,
        presence=Presence.IN_REPORTS,
    ),
    CLIENT_P50,
    *(
        replace(
            CLIENT_P50,
            key=f"p{rank}_s",
            heading=f"P{rank}",
            column=f"P{rank}\ns",
            presence=Presence.ALWAYS if rank != P95 else Presence.OPTIONAL,
            tail=rank,
            shown=tuple(Shown(display, position + 1) for display, position, *_ in CLIENT_P50.shown),
        )
        for rank in TAILS
    ),
    Metric(
        key="latency_n",
        heading="n",
        of=Of.CLIENT,
        kind=Kind.COUNT,
        shown=(Shown(Display.CLIENTS, 7, dropped=2),),
    ),
    Metric(
        key="latency_unfinished",
        heading="n unfinished",
        better=Better.LESS,
        of=Of.CLIENT,
        kind=Kind.COUNT,
    ),
    Metric(
        key="latency_refused",
        heading="n refused",
        better=Better.LESS,
        of=Of.CLIENT,
        kind=Kind.COUNT,
    ),
    *(
        Metric(
            key=f"lateness_{statistic}_ms",
            heading=f"{statistic} lateness of the load",
            unit="ms",
            undefined=NOT_SENT,
        )
        for statistic in ("p50", "p99", "max")
    ),
    Metric(key="held", heading="requests queued by a limit on concurrency", kind=Kind.COUNT),
)
