"""Fairbench's metrics of clients and of the scheduler, which a vLLM server publishes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping

from fairbench_load.client_metrics import BALANCE_EVERY_S, COUNTED, Exporter
from fairbench_load.plugin_config import LIMIT, PROOF, PluginConfig

RESIDENCY = "fairbench_client_residency"
# environment variable: the folder through which vLLM's HTTP process reads fairbench's metrics
SHARED = "PROMETHEUS_MULTIPROC_DIR"


class VLLMExporter(Exporter):
    """The metrics of each client, including its cached tokens if a policy of fairbench evicts."""

    def __init__(self) -> None:
        super().__init__(COUNTED)
        from prometheus_client import Gauge

        what = "Tokens of KV memory that the client holds"
        self._residency = Gauge(RESIDENCY, what, ["client"], multiprocess_mode="mostrecent")
        self._residency_at_s = 0.0

    def residency(self, held: Callable[[], Mapping[str, float]]) -> None:
        """Set the gauges of the tokens that each client holds, at most once a second."""
        now_s = time.monotonic()
        if now_s - self._residency_at_s >= BALANCE_EVERY_S:
            self._residency_at_s = now_s
            for client, tokens in held().items():
                self._residency.labels(client).set(tokens)


def exporter_of(
    config: PluginConfig, most_running: int, *, asynchronous: bool
) -> VLLMExporter | None:
    """Return the exporter of this engine core, or None if the server has no folder for metrics.

    The labels of the gauge ``PROOF`` are the scheduler, its settings, the eviction policy, and
    whether vLLM schedules asynchronously. The gauge ``LIMIT`` is the limit on running requests.
    """
    if not os.environ.get(SHARED):
        return None
    exporter = VLLMExporter()
    from prometheus_client import Gauge

    labels = {
        "local": config.local,
        "params": json.dumps(dict(config.params), sort_keys=True),
        "weights": json.dumps(dict(config.weights), sort_keys=True),
        "eviction": config.eviction or "",
        "async_scheduling": json.dumps(asynchronous),
    }
    proof = Gauge(PROOF, "The scheduler that runs", list(labels), multiprocess_mode="mostrecent")
    proof.labels(**labels).set(1)
    # Prometheus adds the values of the server's data-parallel ranks.
    Gauge(LIMIT, "Requests that run at once", multiprocess_mode="sum").set(most_running)
    return exporter
