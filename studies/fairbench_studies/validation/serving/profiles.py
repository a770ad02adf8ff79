"""The default timing profile for the replay of a measured serving run."""

from __future__ import annotations

import re
from dataclasses import replace

from fairbench.errors import DataError
from fairbench.hardware.catalogue import canonical_model, load_profile, model_names, profile_ids
from fairbench.hardware.timing import TimingProfile

MEASURED = "a100-80gb/llama-3.1-8b/tp1/measured-sglang"
MEASURED_H100 = "h100-80gb/llama-3.1-8b/tp1/measured-sglang-triton"
# vLLM's API server (HTTP and tokenizer) is busy for ``VLLM_REQUEST_MS`` with each request, a value
# fitted to the measured TTFT P50 of vllm-a100-fixed-c128-run1. SGLang's profile already includes
# the time of SGLang's API server.
VLLM_REQUEST_MS = 1.5
# ``FORK_HOST_MS`` is the CPU time of scheduling policies in the DLPM authors' fork of SGLang: a
# time per iteration, and a time per request in the batch. ``FORK_HOST_MS`` was fitted to the time
# per output token in two runs, with 6 and with about 130 concurrent requests (``measured.FITTED``).
# The CPU time of ``vtc`` in the DLPM authors' fork is unknown.
FORK_HOST_MS = {"lpm_mdrr": (8.0, 0.082)}
# ``nvidia-smi`` and cloud providers use GPU names such as "NVIDIA A100-SXM4-80GB".
_SXM = re.compile(r"(?:nvidia-)?([abh]\d00)(?:-sxm\d?)?-(\d+gb)(?:-hbm\d\w?)?")


def gpu_name(text: str) -> str:
    """Return a GPU's name as in the catalogue of GPUs, or an unknown name in lower case."""
    name = "-".join(text.lower().split())
    match = _SXM.fullmatch(name)
    return f"{match[1]}-{match[2]}" if match else name


def host_cost_text(policy: str) -> str | None:
    """Return a text on a policy's CPU time in the DLPM authors' SGLang fork, or None if unknown."""
    if policy not in FORK_HOST_MS:
        return None
    iteration_ms, request_ms = FORK_HOST_MS[policy]
    return (
        f"policy {policy}: {iteration_ms:g} ms an iteration and {request_ms:g} ms a request "
        "on the host, from two other runs"
    )


def with_host_cost(profile: TimingProfile, policy: str) -> TimingProfile:
    """Add a policy's CPU time in the DLPM authors' fork of SGLang to a timing profile."""
    if policy not in FORK_HOST_MS:
        return profile
    iteration_ms, request_ms = FORK_HOST_MS[policy]
    costs = {**profile.coefficients_ms, "c_nd": profile.coefficients_ms["c_nd"] + request_ms}
    return replace(profile, host_ms=profile.host_ms + iteration_ms, coefficients_ms=costs)


def profile_of(gpu: str, model: str, tp: int, engine: str) -> TimingProfile:
    """Return a measured timing profile or, if none fits, a profile from tables of operator times.

    The measured A100 profile is for SGLang and vLLM; the measured H100 profile is only for SGLang.
    The time for HTTP and the tokenizer does not depend on the GPU, so a profile from operator
    tables uses the measured time. Profiles for vLLM add ``VLLM_REQUEST_MS`` of server time to each
    request. Raises DataError if no profile fits GPU and model.
    """
    place = f"{gpu_name(gpu)}/{canonical_model(model, model_names())}/tp{tp}/"
    measured = load_profile(MEASURED)
    frontend = measured.frontend
    if engine == "vllm":
        frontend = replace(frontend, request_ms=VLLM_REQUEST_MS)
    if MEASURED.startswith(place):
        return replace(measured, frontend=frontend)
    if engine == "sglang" and MEASURED_H100.startswith(place):
        return load_profile(MEASURED_H100)
    every = [name for name in profile_ids() if name.startswith(place)]
    if (served := f"{place}measured-{engine}") in every:
        return load_profile(served)
    ours = [name for name in every if name.startswith(place + engine)] or every
    if not ours:
        of_gpu = {one.rsplit("/", 1)[0] for one in profile_ids() if one.startswith(gpu_name(gpu))}
        known = of_gpu or {one.split("/")[0] for one in profile_ids()}
        raise DataError(
            f"no timing profile for gpu {gpu!r}, model {model!r}, tp {tp}: choose from "
            f"{', '.join(sorted(known))}, or give --profile"
        )
    return replace(load_profile(ours[0]), frontend=frontend)
