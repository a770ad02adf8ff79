"""Metrics: service, fairness, latency and theorem bounds, computed from a run's records.

Metrics never read a scheduler's own counters, because a scheduler that charges clients wrongly
looks fair by its own counters.
"""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.metrics.catalogue import known_key as known_key
    from fairbench.metrics.service import service_of as service_of
    from fairbench.metrics.shown_percentiles import shown_tail as shown_tail
    from fairbench.metrics.traffic import Traffic as Traffic

__getattr__ = lazy_names(
    __name__,
    {
        "catalogue": "known_key",
        "service": "service_of",
        "shown_percentiles": "shown_tail",
        "traffic": "Traffic",
    },
)
