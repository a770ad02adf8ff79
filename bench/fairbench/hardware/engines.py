"""The simulated engines: their names and their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class EngineKind(NamedTuple):
    """An engine's description, and the ``--set`` name and path of its parameters."""

    description: str
    part: str
    params: str


DEFAULT_ENGINE = "sglang"

ENGINES: Mapping[str, EngineKind] = {
    DEFAULT_ENGINE: EngineKind(
        "SGLang 0.5.23: prefill first, then decode",
        "engine",
        "fairbench.hardware.engine_params:EngineParams",
    ),
    "vllm": EngineKind(
        "vLLM 0.32.0 (V1): both in every step", "vllm", "fairbench.hardware.vllm_params:VLLMParams"
    ),
    "lightllm": EngineKind(
        "LightLLM as in S-LoRA: no prefix cache, output lengths known",
        "lightllm",
        "fairbench.hardware.lightllm_params:LightLLMParams",
    ),
}
"""Each has its contract under the same name in ``sim.engine.contracts``."""
