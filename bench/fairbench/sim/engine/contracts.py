"""The engine contracts by the names of ``hardware.engines``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.hardware.timing import TimingProfile
from fairbench.sim.engine.contract import EngineContract
from fairbench.sim.engine.lightllm.contract import LightLLMContract
from fairbench.sim.engine.sglang.contract import SGLangContract
from fairbench.sim.engine.vllm.contract import VLLMContract

CONTRACTS: Mapping[str, Callable[[Mapping[str, Any], TimingProfile], EngineContract]] = {
    DEFAULT_ENGINE: SGLangContract,
    "vllm": VLLMContract,
    "lightllm": LightLLMContract,
}


def contract_of(
    engine: str | None, settings: Mapping[str, Any], profile: TimingProfile
) -> EngineContract:
    """Return the contract of ``engine`` (None: the default) with ``settings`` on a GPU."""
    return CONTRACTS[engine or DEFAULT_ENGINE](settings, profile)
