"""Metrics of some runs: latency targets, KV memory, sessions, disaggregation, comparisons."""

from __future__ import annotations

from fairbench.metrics.metric import (
    BOTH,
    CLIENT,
    COUNT,
    EMPTY_WINDOW,
    LESS,
    MORE,
    NO_COHORT,
    NO_DEMAND,
    NO_VICTIM,
    NOT_ALONE,
    NOT_ALONE_IN_MEMORY,
    Display,
    Form,
    Metric,
    Needs,
    Shown,
)
from fairbench.metrics.shown_percentiles import TAILS

CACHED = frozenset({Needs.CACHED})
NONE_MET = "no request kept its targets"

GOODPUT = (
    Metric("goodput_req_s", "requests within their targets", unit="1/s", better=MORE, of=BOTH,
        digits=2, undefined=EMPTY_WINDOW, shown=(Shown(Display.REPEATS, 15),)),
    Metric("goodput_tok_s", "goodput", column="goodput\ntok/s", unit="tok/s", better=MORE,
        of=BOTH, undefined=EMPTY_WINDOW,
        shown=(Shown(Display.CLIENTS, 10, dropped=0), Shown(Display.COMPARISON, 11, dropped=0),
            Shown(Display.REPEATS, 16))),
    Metric("goodput_ratio", "requests within their targets", column="on\ntime",
        better=MORE, of=BOTH, form=Form.PERCENT, most=1.0, undefined=NO_COHORT,
        shown=(Shown(Display.HEADLINES, 5, heading="on time", note="of the requests asked for"),
            Shown(Display.CLIENTS, 9), Shown(Display.COMPARISON, 9),
            Shown(Display.COMPARED_CLIENTS, 8), Shown(Display.REPEATS, 17, heading="on time"))),
    Metric("goodput_min_ratio", "on time, worst client", column="worst\non time", better=MORE,
        form=Form.PERCENT, most=1.0, undefined=NO_COHORT,
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


MEMORY = (
    Metric("residency_tokens", "KV memory held on average", unit="tokens", of=CLIENT,
        undefined=EMPTY_WINDOW),
    Metric("residency_ratio", "KV memory held, relative to its share", column="of memory\nshare",
        of=CLIENT, form=Form.PERCENT, undefined="no client held KV memory in the window",
        shown=(Shown(Display.CLIENTS, 13, dropped=5),)),
    Metric("evicted_tokens", "tokens lost to evictions", unit="tokens", better=LESS, of=CLIENT),
    Metric("evicted_by_others_tokens", "tokens lost to evictions for other clients",
        unit="tokens", better=LESS, of=CLIENT),
    Metric("evicted_of_others_tokens",
        "tokens that other clients lost to evictions for this client", unit="tokens",
        better=LESS, of=CLIENT),
    Metric("cache_hit_rate_alone", "cache hit rate alone on its share of the pool", of=CLIENT,
        form=Form.PERCENT, most=1.0, undefined=NOT_ALONE_IN_MEMORY),
    Metric("cache_sharing_incentive", "cache hit rate relative to the client alone", better=MORE,
        of=CLIENT, form=Form.PERCENT, undefined=NOT_ALONE_IN_MEMORY),
)  # fmt: skip


SESSIONS = (
    *(
        Metric(f"victim_{what}_p{percent}_s", f"P{percent} of well-behaved {text}", unit="s",
            better=LESS, undefined=NO_VICTIM)
        for what, text in (("session", "sessions without think time"),
            ("ttft", "calls' time to first token"))
        for percent in (50, 95)
    ),
    *(
        Metric(f"{what}_p{percent}_s", f"P{percent} of {text}", unit="s", better=LESS,
            of=CLIENT, undefined=NO_COHORT)
        for what, text in (("session", "sessions without think time"), ("turn", "turns"),
            ("ttft", "calls' time to first token"))
        for percent in (50, 95)
    ),
    Metric("session_cache_hit_rate", "median cache hit rate of sessions", better=MORE,
        of=CLIENT, form=Form.PERCENT, most=1.0, undefined=NO_COHORT),
)  # fmt: skip


SIDES = (
    *(
        Metric(f"{side}_busy_ratio", f"busy time of {side} workers over the run",
            form=Form.PERCENT, most=1.0, undefined="nothing was simulated")
        for side in ("prefill", "decode")
    ),
    *(
        Metric(f"{side}_gpu_s", f"busy time of {side} workers", unit="s", digits=1)
        for side in ("prefill", "decode")
    ),
    Metric("mean_transfer_ms", "mean time of a KV transfer", unit="ms", better=LESS,
        undefined="no KV cache was transferred"),
)  # fmt: skip

COMPARISON = (
    Metric("best_service_rate_tok_s", "highest service of any scheduler", unit="tok/s",
        better=MORE, of_comparison=True),
    Metric("min_entitlement_best_ratio", "minimum fair share of best total",
        column="min. share\nof best", better=MORE, form=Form.WHOLE_PERCENT, most=1.0,
        undefined=NO_DEMAND, of_comparison=True, shown=(Shown(Display.COMPARISON, 4),)),
    *(
        Metric(f"sharing_incentive_p{rank}", f"sharing incentive P{rank}",
            column=f"sharing\nP{rank}",
            better=LESS, of=BOTH, digits=2, undefined=NOT_ALONE, of_comparison=True,
            tail=rank if rank in TAILS else 0,
            shown=(
                Shown(Display.COMPARISON, 1 + (rank in TAILS), dropped=4 if rank == 50 else None),
                Shown(Display.COMPARED_CLIENTS, 5 + (rank in TAILS))))
        for rank in (50, *TAILS)
    ),
    Metric("entitlement_best_tok_s", "fair share of the best total", unit="tok/s", of=CLIENT,
        of_comparison=True),
    Metric("entitlement_best_ratio", "of fair share of the best total", better=MORE, of=CLIENT,
        form=Form.PERCENT, undefined="the client was entitled to no service", of_comparison=True,
        shown=(Shown(Display.COMPARED_CLIENTS, 2),)),
)  # fmt: skip

METRICS = (*GOODPUT, *MEMORY, *SESSIONS, *SIDES, *COMPARISON)
