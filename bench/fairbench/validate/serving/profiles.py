"""Which timing profile a measured serving run is replayed with, unless one is named."""

from __future__ import annotations

import re
from dataclasses import replace

from fairbench.errors import DataError
from fairbench.hardware.catalogue import load_profile, profile_ids
from fairbench.hardware.timing import TimingProfile

MEASURED = "a100-80gb/llama-3.1-8b/tp1/measured-sglang"
MEASURED_H100 = "h100-80gb/llama-3.1-8b/tp1/measured-sglang-triton"
_GPUS = {"a100-sxm4-80gb": "a100-80gb", "h100-sxm5-80gb": "h100-80gb"}
_SAME_SHAPE = {"llama-3-8b": "llama-3.1-8b", "llama-3-70b": "llama-3.1-70b"}


def model_called(name: str) -> str:
    """Return a model by the name that profiles have for it, such as ``llama-3.1-8b``.

    The publisher before a slash, the suffix of an instruct model and hyphens do not matter, nor
    does the version where both have one shape.
    """
    short = re.sub(r"-(instruct|chat|hf|it|base)$", "", name.rpartition("/")[2].lower())
    short = re.sub(r"^(meta-)?llama-?(?=\d)", "llama-", short)
    return _SAME_SHAPE.get(short, short)


def profile_of(gpu: str, model: str, tp: int, engine: str) -> TimingProfile:
    """The measured profile on its GPU, with either engine on the A100 and with SGLang on the H100;
    elsewhere the engine's operator profile.

    HTTP and tokenizer are no property of the GPU: an operator profile has those that were measured.
    Raises DataError for a GPU or model without a profile.
    """
    place = f"{_GPUS.get(gpu.lower(), gpu.lower())}/{model_called(model)}/tp{tp}/"
    measured = load_profile(MEASURED)
    if MEASURED.startswith(place):
        return measured
    if engine == "sglang" and MEASURED_H100.startswith(place):
        return load_profile(MEASURED_H100)
    ours = [name for name in profile_ids() if name.startswith(place + engine)]
    if not ours:
        raise DataError(f"no timing profile for {engine} on gpu {gpu!r}, model {model!r}, tp {tp}")
    return replace(load_profile(ours[0]), frontend=measured.frontend)
