"""A timing profile fitted to the measurements of a probe, from a derived profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairbench.hardware.kv_pool import KVPool
from fairbench.hardware.timing import FitDomain, Frontend, TimingProfile
from fairbench.profiling.form import Column, Iterations, fitted, predicted_ms
from fairbench.profiling.probe import Probed

PRIOR = 0.3  # residuals for a coefficient e times its start; an error of 5% in a time is 1
MEASURED = "probed"
"""The source, in a profile's id, of a profile that was fitted to a probe."""


def fit_probe(probed: Probed, start: TimingProfile, pool_tokens: int | None) -> TimingProfile:
    """Return the profile that fits a probe.

    Coefficients that a probe hardly shows keep to those of ``start``: ``p``, the cost of another
    prompt in an iteration, the host's tokenizer.

    Args:
        probed: The measurements.
        start: The derived profile.
        pool_tokens: The server's KV pool; None for that of ``start``.
    """
    it, times_ms, waits = observations(probed)
    costs = dict(start.coefficients_ms)
    left = costs.get("q_e", 0.0)
    begun = costs | {"c0": costs["c0"] + start.host_ms, "delay_ms": _delay(start.frontend)}
    found = fitted(it, times_ms, experts_left=left, waits=waits, start=begun, prior=PRIOR)
    delay_ms = max(0.0, found.pop("delay_ms") - start.frontend.request_ms)
    gpu, model, parallel, _ = start.profile_id.split("/")
    return replace(
        start,
        profile_id=f"{gpu}/{model}/{parallel}/{MEASURED}",
        coefficients_ms=found,
        host_ms=0.0,
        grade=f"measured: fitted to a probe, {worst(found, delay_ms, start, probed)}",
        pool=start.pool if pool_tokens is None else _sized(start, pool_tokens),
        frontend=replace(start.frontend, delay_ms=delay_ms),
        fit_domain=FitDomain(
            max(one.requests for one in probed.batches),
            round(max(one.context_tokens for one in probed.batches)),
        ),
    )


def observations(probed: Probed) -> tuple[Iterations, Column, Column]:
    """Return a probe as iterations, their times in ms, and which contain a delay."""
    prompts, batches = probed.prompts, probed.batches
    none, nought = np.zeros(len(prompts)), np.zeros(len(batches))
    requests = np.array([one.requests for one in batches], dtype=float)
    context = np.array([one.context_tokens for one in batches]) / requests
    it = Iterations(
        prefills=np.append(none + 1, nought),
        new=np.append([float(one.tokens) for one in prompts], nought),
        prefix=np.append(none, nought),
        decodes=np.append(none, requests),
        context=np.append(none, context),
    )
    seconds = [one.ttft_s for one in prompts] + [one.step_s for one in batches]
    return it, 1_000 * np.array(seconds), np.append(none + 1, nought)


def worst(found: dict[str, float], delay_ms: float, start: TimingProfile, probed: Probed) -> str:
    """Return in words the largest error of the fit.

    Args:
        found: Fitted coefficients by name.
        delay_ms: Fitted delay of a request, in ms.
        start: Derived profile, with the frontend's time for a request.
        probed: Measurements.
    """
    it, times_ms, waits = observations(probed)
    ours = predicted_ms(found, it) + waits * (delay_ms + start.frontend.request_ms)
    off = np.abs(ours / times_ms - 1)
    return f"at most {100 * off.max():.0f}% off in {len(off)} measurements"


def _delay(frontend: Frontend) -> float:
    return frontend.request_ms + frontend.delay_ms


def _sized(start: TimingProfile, tokens: int) -> KVPool:
    """Return the pool with the memory fraction that gives this size."""
    pool = start.pool
    gib = pool.weights_gib + (tokens + 0.5) * pool.kv_bytes_per_token / 2**30
    fraction = min(1.0, gib / pool.pre_load_avail_gib)
    return replace(pool, mem_fraction_static=fraction)
