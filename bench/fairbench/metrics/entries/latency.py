"""Latency of requests, of programs, and of the load itself."""

from __future__ import annotations

from fairbench.metrics.metric import Better, Display, Form, Kind, Metric, Of, Presence, Shown
from fairbench.metrics.reasons import LATENCIES, NO_COHORT, NO_VICTIM, NOT_SENT, STATISTICS
from fairbench.metrics.tail import P95, P99, TAILS

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
            presence=Presence.ALWAYS if rank != P95 else Presence.OPTIONAL,
            tail=rank if rank in TAILS else 0,
            shown=(
                Shown(Display.CLIENTS, 5 + (rank in TAILS)),
                Shown(Display.COMPARED_CLIENTS, 3 + (rank in TAILS)),
                Shown(Display.REPEATED_CLIENTS, 4 + (rank in TAILS)),
                Shown(Display.LIVE_CLIENTS, 2 + (rank in TAILS)),
            ),
        )
        for rank in (50, *TAILS)
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
