"""Metrics of service: how much the cluster and its clients got, and from what."""

from __future__ import annotations

from fairbench.metrics.fit_domain import outside_fit_ratio
from fairbench.metrics.gpu_time import gpu_time, gpu_time_of_clients
from fairbench.metrics.hidden_backlog import lone_tpot_ratio
from fairbench.metrics.metric import Better, Display, Form, Kind, Metric, Needs, Of, Presence, Shown
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
            Shown(Display.CLIENTS, 2),
            Shown(
                Display.HEADLINES,
                4,
                heading="service",
                form=Form.WHOLE,
                note="input + 2 x output tok/s",
            ),
            Shown(Display.COMPARISON, 3),
            Shown(Display.COMPARED_CLIENTS, 1),
            Shown(Display.REPEATS, 1),
            Shown(Display.SEEDS, 4, form=Form.WHOLE),
            Shown(Display.REPEATED_CLIENTS, 1),
            Shown(Display.LIVE, 1),
            Shown(Display.LIVE_CLIENTS, 1),
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
        most=1.0,
        undefined="no request was admitted",
        needs=frozenset({Needs.CACHED}),
        presence=Presence.ALWAYS,
        shown=(
            Shown(Display.CLIENTS, 8, dropped=4),
            Shown(Display.COMPARED_CLIENTS, 7),
            Shown(Display.REPEATS, 4),
            Shown(Display.REPEATED_CLIENTS, 6),
            Shown(Display.LIVE, 5),
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
            Shown(Display.CLIENTS, 3, dropped=1),
            Shown(Display.REPEATS, 2),
            Shown(Display.REPEATED_CLIENTS, 2),
        ),
    ),
    Metric(
        key="output_rate_tok_s",
        heading="output",
        unit="tok/s",
        better=Better.MORE,
        undefined=EMPTY_WINDOW,
        shown=(Shown(Display.REPEATS, 3), Shown(Display.LIVE, 2)),
    ),
    Metric(
        key="extend_rate_tok_s",
        heading="computed input",
        unit="tok/s",
        undefined=EMPTY_WINDOW,
        needs=frozenset({Needs.CACHED}),
        shown=(Shown(Display.LIVE, 3),),
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
        most=1.0,
        undefined="the window is empty",
        presence=Presence.IN_REPORTS,
    ),
    Metric(
        key="demand_limited",
        heading="limited by demand",
        kind=Kind.FLAG,
        undefined="in older runs where the server did not report admissions",
        presence=Presence.IN_REPORTS,
    ),
    Metric(
        key="gpu_s",
        heading="busy time",
        column="busy\ns",
        unit="s",
        of=Of.BOTH,
        digits=1,
        undefined="nothing was simulated, or the records are older than this metric",
        shown=(Shown(Display.CLIENTS, 11, dropped=-1),),
        compute=gpu_time,
        compute_clients=gpu_time_of_clients,
    ),
    Metric(
        key="outside_fit_ratio",
        heading="busy time outside the timing profile's fit",
        form=Form.PERCENT,
        undefined="nothing was simulated, or nobody knows what the timing profile was fitted to",
        compute=outside_fit_ratio,
    ),
    Metric(
        key="lone_tpot_ratio",
        heading="time per output token over that of a lone request",
        undefined="nothing was simulated, or no request of the window made two tokens",
        compute=lone_tpot_ratio,
    ),
)
