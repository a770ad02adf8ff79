"""vLLM's own schedulers and KV cache manager on a CPU, for tests; ``replica.inside.vllm_seam``."""

from __future__ import annotations

from fairbench_engines.replica.inside.vllm_seam import VLLMScheduling as RealEngine
from fairbench_engines.replica.inside.vllm_seam import admitted, vllm
from fairbench_engines.vllm.release import DISTRIBUTIONS, SUPPORTED
from fairbench_load.plugin_config import installed

__all__ = ["RealEngine", "admitted", "vllm"]

VERSION = installed(DISTRIBUTIONS).partition("+")[0] or SUPPORTED[-1]


def why_absent():
    """Return why vLLM cannot be driven here, or "" if it can. Imports nothing."""
    if not installed(DISTRIBUTIONS):
        return f"vllm {VERSION} is not installed"
    return "" if VERSION in SUPPORTED else f"vllm is {VERSION}, not {' or '.join(SUPPORTED)}"
