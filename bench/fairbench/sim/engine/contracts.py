"""The engine contracts by the names of ``hardware.engines``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.hardware.timing import TimingProfile
from fairbench.named import imported
from fairbench.sim.engine.contract import EngineContract

# Paths, not classes, so that a run imports only its own engine.
CONTRACTS: Mapping[str, str] = {
    DEFAULT_ENGINE: "fairbench.sim.engine.sglang.contract:SGLangContract",
    "vllm": "fairbench.sim.engine.vllm.contract:VLLMContract",
    "lightllm": "fairbench.sim.engine.lightllm.contract:LightLLMContract",
}


def contract_of(
    engine: str | None, settings: Mapping[str, Any], profile: TimingProfile
) -> EngineContract:
    """Return the contract of ``engine`` (None: the default) with ``settings`` on a GPU."""
    contract: EngineContract = imported(CONTRACTS[engine or DEFAULT_ENGINE])(settings, profile)
    return contract
