"""The settings and the fitted numbers of a replay, as JSON types and as text."""

from __future__ import annotations

from typing import Any

from fairbench.hardware.catalogue import load_profile
from fairbench_studies.validation.slora.replay import (
    FITTED_PROFILE,
    FITTED_SCENARIOS,
    PREFILL_OVERHEAD_MS,
    PREFILL_TILE,
    REQUEST_STEP_MS,
    RESPONSE_MS,
)


def settings(profile: str | None, pool_tokens: int) -> dict[str, Any]:
    """Return the settings of a replay as JSON-compatible values.

    If ``profile`` is None, the fitted timing profile is used.
    """
    used = profile or FITTED_PROFILE
    steps = {"request_step_ms": REQUEST_STEP_MS} if profile is None else {}
    return {
        "timing_profile": used,
        "pool_tokens": pool_tokens,
        "fitted_scenarios": list(FITTED_SCENARIOS) if profile is None else [],
        "fitted": {"prefill_overhead_ms": PREFILL_OVERHEAD_MS, "response_ms": RESPONSE_MS, **steps},
        "not_fitted": {
            "c_T_ms": load_profile(used).coefficients_ms["c_T"],
            "prefill_tile": PREFILL_TILE,
        },
    }


def basis(profile: str | None, pool_tokens: int) -> str:
    """Return a text about the timing profile and the fitted numbers of a replay."""
    host = f"{PREFILL_OVERHEAD_MS:g} ms a minibatch and {RESPONSE_MS:g} ms the way in and out"
    if profile is not None:
        return (
            f"timing profile {profile}, KV pool {pool_tokens:,} tokens; fitted, to the "
            f"{' and '.join(FITTED_SCENARIOS)} runs of an A10G only: {host}"
        )
    early, late = REQUEST_STEP_MS["2023-12"], REQUEST_STEP_MS["2024-06"]
    return (
        f"timing profile {FITTED_PROFILE}; fitted, to the {' and '.join(FITTED_SCENARIOS)} runs "
        f"only: {host}, {late:g} ms a running request and step ({early:g} ms in December 2023)"
    )


def title(profile: str | None) -> str:
    """Return the name of the measured server, for the figure."""
    if profile is None:
        return "Llama-2-7b on one A10G, S-LoRA's engine (VTC-artifact 192c2e2)"
    return f"S-LoRA's engine on {profile}"
