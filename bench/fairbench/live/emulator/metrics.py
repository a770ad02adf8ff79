"""The page ``/metrics``: SGLang's gauges and counters under their names, and client service."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fairbench.live.emulator.worker import EmulatedWorker

SERVICE_KINDS = ("input_tokens", "extend_tokens", "recompute_tokens", "output_tokens")


class _Collector(Collector):
    """A collector that reads the engine when it is scraped."""

    def __init__(self, emulator: EmulatedWorker) -> None:
        self._emulator = emulator

    def collect(self) -> Iterator[Metric]:
        emulator = self._emulator
        emulator.engine.catch_up()
        label = [emulator.config.model]
        for name, value in _gauges(emulator).items():
            gauge = GaugeMetricFamily(f"sglang:{name}", f"{name}, emulated", labels=["model_name"])
            gauge.add_metric(label, value)
            yield gauge
        for name, value in _counters(emulator).items():
            counter = CounterMetricFamily(
                f"sglang:{name}", f"{name}, emulated", labels=["model_name"]
            )
            counter.add_metric(label, value)
            yield counter
        yield _service(emulator)


def _gauges(emulator: EmulatedWorker) -> dict[str, float]:
    worker, cache = emulator.worker, emulator.engine.cache
    used = cache.capacity - cache.free - cache.evictable
    hits, inputs = emulator.engine.cached_tokens, emulator.engine.input_tokens
    return {
        "num_running_reqs": len(worker.batch),
        "num_queue_reqs": len(worker.waiting),
        "token_usage": used / cache.capacity,
        "num_used_tokens": used,
        "kv_available_tokens": cache.free,
        "kv_evictable_tokens": cache.evictable,
        "kv_used_tokens": used,
        "cache_hit_rate": hits / inputs if inputs else 0.0,
    }


def _counters(emulator: EmulatedWorker) -> dict[str, float]:
    engine, totals = emulator.engine, emulator.totals.clients.values()
    return {
        "prompt_tokens": sum(total.input_tokens for total in totals),
        "generation_tokens": sum(total.output_tokens for total in totals),
        "cached_tokens": engine.cached_tokens,
        "num_requests": engine.finished,
        "num_aborted_requests": engine.aborted,
    }


def _service(emulator: EmulatedWorker) -> Metric:
    service = CounterMetricFamily(
        "fairbench:client_tokens",
        "Emulated tokens of each client by kind",
        labels=["client", "kind"],
    )
    for client, total in emulator.totals.clients.items():
        for kind in SERVICE_KINDS:
            service.add_metric([client, kind.removesuffix("_tokens")], getattr(total, kind))
    return service


def registry_of(emulator: EmulatedWorker) -> CollectorRegistry:
    """Return a registry from which ``generate_latest`` builds the metrics page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(emulator))
    return registry
