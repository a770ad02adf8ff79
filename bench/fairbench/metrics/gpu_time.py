"""GPU time: how long the workers were busy, and for whom."""

from __future__ import annotations

from fairbench.metrics.records import Facts
from fairbench.metrics.tables import Tables


def gpu_time(tables: Tables, facts: Facts) -> float:
    """Seconds of the whole run in which workers computed, added up over them.

    NaN where nobody says what iterations consisted of: on real servers, and in older records.
    """
    parts = tables.service.gpu_s
    return float("nan") if parts is None else float(parts.sum())


def gpu_time_of_client(tables: Tables, facts: Facts, client: int) -> float:
    """The client's part of it; the parts of all clients add up to the whole."""
    log = tables.service
    return float("nan") if log.gpu_s is None else float(log.gpu_s[log.client == client].sum())
