"""Facts about a vLLM server from its metrics, under the keys of SGLang's ``/server_info``."""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from fairbench.live.plugins.vllm.exporter import LIMIT, PROOF

POOL = "vllm:cache_config_info"
MOST_RUNNING = "max_running_requests"


def info_in(metrics: str) -> dict[str, Any]:
    """Return the known pool and block size, and the plugin's report and limit.

    Raises ValueError for a text that is not metrics.
    """
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
    try:
        told = {name: msgspec.json.decode(labels[name]) for name in ("params", "weights")}
    except msgspec.MsgspecError as error:
        raise ValueError(f"{PROOF}: {error}") from None
    eviction = {"eviction": labels["eviction"]} if labels.get("eviction") else {}
    return {"local": labels["local"], **told, **eviction}
