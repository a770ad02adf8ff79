"""Notes: why a metric has no value, and which values are only lower bounds."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from fairbench.metrics.catalogue import metric_of, needing
from fairbench.metrics.latency import Percentile
from fairbench.metrics.metric import Needs


class Notes:
    """Notes of a summary under construction, by JSON key, such as ``clients.NAME.key``.

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
        """Return the value; note ``reason`` or the catalogue's reason if it is not finite."""
        if not isfinite(value):
            metric = metric_of(key)
            assert reason or metric, f"{key} is not in the catalogue"
            self.reasons[key] = reason or (metric.undefined if metric else "")
        return value

    def remark(self, key: str, text: str) -> None:
        """Add a remark on a value; the reason for an undefined value replaces it."""
        self.reasons[key] = text

    def latency(self, key: str, percentile: Percentile, reason: str = "") -> float:
        """Return a percentile's value and note if it is undefined or a lower bound.

        Args:
            key: JSON key of the metric.
            percentile: The percentile, in seconds.
            reason: Reason if the value is undefined, or "" for the catalogue's reason.
        """
        if percentile.censored and isfinite(percentile.value_s):
            self._censored[key] = None
        return self.value(key, percentile.value_s, reason)


def forget_needing(summary: dict[str, Any], needs: Needs, reason: str) -> None:
    """Replace all metrics that need unknown data by null, with the reason.

    Args:
        summary: Summary of a run, changed in place.
        needs: The unknown data.
        reason: Reason to note for each metric.
    """
    forget(summary, [key for key in needing(needs) if key in summary], reason)


def forget(summary: dict[str, Any], keys: Iterable[str], reason: str) -> None:
    """Replace these metrics of a summary and of its clients by null, with the reason."""
    for key in keys:
        summary[key] = None
        summary["notes"][key] = reason
        for client in summary["clients"]:
            if key in client:
                client[key] = None
                summary["notes"][f"clients.{client['client']}.{key}"] = reason
