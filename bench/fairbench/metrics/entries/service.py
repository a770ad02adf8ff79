"""Metrics of service: how much the cluster and its clients got, and from what."""

from __future__ import annotations

from fairbench.metrics.fit_domain import outside_fit_ratio
from fairbench.metrics.gpu_time import gpu_time, gpu_time_of_clients
from fairbench.metrics.hidden_backlog import lone_tpot_ratio
from fairbench.metrics.metric import (
    ALWAYS,
    BOTH,
    CLIENT,
    IN_REPORTS,
    MORE,
    Display,
    Form,
    Kind,
    Metric,
    Needs,
    Shown,
)
from fairbench.metrics.reasons import EMPTY_WINDOW, NO_TIME

METRICS = (
    Metric("service_rate_tok_s", "service", unit="tok/s", better=MORE, of=BOTH,
        undefined=EMPTY_WINDOW, presence=ALWAYS,
        shown=(Shown(Display.CLIENTS, 1),
            Shown(Display.HEADLINES, 4, heading="service", form=Form.WHOLE,
                note="input + 2 x output tok/s"),
            Shown(Display.COMPARISON, 3), Shown(Display.COMPARED_CLIENTS, 1),
            Shown(Display.REPEATS, 1), Shown(Display.SEEDS, 4, form=Form.WHOLE),
            Shown(Display.REPEATED_CLIENTS, 1), Shown(Display.LIVE, 1),
            Shown(Display.LIVE_CLIENTS, 1))),
    Metric("cache_hit_rate", "cache hit", column="cache\nhit", better=MORE, of=BOTH,
        form=Form.PERCENT, most=1.0, undefined="no request was admitted",
        needs=frozenset({Needs.CACHED}), presence=ALWAYS,
        shown=(Shown(Display.CLIENTS, 8, dropped=4), Shown(Display.COMPARED_CLIENTS, 7),
            Shown(Display.REPEATS, 4), Shown(Display.REPEATED_CLIENTS, 6),
            Shown(Display.LIVE, 5))),
    Metric("actual_service_tok_s", "actual service", column="actual\ntok/s", unit="tok/s",
        better=MORE, of=BOTH, undefined=EMPTY_WINDOW, needs=frozenset({Needs.CACHED}),
        presence=ALWAYS,
        shown=(Shown(Display.CLIENTS, 3, dropped=1), Shown(Display.REPEATS, 2),
            Shown(Display.REPEATED_CLIENTS, 2))),
    Metric("useful_service_tok_s", "useful service", column="useful\ntok/s", unit="tok/s",
        better=MORE, of=CLIENT, undefined=EMPTY_WINDOW,
        shown=(Shown(Display.CLIENTS, 2, dropped=1),)),
    Metric("output_rate_tok_s", "output", unit="tok/s", better=MORE, undefined=EMPTY_WINDOW,
        shown=(Shown(Display.REPEATS, 3), Shown(Display.LIVE, 2))),
    Metric("extend_rate_tok_s", "computed input", unit="tok/s", undefined=EMPTY_WINDOW,
        needs=frozenset({Needs.CACHED}), shown=(Shown(Display.LIVE, 3),)),
    Metric("extend_throughput", "computed input of the whole run", unit="tok/s",
        undefined=NO_TIME, needs=frozenset({Needs.CACHED})),
    Metric("queue_empty_share", "queues empty", form=Form.PERCENT, most=1.0,
        undefined="the window is empty", presence=IN_REPORTS),
    Metric("demand_limited", "limited by demand", kind=Kind.FLAG,
        undefined="in older runs where the server did not report admissions",
        presence=IN_REPORTS),
    Metric("gpu_s", "busy time", column="busy\ns", unit="s", of=BOTH, digits=1,
        undefined="nothing was simulated, or the records are older than this metric",
        compute=gpu_time, compute_clients=gpu_time_of_clients,
        shown=(Shown(Display.CLIENTS, 11, dropped=-1),)),
    Metric("outside_fit_ratio", "busy time outside the timing profile's fit", form=Form.PERCENT,
        undefined="nothing was simulated, or nobody knows what the timing profile was fitted to",
        compute=outside_fit_ratio),
    Metric("lone_tpot_ratio", "time per output token over that of a lone request",
        undefined="nothing was simulated, or no request of the window made two tokens",
        compute=lone_tpot_ratio),
)  # fmt: skip
