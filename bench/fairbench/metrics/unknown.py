"""Unknown metrics: metrics that are not visible from outside the server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairbench.metrics.catalogue import needing
from fairbench.metrics.metric import Needs


def forget_needing(summary: dict[str, Any], needs: Needs, reason: str) -> None:
    """Replace all metrics that need unknown data by null, with the reason."""
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
