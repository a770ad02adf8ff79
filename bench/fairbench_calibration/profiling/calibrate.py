"""Calibration of a derived profile with the output of one benchmark.

The benchmark's times per token determine the profile's costs of memory reads, of each sequence in a
step, and of step launches. The benchmark changes no other coefficient of the derived profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fairbench.hardware.timing import TimingProfile
from fairbench_calibration.profiling.fit import (
    Column,
    Iterations,
    minimised,
    predicted_ms,
    softened,
)

CALIBRATED = "calibrated"  # last part of a calibrated profile's id
MOST_REQUESTS = 400  # maximum number of requests that a fit uses
TOGETHER_S = 1e-3  # first tokens that arrive within this time belong to one iteration
_LEAST_C_ND = 0.002  # minimum sampling time per sequence (ms); operator tables contain none
_PRIORS = np.array([0.15, 0.7, 0.7])  # prior standard deviations of the logarithms of cost factors
_WEIGHT = 100  # number of requests above which further requests add no weight to the fit
_BOUND = np.log(4.0)  # a fit changes each coefficient by at most a factor of 4


class Decoded(NamedTuple):
    """The decode times of requests, and the load during decode, as columns of shape (n_requests,).

    Attributes:
        steps: Output tokens after the first token.
        took_ms: Time from the first token to the last token, in milliseconds.
        decodes: Mean number of sequences in a decode step, including the request itself.
        context: Mean number of context tokens of the sequences in a decode step.
        iterations: Number of iterations that prefilled other requests while the request decoded.
        tokens: Mean number of new prompt tokens in an iteration that prefilled other requests.
    """

    steps: Column
    took_ms: Column
    decodes: Column
    context: Column
    iterations: Column
    tokens: Column

    def predicted_ms(self, costs: Mapping[str, float], *, mixed: bool) -> Column:
        """Return predicted decode times (ms); a ``mixed`` engine also prefills in decode steps."""
        none = np.zeros(len(self.steps))
        step = Iterations(none, none, none, self.decodes, self.context)
        decode_ms = predicted_ms(costs, step)
        prompt = Iterations(none + 1, np.maximum(self.tokens, 1), none, none, none)
        if mixed:
            both = prompt._replace(decodes=self.decodes, context=self.context)
            waits = predicted_ms(costs, both) - decode_ms
        else:
            waits = np.maximum(predicted_ms(costs, prompt), costs.get("c_l", 0.0))
        return np.asarray(self.steps * decode_ms + self.iterations * waits)


def decoded(first: Column, last: Column, prompt: Column, new: Column, output: Column) -> Decoded:
    """Return each request's decode time, and the load during this time.

    Args:
        first: Time of each request's first token, shape (n_requests,), seconds.
        last: Time of each request's last token, shape (n_requests,), seconds.
        prompt: Number of tokens in each prompt.
        new: Number of uncached tokens in each prompt.
        output: Number of output tokens of each request.
    """
    number = min(MOST_REQUESTS, len(first))
    chosen = np.unique(np.linspace(0, len(first) - 1, number).astype(int))
    begin, end = first[chosen, None], last[chosen, None]
    shared = np.maximum(0.0, np.minimum(end, last) - np.maximum(begin, first)) / (end - begin)
    decodes = shared.sum(axis=1)
    context = shared @ (prompt + output / 2) / decodes
    moments, of_moment = np.unique(np.round(first / TOGETHER_S), return_inverse=True)
    tokens = np.bincount(of_moment, weights=new)
    at = moments * TOGETHER_S
    within = (at > begin + TOGETHER_S) & (at < end)
    iterations = within.sum(axis=1).astype(np.float64)
    return Decoded(
        output[chosen] - 1,
        1_000 * (last - first)[chosen],
        decodes,
        context,
        iterations,
        within @ tokens / np.maximum(1, iterations),
    )


def calibrated(seen: Decoded, start: TimingProfile, *, mixed: bool) -> TimingProfile:
    """Return the profile with three coefficients fitted to a benchmark's output.

    Args:
        seen: The measured requests of the benchmark.
        start: The derived profile from which the fit starts.
        mixed: Whether a step of the engine both prefills and decodes, as in vLLM.
    """

    def residuals(logs: Column) -> Column:
        off = np.log(seen.predicted_ms(_scaled(start, logs), mixed=mixed) / seen.took_ms)
        counted = np.sqrt(min(1.0, _WEIGHT / len(off)))
        return np.append(counted * softened(off), logs / _PRIORS)

    bound = np.full(3, _BOUND)
    found = minimised(residuals, np.zeros(3), -bound, bound)
    memory, _, launch = np.exp(found).tolist()
    fitted = _scaled(start, found)
    off = np.abs(seen.predicted_ms(fitted, mixed=mixed) / seen.took_ms - 1)
    host_ms = start.host_ms * launch
    fitted["c0"] -= host_ms
    gpu, model, parallel, _ = start.profile_id.split("/")
    return replace(
        start,
        profile_id=f"{gpu}/{model}/{parallel}/{CALIBRATED}",
        coefficients_ms=fitted,
        host_ms=host_ms,
        grade=(
            f"calibrated: memory reads x{memory:.2f}, c_nd {fitted['c_nd']:.3g} ms and launches "
            f"{launch * (start.coefficients_ms['c0'] + start.host_ms):.2f} ms from "
            f"{len(off)} requests of one run, time per token {100 * np.median(off):.0f}% off"
        ),
    )


def _scaled(start: TimingProfile, logs: Column) -> dict[str, float]:
    """Return a profile's costs, multiplied by the factors whose logarithms are ``logs``."""
    memory, sequence, launch = np.exp(logs).tolist()
    costs = dict(start.coefficients_ms)
    for name in {"c_w", "c_e", "c_K"} & costs.keys():
        costs[name] *= memory
    costs["c_nd"] = sequence * max(costs["c_nd"], _LEAST_C_ND)
    costs["c0"] = launch * (costs["c0"] + start.host_ms)
    return costs
