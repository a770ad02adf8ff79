"""Which timing profile a measured serving run is replayed with, unless one is named."""

from __future__ import annotations

from dataclasses import replace

from fairbench.errors import DataError
from fairbench.hardware.catalogue import load_profile, profile_ids
from fairbench.hardware.timing import TimingProfile

MEASURED = "a100-80gb/llama-3.1-8b/tp1/measured-sglang"
MEASURED_H100 = "h100-80gb/llama-3.1-8b/tp1/measured-sglang-triton"
# HTTP and tokenizer of vLLM's API server, busy for each request: with this the TTFT P50 of
# vllm-a100-fixed-c128-run1 is as measured. (SGLang's is in the profile.)
VLLM_REQUEST_MS = 1.5
_GPUS = {"a100-sxm4-80gb": "a100-80gb", "h100-sxm5-80gb": "h100-80gb"}


def profile_of(gpu: str, model: str, tp: int, engine: str) -> TimingProfile:
    """Return the measured profile of the GPU; elsewhere the operator profile of the engine.

    The A100's measured profile serves both engines, the H100's SGLang only. Time in HTTP and
    tokenizer is a property of the engine, not of the GPU: an operator profile has the measured
    one, and vLLM's server is busy for ``VLLM_REQUEST_MS`` with each request.
    Raises DataError for a GPU or model without a profile.
    """
    place = f"{_GPUS.get(gpu, gpu)}/{model}/tp{tp}/"
    measured = load_profile(MEASURED)
    frontend = measured.frontend
    if engine == "vllm":
        frontend = replace(frontend, request_ms=VLLM_REQUEST_MS)
    if MEASURED.startswith(place):
        return replace(measured, frontend=frontend)
    if engine == "sglang" and MEASURED_H100.startswith(place):
        return load_profile(MEASURED_H100)
    ours = [name for name in profile_ids() if name.startswith(place + engine)]
    if not ours:
        raise DataError(f"no timing profile for {engine} on gpu {gpu!r}, model {model!r}, tp {tp}")
    return replace(load_profile(ours[0]), frontend=frontend)
