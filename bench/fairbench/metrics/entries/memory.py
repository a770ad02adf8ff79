"""KV memory: the tokens that clients hold, and lose to other clients."""

from __future__ import annotations

from fairbench.metrics.metric import CLIENT, LESS, MORE, Display, Form, Metric, Shown
from fairbench.metrics.reasons import EMPTY_WINDOW, NOT_ALONE_IN_MEMORY

METRICS = (
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
