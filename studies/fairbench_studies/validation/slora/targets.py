"""Targets (largest accepted errors) for a run's simulated TTFT and service gap."""

from __future__ import annotations

from fairbench_calibration.validate.live_run import Pair

LONG_TTFT_S = 1.0
# ``P50_TARGET_PCT`` and ``P99_TARGET_PCT`` are the largest accepted errors of a long TTFT.
P50_TARGET_PCT, P99_TARGET_PCT = 15.0, 20.0
# The S-LoRA server of the measured runs admits requests every ten decode steps (0.3 s). The target
# for a short median TTFT is half the time between two admissions, because a request may arrive at
# any time between two admissions.
SHORT_P50_TARGET_S = 0.15
# If the lowest measured TTFT is at most ``IDLE_TTFT_S``, the server was idle, and the simulated
# lowest TTFT may be off by half a decode step.
IDLE_TTFT_S, IDLE_TARGET_S = 0.15, 0.015
GAP_TARGET_FACTOR = 1.5


def p50_target(pair: Pair) -> str:
    """Return the target of a median TTFT as text."""
    return f"{P50_TARGET_PCT:g}%" if pair.measured > LONG_TTFT_S else f"{SHORT_P50_TARGET_S:g} s"


def p50_within(pair: Pair) -> bool:
    """Return whether a simulated median TTFT meets its target.

    The target is in percent for a measured TTFT above ``LONG_TTFT_S``, and in seconds for a shorter
    TTFT.
    """
    if pair.measured > LONG_TTFT_S:
        return pair.within(P50_TARGET_PCT)
    return not abs(pair.simulated - pair.measured) > SHORT_P50_TARGET_S


def p99_within(pair: Pair) -> bool:
    """Return whether a simulated P99 of TTFT meets its target.

    Any simulated P99 TTFT is accepted if the measured P99 TTFT is at most ``LONG_TTFT_S``.
    """
    return not pair.measured > LONG_TTFT_S or pair.within(P99_TARGET_PCT)


def least_within(pair: Pair) -> bool:
    """Return whether the error of the simulated lowest TTFT is within its target.

    Any simulated value is accepted if the measured TTFT is above ``IDLE_TTFT_S`` (busy server).
    """
    off_s = abs(pair.simulated - pair.measured)
    return not (pair.measured <= IDLE_TTFT_S and off_s > IDLE_TARGET_S)


def gap_within(gap: Pair) -> bool:
    """Return whether simulated and measured service gap differ by at most the target factor."""
    low, high = sorted((gap.simulated, gap.measured))
    return high <= GAP_TARGET_FACTOR * low
