"""Recorded sessions: latency without think time, turns, first tokens, cache hits."""

from __future__ import annotations

from fairbench.metrics.metric import CLIENT, LESS, MORE, Form, Metric
from fairbench.metrics.reasons import NO_COHORT, NO_VICTIM

METRICS = (
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
