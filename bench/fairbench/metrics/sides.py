"""Metrics of disaggregated runs: how busy the two sides are, and how long KV transfers take."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from fairbench.metrics.notes import Notes
from fairbench.metrics.records import Facts
from fairbench.metrics.tables import Tables


def sides_summary(tables: Tables, facts: Facts) -> dict[str, Any]:
    """Return the metrics of both sides, with ``notes``; empty for colocated replicas.

    Busy time counts the whole run; a transfer counts from its first byte until it has arrived.
    """
    prefills, requests = facts.prefill_workers, tables.requests
    if prefills is None or requests.sent_s is None or requests.received_s is None:
        return {}
    busy_s = np.zeros(2)
    for part in tables.service.parts():
        if part.gpu_s is not None:
            side = (part.worker >= prefills).astype(np.int64)
            busy_s += np.bincount(side, weights=part.gpu_s, minlength=2)
    workers = np.array([prefills, facts.workers - prefills])
    share = busy_s / (workers * facts.horizon_s) if facts.horizon_s else np.full(2, np.nan)
    took_s = requests.received_s - requests.sent_s
    took_s = took_s[~np.isnan(took_s)]
    values = {
        "prefill_busy_ratio": float(share[0]),
        "decode_busy_ratio": float(share[1]),
        "prefill_gpu_s": float(busy_s[0]),
        "decode_gpu_s": float(busy_s[1]),
        "mean_transfer_ms": float(took_s.mean() * 1e3) if len(took_s) else float("nan"),
    }
    notes = Notes()
    known = {key: notes.value(key, value) for key, value in values.items()}
    return {key: value if isfinite(value) else None for key, value in known.items()} | {
        "notes": notes.reasons
    }
