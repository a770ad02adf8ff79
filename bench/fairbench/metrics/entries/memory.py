"""KV memory: the tokens that clients hold, and lose to other clients."""

from __future__ import annotations

from fairbench.metrics.metric import Better, Display, Form, Metric, Of, Shown
from fairbench.metrics.reasons import EMPTY_WINDOW, NOT_ALONE_IN_MEMORY

METRICS = (
    Metric(
        key="residency_tokens",
        heading="KV memory held on average",
        unit="tokens",
        of=Of.CLIENT,
        undefined=EMPTY_WINDOW,
    ),
    Metric(
        key="residency_ratio",
        heading="KV memory held, relative to its share",
        column="of memory\nshare",
        of=Of.CLIENT,
        form=Form.PERCENT,
        digits=3,
        undefined="nobody held any KV memory in the window",
        shown=(Shown(Display.CLIENTS, 13, dropped=5),),
    ),
    Metric(
        key="evicted_tokens",
        heading="tokens lost to evictions",
        unit="tokens",
        better=Better.LESS,
        of=Of.CLIENT,
    ),
    Metric(
        key="evicted_by_others_tokens",
        heading="tokens lost to evictions for other clients",
        unit="tokens",
        better=Better.LESS,
        of=Of.CLIENT,
    ),
    Metric(
        key="evicted_of_others_tokens",
        heading="tokens that other clients lost to evictions for this client",
        unit="tokens",
        better=Better.LESS,
        of=Of.CLIENT,
    ),
    Metric(
        key="cache_hit_rate_alone",
        heading="cache hit rate alone on its share of the pool",
        of=Of.CLIENT,
        form=Form.PERCENT,
        digits=3,
        most=1.0,
        undefined=NOT_ALONE_IN_MEMORY,
    ),
    Metric(
        key="cache_sharing_incentive",
        heading="cache hit rate relative to the client alone",
        better=Better.MORE,
        of=Of.CLIENT,
        form=Form.PERCENT,
        digits=3,
        undefined=NOT_ALONE_IN_MEMORY,
    ),
)
