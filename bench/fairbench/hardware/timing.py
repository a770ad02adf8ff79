"""How long an engine iteration takes, and how many tokens its KV pool holds.

Coefficients are quantised once to integer picoseconds where they are multiplied by a count, so
that k decode steps are an exact integer sum. Source and held-out error of every profile are in
``profiles/engine_profiles.json``; the form is repeated in ``TimingProfile``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from random import Random
from typing import Any

from fairbench.errors import UsageError, unknown_name

PS_PER_MS = 10**9
# (cached tokens before, tokens computed now) of one sequence of a prefill iteration
Chunk = tuple[int, int]


@dataclass(frozen=True)
class TimingProfile:
    """Iteration time of one engine on one GPU and model.

    t_ms = c0 + (c_w^p + (c_T*T)^p)^(1/p) + c_npf*n_prefill + c_K*K + c_nd*n_decode + host_ms
           + sum_i max(c_A*new_i*(prefix_i+(new_i+1)/2), c_K*prefix_i)
    with T = new tokens + decode sequences and K = sum of the decode context lengths.
    """

    profile_id: str
    coefficients_ms: dict[str, float]
    host_ms: float
    grade: str
    pool: KVPool

    @cached_property
    def context_ps(self) -> int:
        """Time that one token of decode context costs per step."""
        return round(self.coefficients_ms["c_K"] * PS_PER_MS)

    @cached_property
    def _batch_ps(self) -> Callable[[int], int]:
        return cache(self._batch_time)

    @cached_property
    def _prefill_ms(self) -> Callable[[int], float]:
        return cache(self._linear_ms)

    def decode_ps(self, sequences: int, context_tokens: int) -> int:
        """One decode step of so many sequences with so many context tokens in all."""
        return self._batch_ps(sequences) + self.context_ps * context_tokens

    def prefill_ps(self, chunks: list[Chunk]) -> int:
        """One prefill iteration."""
        c = self.coefficients_ms
        total = self._prefill_ms(sum([new for _, new in chunks])) + c["c_npf"] * len(chunks)
        for prefix, new in chunks:
            total += max(c["c_A"] * new * (prefix + (new + 1) / 2), c["c_K"] * prefix)
        return round(total * PS_PER_MS)

    def _batch_time(self, sequences: int) -> int:
        ms = self._linear_ms(sequences) + self.coefficients_ms["c_nd"] * sequences
        return round(ms * PS_PER_MS)

    def _linear_ms(self, tokens: int) -> float:
        c = self.coefficients_ms
        weights, compute, p = c["c_w"], c["c_T"] * tokens, c["p"]
        most = max(weights, compute)
        smooth = most * ((weights / most) ** p + (compute / most) ** p) ** (1 / p)
        return float(c["c0"] + smooth + self.host_ms)


def perturbed(profile: TimingProfile, percent: float, rng: Random) -> TimingProfile:
    """The profile as it may be if it is off by up to ``percent``: as a whole and in each term."""

    def factor() -> float:
        return 1 + rng.uniform(-percent, percent) / 100

    bias = factor()
    coefficients = {
        name: value if name == "p" else value * bias * factor()
        for name, value in sorted(profile.coefficients_ms.items())
    }
    host_ms = profile.host_ms * bias * factor()
    return replace(profile, coefficients_ms=coefficients, host_ms=host_ms)


def slowed(profile: TimingProfile, factor: float) -> TimingProfile:
    """The profile of a GPU that takes ``factor`` times as long for everything."""
    coefficients = {
        name: value if name == "p" else value * factor
        for name, value in profile.coefficients_ms.items()
    }
    return replace(profile, coefficients_ms=coefficients, host_ms=profile.host_ms * factor)


@dataclass(frozen=True)
class KVPool:
    """What determines the KV pool of one GPU and model (SGLang 0.5.23's formula)."""

    pre_load_avail_gib: float
    weights_gib: float
    kv_bytes_per_token: float
    mem_fraction_static: float
    chunked_prefill_size: int

    def tokens(self, mem_fraction_static: float) -> int:
        """Pool size in tokens. Raises UsageError if nothing is left beside the weights."""
        gib = self.pre_load_avail_gib * mem_fraction_static - self.weights_gib
        tokens = int(gib * 2**30 / self.kv_bytes_per_token)
        if tokens <= 0:
            raise UsageError(
                f"mem_fraction_static {mem_fraction_static}: no memory is left for KV beside the "
                f"weights ({self.weights_gib} of {self.pre_load_avail_gib} GiB)"
            )
        return tokens


@cache
def _load(name: str) -> dict[str, Any]:
    text = (files("fairbench.hardware") / "profiles" / name).read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def profile_ids() -> list[str]:
    """Every bundled profile, ``gpu/model/tp/source``."""
    return sorted(_load("engine_profiles.json")["profiles"])


def model_names() -> list[str]:
    """Models that some profile covers."""
    return sorted({name.split("/")[1] for name in profile_ids()})


def resolve_profile(gpu: str, model: str) -> TimingProfile:
    """The profile for a GPU (any prefix of a profile id) and a model.

    Where a prefix leaves several, the one measured on SGLang at TP 1 is taken. Raises UsageError
    for an unknown GPU or model and for a prefix that leaves several all the same.
    """
    ids = profile_ids()
    if model not in model_names():
        raise unknown_name("model", model, model_names())
    matching = [name for name in ids if name.startswith(gpu.lower())]
    if not matching:
        raise unknown_name("gpu", gpu, {name.split("/")[0] for name in ids})
    of_model = [name for name in matching if name.split("/")[1] == model]
    if not of_model:
        models = ", ".join(sorted({name.split("/")[1] for name in matching}))
        raise UsageError(f"gpu {gpu!r} has no profile for model {model!r}: it has {models}")
    if len({name.split("/")[0] for name in of_model}) > 1:
        gpus = ", ".join(sorted({name.split("/")[0] for name in of_model}))
        raise UsageError(f"gpu {gpu!r} is ambiguous: it may be {gpus}")
    preferred = [n for n in of_model if n.split("/")[2] == "tp1" and "/sglang" in n] or of_model
    if len(preferred) > 1:
        raise UsageError(f"gpu {gpu!r} is ambiguous: it may be {', '.join(preferred)}")
    return load_profile(preferred[0])


def load_profile(profile_id: str) -> TimingProfile:
    """One bundled profile by its full id, with the KV pool of its GPU, model and TP degree."""
    entry = _load("engine_profiles.json")["profiles"][profile_id]
    gpu, model, parallel, _ = profile_id.split("/")
    pool, degree = _load("kv_pools.json")["pools"][f"{gpu}/{model}"], int(parallel[2:])
    return TimingProfile(
        profile_id=profile_id,
        coefficients_ms=entry["coefficients_ms"],
        host_ms=entry["host_ms"],
        grade=entry["grade"],
        pool=KVPool(
            pre_load_avail_gib=pool["pre_load_avail_gib"],
            weights_gib=pool["weights_gib"] / degree,
            kv_bytes_per_token=pool["kv_bytes_per_token"] / degree,
            mem_fraction_static=pool["mem_fraction_static"],
            chunked_prefill_size=pool["chunked_prefill_size"],
        ),
    )
