"""Latency of requests, of programs, and of the load itself."""

from __future__ import annotations

from fairbench.metrics.metric import Better, Display, Form, Kind, Metric, Of, Presence, Shown
from fairbench.metrics.reasons import LATENCIES, NO_COHORT, NO_VICTIM, NOT_SENT, STATISTICS

METRICS = (
    *(
        Metric(
            key=f"{statistic}_{latency}_ms",
            heading=f"{statistic} {latency.upper()}",
            unit="ms",
            better=Better.LESS,
            undefined=LATENCIES["tpot"] if (statistic, latency) == ("mean", "itl") else reason,
        )
        for latency, reason in LATENCIES.items()
        for statistic in STATISTICS
    ),
    Metric(
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
    ),
    Metric(
        key="victim_p95_s",
        heading="well-behaved P95",
        column="P95\ns",
        unit="s",
        better=Better.LESS,
        form=Form.SECONDS,
        digits=1,
        undefined=NO_VICTIM,
    ),
    Metric(
        key="victim_p99_s",
        heading="well-behaved P99",
        column="P99\ns",
        unit="s",
        better=Better.LESS,
        form=Form.SECONDS,
        digits=1,
        undefined=NO_VICTIM,
        presence=Presence.ALWAYS,
        shown=(
            Shown(Display.HEADLINES, 2, heading="well-behaved P99", note="{latency}"),
            Shown(Display.COMPARISON, 7),
            Shown(Display.REPEATS, 13),
            Shown(Display.SEEDS, 2),
            Shown(Display.LIVE, 10),
        ),
    ),
    Metric(
        key="victim_n",
        heading="smallest cohort of a well-behaved client",
        kind=Kind.COUNT,
        presence=Presence.IN_REPORTS,
    ),
    *(
        Metric(
            key=f"p{rank}_s",
            heading=f"P{rank}",
            column=f"P{rank}\ns",
            unit="s",
            better=Better.LESS,
            of=Of.CLIENT,
            form=Form.SECONDS,
            digits=1,
            undefined=NO_COHORT,
            presence=Presence.ALWAYS if rank != 95 else Presence.OPTIONAL,
            shown=()
            if rank == 95
            else (
                Shown(Display.CLIENTS, 5 + (rank == 99)),
                Shown(Display.COMPARED_CLIENTS, 3 + (rank == 99)),
                Shown(Display.REPEATED_CLIENTS, 4 + (rank == 99)),
                Shown(Display.LIVE_CLIENTS, 2 + (rank == 99)),
            ),
        )
        for rank in (50, 95, 99)
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
    Metric(key="held", heading="requests held back by a cap on concurrency", kind=Kind.COUNT),
)
