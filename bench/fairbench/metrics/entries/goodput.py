"""Metrics of latency targets. A run without targets has none of these metrics."""

from __future__ import annotations

from fairbench.metrics.metric import BOTH, COUNT, LESS, MORE, Display, Form, Metric, Needs, Shown
from fairbench.metrics.reasons import EMPTY_WINDOW

NOTHING_ASKED = "no request arrived in the window"
CACHED = frozenset({Needs.CACHED})
NONE_MET = "no request kept its targets"

METRICS = (
    Metric("goodput_req_s", "requests within their targets", unit="1/s", better=MORE, of=BOTH,
        digits=2, undefined=EMPTY_WINDOW, shown=(Shown(Display.REPEATS, 15),)),
    Metric("goodput_tok_s", "goodput", column="goodput\ntok/s", unit="tok/s", better=MORE,
        of=BOTH, undefined=EMPTY_WINDOW,
        shown=(Shown(Display.CLIENTS, 10, dropped=0), Shown(Display.COMPARISON, 11, dropped=0),
            Shown(Display.REPEATS, 16))),
    Metric("goodput_ratio", "requests within their targets", column="on\ntime",
        better=MORE, of=BOTH, form=Form.PERCENT, most=1.0, undefined=NOTHING_ASKED,
        shown=(Shown(Display.HEADLINES, 5, heading="on time", note="of the requests asked for"),
            Shown(Display.CLIENTS, 9), Shown(Display.COMPARISON, 9),
            Shown(Display.COMPARED_CLIENTS, 8), Shown(Display.REPEATS, 17, heading="on time"))),
    Metric("goodput_min_ratio", "on time, worst client", column="worst\non time", better=MORE,
        form=Form.PERCENT, most=1.0, undefined=NOTHING_ASKED,
        shown=(Shown(Display.COMPARISON, 10), Shown(Display.REPEATS, 18))),
    Metric("goodput_jain_index", "Jain index of goodput", better=MORE, form=Form.INDEX,
        most=1.0, undefined=NONE_MET, shown=(Shown(Display.REPEATS, 19),)),
    Metric("goodput_worst_share", "minimum fair share of goodput", better=MORE,
        form=Form.PERCENT, most=1.0, undefined=NONE_MET, shown=(Shown(Display.REPEATS, 20),)),
    Metric("goodput_slack_p50_s", "median time left of those within their targets", unit="s",
        better=MORE, undefined=NONE_MET),
    Metric("goodput_late_p50_s", "median time by which finished requests missed", unit="s",
        better=LESS, undefined="no request that finished missed its targets"),
    Metric("goodput_wasted_tokens", "tokens computed for requests that missed", unit="tokens",
        better=LESS, kind=COUNT, needs=CACHED),
    Metric("goodput_wasted_ratio", "part of the tokens computed for requests that missed",
        better=LESS, form=Form.PERCENT, most=1.0, undefined="nothing was computed",
        needs=CACHED),
)  # fmt: skip
