"""Server information: an emulator's pages about itself (``/server_info``, ``/v1/models``)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import fairbench
from fairbench.live.emulator.kv_blocks import BLOCK_TOKENS
from fairbench.live.emulator.worker import EmulatedWorker
from fairbench.live.plugins.config import plugin_params


def server_info(emulator: EmulatedWorker) -> dict[str, Any]:
    """Return SGLang's keys that apply, and a mark that this is an emulator."""
    config, limits = emulator.config, emulator.worker.limits
    publisher = emulator.publisher
    return {
        "emulated": True,
        "version": f"fairbench {fairbench.__version__}",
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
    """Return the running configuration in the plugin's report format, for checks before a run."""
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
