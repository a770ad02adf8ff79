"""What cannot be told of requests that were watched from outside the server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# What is not known unless the server reports cached tokens, and unless it reports queue times.
NEEDS_CACHED = (
    "cache_hit_rate",
    "actual_service_tok_s",
    "extend_rate_tok_s",
    "extend_throughput",
    "jain_index_actual",
    "max_service_gap",
)
NEEDS_ADMISSION = ("queue_empty_share", "demand_limited", "max_service_gap")


def forget(summary: dict[str, Any], keys: Iterable[str], reason: str) -> None:
    """Replace these metrics of a summary, also its clients', by null with the reason."""
    for key in keys:
        summary[key] = None
        summary["notes"][key] = reason
        for client in summary["clients"]:
            if key in client:
                client[key] = None
                summary["notes"][f"clients.{client['client']}.{key}"] = reason
