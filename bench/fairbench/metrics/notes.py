"""Notes: why a metric has no value, and which values are only lower bounds."""

from __future__ import annotations

from math import isfinite

from fairbench.metrics.catalogue import metric_of
from fairbench.metrics.latency import Percentile


class Notes:
    """Collected while a summary is built; keys are those of the JSON, ``clients.NAME.key`` inside.

    ``reasons`` has one entry for every value that is undefined or estimated.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self._censored: dict[str, None] = {}

    @property
    def censored(self) -> list[str]:
        """The keys of latencies that print as "> x s"."""
        return list(self._censored)

    def value(self, key: str, value: float, reason: str = "") -> float:
        """The value; if it is not a finite number, ``reason`` is kept, or the catalogue's."""
        if not isfinite(value):
            metric = metric_of(key)
            assert reason or metric, f"{key} is not in the catalogue"
            self.reasons[key] = reason or (metric.undefined if metric else "")
        return value

    def remark(self, key: str, text: str) -> None:
        """A remark on a value that is there; if it is not, the reason for that replaces it."""
        self.reasons[key] = text

    def latency(self, key: str, percentile: Percentile, reason: str = "") -> float:
        """The same for a percentile, which may be a lower bound."""
        if percentile.censored and isfinite(percentile.value_s):
            self._censored[key] = None
        return self.value(key, percentile.value_s, reason)
