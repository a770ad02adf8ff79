"""An emulator's pages about itself: ``/server_info``, ``/v1/models`` and ``/metrics``.

The metrics are SGLang's gauges and counters under their names, and the clients' service.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fairbench.live.plugin_config import plugin_params
from fairbench.version import __version__
from fairbench_emulator.kv_blocks import BLOCK_TOKENS
from fairbench_emulator.worker import EmulatedWorker

SERVICE_KINDS = ("input_tokens", "extend_tokens", "recompute_tokens", "output_tokens")


def server_info(emulator: EmulatedWorker) -> dict[str, Any]:
    """Return SGLang's keys that apply, and a mark that this is an emulator."""
    config, limits = emulator.config, emulator.worker.limits
    publisher = emulator.publisher
    return {
        "emulated": True,
        "version": f"fairbench {__version__}",
        "model_path": config.model,
        "served_model_name": config.model,
        "timing_profile": config.gpu,
        "timing_grade": emulator.profile.grade,
        "time_scale": config.time_scale,
        "slowdown": config.slowdown,
        "stream_interval": config.stream_interval,
        "token_count_method": emulator.text.method,
        "vocab_size": emulator.text.vocab_size,
        "max_total_num_tokens": limits.pool_tokens,
        "chunked_prefill_size": limits.chunked_prefill_size,
        "max_prefill_tokens": limits.max_prefill_tokens,
        "max_running_requests": limits.max_running_requests,
        "kv_events": publisher
        and {
            "publisher": "zmq",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
            "block_size": BLOCK_TOKENS,
        },
        "fairbench": _report(emulator),
    }


def _report(emulator: EmulatedWorker) -> dict[str, Any]:
    engine, local = emulator.engine, emulator.config.local
    scheduler: Any = emulator.worker.scheduler
    engine.catch_up()
    cap = emulator.worker.limits.load_cap
    return {
        "local": local,
        "params": plugin_params(local, scheduler.params, cap),
        "weights": dict(emulator.config.weights),
        "counters": {
            "finished": engine.finished,
            "refused": engine.refused,
            "aborted": engine.aborted,
        },
        "clients": {name: asdict(total) for name, total in emulator.totals.clients.items()},
    }


def models(emulator: EmulatedWorker) -> dict[str, Any]:
    """Return the only model, as OpenAI's list."""
    return {"object": "list", "data": [model_card(emulator)]}


def model_card(emulator: EmulatedWorker) -> dict[str, Any]:
    """Return the model in OpenAI's format."""
    return {
        "id": emulator.config.model,
        "object": "model",
        "created": 0,
        "owned_by": "fairbench",
        "max_model_len": emulator.worker.limits.pool_tokens,
    }


class _Collector(Collector):
    def __init__(self, emulator: EmulatedWorker) -> None:
        self._emulator = emulator

    def collect(self) -> Iterator[Metric]:
        emulator = self._emulator
        emulator.engine.catch_up()
        label = [emulator.config.model]
        for kind, values in (
            (GaugeMetricFamily, _gauges(emulator)),
            (CounterMetricFamily, _counters(emulator)),
        ):
            for name, value in values.items():
                family = kind(f"sglang:{name}", f"{name}, emulated", labels=["model_name"])
                family.add_metric(label, value)
                yield family
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
