"""Per-client service, balances and what schedules, among vLLM's own metrics."""

from __future__ import annotations

import json
import os

from fairbench.live.plugins.config import PluginConfig
from fairbench.live.plugins.ledger import COUNTED
from fairbench.live.plugins.prometheus import Exporter
from fairbench.live.plugins.vllm.metric_names import LIMIT, PROOF

__all__ = ["Exporter", "exporter_of"]

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # where vLLM's HTTP process finds what its engine core counts


def exporter_of(config: PluginConfig, most_running: int) -> Exporter | None:
    """Return the exporter of this engine core, or None if the server has no folder for it.

    The labels of the gauge ``PROOF`` name the scheduler and all its settings. ``LIMIT`` is the
    maximum number of running requests.
    """
    if not os.environ.get(SHARED):
        return None
    exporter = Exporter(COUNTED)
    from prometheus_client import Gauge

    labels = {
        "local": config.local,
        "params": json.dumps(dict(config.params), sort_keys=True),
        "weights": json.dumps(dict(config.weights), sort_keys=True),
    }
    proof = Gauge(PROOF, "The scheduler that runs", list(labels), multiprocess_mode="mostrecent")
    proof.labels(**labels).set(1)
    Gauge(LIMIT, "Requests that run at once", multiprocess_mode="mostrecent").set(most_running)
    return exporter
