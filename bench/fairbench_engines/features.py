"""The table of features on the releases page: how the plugin of each engine obeys them.

Whether a feature is refused is read from the tables with which the plugins refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fairbench_engines.sglang import release as sglang
from fairbench_engines.vllm import release as vllm

CLASSES = "SGLang's own classes"
SERVER = "a server on a CPU"


class Feature(NamedTuple):
    """A feature of an engine: how the plugin obeys it, and the flags that ask for it.

    ``sglang`` and ``vllm`` say what works and how that is tested. ``flags`` are names in
    ``sglang.OFF``, and ``paths`` are names in ``vllm.OFF``: the plugins refuse these.
    """

    name: str
    sglang: str = ""
    flags: tuple[str, ...] = ()
    vllm: str = ""
    paths: tuple[str, ...] = ()


FEATURES = (
    Feature(
        "data-parallel ranks in one server",
        flags=("dp_size", "enable_dp_attention"),
        paths=("parallel_config.data_parallel_size",),
    ),
    Feature(
        "LoRA adapters",
        "the client stays the client, the adapter is a part of the prefix, and an adapter without "
        f"a slot counts as no room. Tested on {CLASSES}: streams equal the simulator's",
        paths=("lora_config",),
    ),
    Feature(
        "LoRA: overlapped loading, drained adapters",
        flags=("enable_lora_overlap_loading", "lora_drain_wait_threshold"),
        paths=("lora_config",),
    ),
    Feature(
        "speculative decoding",
        "accepted tokens are charged, and neither drafts nor tokens after the end. Tested on "
        f"{CLASSES}: streams equal SGLang's; no eviction policy and no preempting scheduler",
        paths=("speculative_config",),
    ),
    Feature(
        "priorities",
        "fair inside a class, with classes and preemption in SGLang's order. Tested on "
        f"{CLASSES}: streams equal SGLang's and the simulator's; and on {SERVER}",
        paths=("scheduler_config.policy",),
    ),
    Feature(
        "HiCache, KV offload",
        flags=("enable_hierarchical_cache", "enable_lmcache"),
        paths=("kv_transfer_config",),
    ),
    Feature(
        "disaggregated prefill, decode and encoders",
        flags=("disaggregation_mode", "encoder_only", "language_only"),
        paths=("kv_transfer_config", "ec_transfer_config"),
    ),
    Feature(
        "pipeline parallelism",
        f"each stage decides alike. Tested on {CLASSES}: two running batches, streams equal "
        "SGLang's; no scheduler that reads the clock",
        paths=("parallel_config.pipeline_parallel_size",),
    ),
    Feature(
        "tensor parallelism",
        f"each rank decides alike. Tested on {CLASSES}: equal streams under different clocks and "
        "random numbers; no scheduler that reads the clock",
        vllm="one scheduler decides for all ranks (no test)",
    ),
    Feature(
        "multimodal models",
        "the tokens of an image are charged as SGLang counts them. Tested on "
        f"{CLASSES}, with token numbers of 62 bits",
        vllm="decoder-only models pass unchanged (no test)",
        paths=("model_config.is_encoder_decoder",),
    ),
    Feature(
        "embeddings",
        "served in order of arrival, which the server says at its start, because SGLang does not "
        f"tell its scheduler their clients. Tested on {CLASSES}: streams equal SGLang's",
        paths=("model_config.runner_type",),
    ),
    Feature(
        "structured output",
        f"a request is queued once its grammar is ready. Tested on {CLASSES}: streams equal "
        f"SGLang's; and on {SERVER}",
        vllm="requests pass unchanged (no test)",
    ),
    Feature(
        "sessions",
        "the eviction policy `retention` and schedulers of programs know a session that the caller "
        f"names with `session_id`. Tested on {SERVER}",
        vllm="`session_id` names the client, and `retention` is refused",
    ),
    Feature("diffusion LLMs", flags=("dllm_algorithm",), paths=("model_config.is_diffusion",)),
)


def table() -> str:
    """Return the table of features as Markdown."""
    lines = ["| feature | SGLang | vLLM |", "|---|---|---|"]
    lines += [f"| {one.name} | {_in_sglang(one)} | {_in_vllm(one)} |" for one in FEATURES]
    return "\n".join(lines) + "\n"


def _in_sglang(feature: Feature) -> str:
    if not feature.flags:
        return f"works: {feature.sglang}"
    flags = ", ".join(f"`--{name.replace('_', '-')}`" for name in feature.flags)
    return f"refused ({flags}): {sglang.OFF[feature.flags[0]].why}"


def _in_vllm(feature: Feature, off: Mapping[str, tuple[str, Any]] = vllm.OFF) -> str:
    flags = dict.fromkeys(off[path][0] for path in feature.paths if path in off)
    if not flags:
        return f"works: {feature.vllm}" if feature.vllm else "works"
    told = ", ".join(f"`{flag}`" if flag.startswith("--") else flag for flag in flags)
    works = f"works: {feature.vllm}; " if feature.vllm else ""
    return f"{works}refused ({told})"
