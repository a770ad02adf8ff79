"""The simulated engines: their names and their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fairbench.named import imported


class EngineKind(NamedTuple):
    """An engine's description, and the ``--set`` name of its parameters."""

    description: str
    part: str
    path: str

    @property
    def params(self) -> type:
        """The class of its parameters, which is imported when it is asked for."""
        found: type = imported(f"fairbench.hardware.{self.path}")
        return found


DEFAULT_ENGINE = "sglang"

ENGINES: Mapping[str, EngineKind] = {
    DEFAULT_ENGINE: EngineKind(
        "SGLang 0.5.23: prefill first, then decode", "engine", "engine_params:EngineParams"
    ),
    "vllm": EngineKind("vLLM 0.32.0 (V1): both in every step", "vllm", "vllm_params:VLLMParams"),
    "lightllm": EngineKind(
        "LightLLM as in S-LoRA: no prefix cache, output lengths known",
        "lightllm",
        "lightllm_params:LightLLMParams",
    ),
}
"""Each has its contract under the same name in ``sim.engine.contracts``."""
