"""Metrics of latency targets. A run without targets has none of these metrics."""

from __future__ import annotations

from fairbench.metrics.metric import Better, Display, Form, Kind, Metric, Needs, Of, Shown
from fairbench.metrics.reasons import EMPTY_WINDOW

NOTHING_ASKED = "nothing of it arrived in the window"
CACHED = frozenset({Needs.CACHED})
NONE_MET = "no request kept its targets"

METRICS = (
    Metric(
        key="goodput_req_s",
        heading="requests within their targets",
        unit="1/s",
        better=Better.MORE,
        of=Of.BOTH,
        digits=2,
        undefined=EMPTY_WINDOW,
        shown=(Shown(Display.REPEATS, 15),),
    ),
    Metric(
        key="goodput_tok_s",
        heading="goodput",
        column="goodput\ntok/s",
        unit="tok/s",
        better=Better.MORE,
        of=Of.BOTH,
        undefined=EMPTY_WINDOW,
        shown=(
            Shown(Display.CLIENTS, 10, dropped=0),
            Shown(Display.COMPARISON, 11, dropped=0),
            Shown(Display.REPEATS, 16),
        ),
    ),
    Metric(
        key="goodput_ratio",
        heading="requests within their targets",
        column="on\ntime",
        better=Better.MORE,
        of=Of.BOTH,
        form=Form.PERCENT,
        digits=3,
        most=1.0,
        undefined=NOTHING_ASKED,
        shown=(
            Shown(Display.HEADLINES, 5, heading="on time", note="of the requests asked for"),
            Shown(Display.CLIENTS, 9),
            Shown(Display.COMPARISON, 9),
            Shown(Display.COMPARED_CLIENTS, 8),
            Shown(Display.REPEATS, 17, heading="on time"),
        ),
    ),
    Metric(
        key="goodput_min_ratio",
        heading="on time, worst client",
        column="worst\non time",
        better=Better.MORE,
        form=Form.PERCENT,
        digits=3,
        most=1.0,
        undefined=NOTHING_ASKED,
        shown=(Shown(Display.COMPARISON, 10), Shown(Display.REPEATS, 18)),
    ),
    Metric(
        key="goodput_jain_index",
        heading="Jain index of goodput",
        better=Better.MORE,
        form=Form.INDEX,
        digits=3,
        most=1.0,
        undefined=NONE_MET,
        shown=(Shown(Display.REPEATS, 19),),
    ),
    Metric(
        key="goodput_worst_share",
        heading="minimum fair share of goodput",
        better=Better.MORE,
        form=Form.PERCENT,
        digits=3,
        most=1.0,
        undefined=NONE_MET,
        shown=(Shown(Display.REPEATS, 20),),
    ),
    Metric(
        key="goodput_slack_p50_s",
        heading="median time left of those within their targets",
        unit="s",
        better=Better.MORE,
        undefined=NONE_MET,
    ),
    Metric(
        key="goodput_late_p50_s",
        heading="median time by which finished requests missed",
        unit="s",
        better=Better.LESS,
        undefined="no request that finished missed its targets",
    ),
    Metric(
        key="goodput_wasted_tokens",
        heading="tokens computed for requests that missed",
        unit="tokens",
        better=Better.LESS,
        kind=Kind.COUNT,
        needs=CACHED,
    ),
    Metric(
        key="goodput_wasted_ratio",
        heading="part of the tokens computed for requests that missed",
        better=Better.LESS,
        form=Form.PERCENT,
        most=1.0,
        undefined="nothing was computed",
        needs=CACHED,
    ),
)
