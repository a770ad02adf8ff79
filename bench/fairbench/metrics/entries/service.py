"""How much service the cluster and its clients got, and from what."""

from __future__ import annotations

from fairbench.metrics.metric import Better, Form, Kind, Metric, Needs, Of, Presence, Shown, Table
from fairbench.metrics.reasons import EMPTY_WINDOW, NO_TIME

METRICS = (
    Metric(
        key="service_rate_tok_s",
        heading="service",
        unit="tok/s",
        better=Better.MORE,
        of=Of.BOTH,
        undefined=EMPTY_WINDOW,
        presence=Presence.ALWAYS,
        shown=(
            Shown(Table.CLIENTS, 2),
            Shown(
                Table.HEADLINES,
                4,
                heading="service",
                form=Form.WHOLE,
                note="input + 2 x output tok/s",
            ),
            Shown(Table.COMPARISON, 3),
            Shown(Table.COMPARED_CLIENTS, 1),
            Shown(Table.REPEATS, 1),
            Shown(Table.SEEDS, 4, form=Form.WHOLE),
            Shown(Table.REPEATED_CLIENTS, 1),
            Shown(Table.LIVE, 1),
            Shown(Table.LIVE_CLIENTS, 1),
        ),
    ),
    Metric(
        key="cache_hit_rate",
        heading="cache hit",
        column="cache\nhit",
        better=Better.MORE,
        of=Of.BOTH,
        form=Form.PERCENT,
        digits=3,
        undefined="no request was admitted",
        needs=frozenset({Needs.CACHED}),
        presence=Presence.ALWAYS,
        shown=(
            Shown(Table.CLIENTS, 8, dropped=4),
            Shown(Table.COMPARED_CLIENTS, 7),
            Shown(Table.REPEATS, 4),
            Shown(Table.REPEATED_CLIENTS, 6),
            Shown(Table.LIVE, 5),
        ),
    ),
    Metric(
        key="actual_service_tok_s",
        heading="actual service",
        column="actual\ntok/s",
        unit="tok/s",
        better=Better.MORE,
        of=Of.BOTH,
        undefined=EMPTY_WINDOW,
        needs=frozenset({Needs.CACHED}),
        presence=Presence.ALWAYS,
        shown=(
            Shown(Table.CLIENTS, 3, dropped=1),
            Shown(Table.REPEATS, 2),
            Shown(Table.REPEATED_CLIENTS, 2),
        ),
    ),
    Metric(
        key="output_rate_tok_s",
        heading="output",
        unit="tok/s",
        better=Better.MORE,
        undefined=EMPTY_WINDOW,
        shown=(Shown(Table.REPEATS, 3), Shown(Table.LIVE, 2)),
    ),
    Metric(
        key="extend_rate_tok_s",
        heading="computed input",
        unit="tok/s",
        undefined=EMPTY_WINDOW,
        needs=frozenset({Needs.CACHED}),
        shown=(Shown(Table.LIVE, 3),),
    ),
    Metric(
        key="extend_throughput",
        heading="computed input of the whole run",
        unit="tok/s",
        undefined=NO_TIME,
        needs=frozenset({Needs.CACHED}),
    ),
    Metric(
        key="queue_empty_share",
        heading="queues empty",
        form=Form.PERCENT,
        undefined="the window is empty",
        needs=frozenset({Needs.ADMISSION}),
        presence=Presence.IN_REPORTS,
    ),
    Metric(
        key="demand_limited",
        heading="limited by demand",
        kind=Kind.FLAG,
        needs=frozenset({Needs.ADMISSION}),
        presence=Presence.IN_REPORTS,
    ),
)
