"""Facts about a server from its metrics (vLLM, under SGLang's keys) or its model's files."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

from fairbench.errors import DataError
from fairbench.files.json_text import json_file
from fairbench.live.plugin_config import LIMIT, PROOF

POOL = "vllm:cache_config_info"
MOST_RUNNING = "max_running_requests"


def vocab_size_of(model: str) -> int | None:
    """Return ``vocab_size`` from the ``config.json`` in a model's folder, None if unavailable."""
    try:
        config = json_file(Path(model) / "config.json", model)
        return int(config.get("text_config", config)["vocab_size"])
    except (DataError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return None


def info_in(metrics: str) -> dict[str, Any]:
    """Return the known pool and block size, and the plugin's report and limit.

    Raises ValueError for a text that is not metrics.
    """
    from prometheus_client.parser import text_string_to_metric_families  # part of the extra `live`

    info: dict[str, Any] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            labels = sample.labels
            if sample.name == POOL:
                blocks, size = int(labels["num_gpu_blocks"]), int(labels["block_size"])
                info |= {"max_total_num_tokens": (blocks - 1) * size, "page_size": size}
            elif sample.name == PROOF and sample.value == 1:
                info["fairbench"] = _report(labels)
            elif sample.name == LIMIT and isfinite(sample.value):
                info[MOST_RUNNING] = int(sample.value)
    return info


def _report(labels: dict[str, str]) -> dict[str, Any]:
    import msgspec  # part of the extra `live`, too

    try:
        told = {name: msgspec.json.decode(labels[name]) for name in ("params", "weights")}
        if (text := labels.get("async_scheduling")) is not None:
            told["async_scheduling"] = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{PROOF}: {error}") from None
    eviction = {"eviction": labels["eviction"]} if labels.get("eviction") else {}
    return {"local": labels["local"], **told, **eviction}
