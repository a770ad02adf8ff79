"""Which timing profile a measured serving run is replayed with, unless one is named."""

from __future__ import annotations

from dataclasses import replace

from fairbench.errors import DataError
from fairbench.hardware.catalogue import load_profile, profile_ids
from fairbench.hardware.timing import TimingProfile

MEASURED = "a100-80gb/llama-3.1-8b/tp1/measured-sglang"
MEASURED_H100 = "h100-80gb/llama-3.1-8b/tp1/measured-sglang-triton"
_GPUS = {"a100-sxm4-80gb": "a100-80gb", "h100-sxm5-80gb": "h100-80gb"}


def profile_of(gpu: str, model: str, tp: int, engine: str) -> TimingProfile:
    """The measured profile on its GPU, with either engine on the A100 and with SGLang on the H100;
    elsewhere the engine's operator profile.

    HTTP and tokenizer are no property of the GPU: an operator profile has those that were measured.
    Raises DataError for a GPU or model without a profile.
    """
    place = f"{_GPUS.get(gpu, gpu)}/{model}/tp{tp}/"
    measured = load_profile(MEASURED)
    if MEASURED.startswith(place):
        return measured
    if engine == "sglang" and MEASURED_H100.startswith(place):
        return load_profile(MEASURED_H100)
    ours = [name for name in profile_ids() if name.startswith(place + engine)]
    if not ours:
        raise DataError(f"no timing profile for {engine} on gpu {gpu!r}, model {model!r}, tp {tp}")
    return replace(load_profile(ours[0]), frontend=measured.frontend)
