"""Recorded sessions: latency without think time, turns, cache hits."""

from __future__ import annotations

from fairbench.metrics.metric import Better, Form, Metric, Of
from fairbench.metrics.reasons import NO_COHORT, NO_VICTIM

METRICS = (
    *(
        Metric(
            key=f"victim_session_p{percent}_s",
            heading=f"P{percent} of well-behaved sessions without think time",
            unit="s",
            better=Better.LESS,
            undefined=NO_VICTIM,
        )
        for percent in (50, 95)
    ),
    *(
        Metric(
            key=f"{what}_p{percent}_s",
            heading=f"P{percent} of {text}",
            unit="s",
            better=Better.LESS,
            of=Of.CLIENT,
            undefined=NO_COHORT,
        )
        for what, text in (("session", "sessions without think time"), ("turn", "turns"))
        for percent in (50, 95)
    ),
    Metric(
        key="session_cache_hit_rate",
        heading="median cache hit rate of sessions",
        better=Better.MORE,
        of=Of.CLIENT,
        form=Form.PERCENT,
        digits=3,
        most=1.0,
        undefined=NO_COHORT,
    ),
)
