"""Defences against attacks, and functions for the tables of docs/appendix/attacks.md."""

from __future__ import annotations

from collections.abc import Mapping

from fairbench_studies.kit.rows import ROOT

PAGE = ROOT / "docs/appendix/attacks.md"
SEEDS = 5
LIMITED_SEED = 105  # first seed of runs with limits; the limits were chosen with earlier seeds
DEFENDED = (
    *("fair-finish.tenants=tree", "dlpm-hold.tenants=tree"),
    *("dlpm-hold.charge=gpu-time", "engine.load_cap=auto"),
)
D2LPM_TENANTS = ("d2lpm.tenants=tree", "dlpm.tenants=tree")
LIMITS = ("gateway.client_limit=auto", "gateway.tenants=tree")
REQUESTS = "gateway.client_requests=64"  # limit of each client; a worker may run 64 requests
LOWER = "gateway.client_limit=420000"  # three fifths of the limit that "auto" sets
RESERVE = "gateway.client_reserve=2"  # keeps capacity for two absent clients
# The gateway "fcfs" without a saturation detector never queues requests, so only the client limits
# have an effect.
LIMITING = {"gateway": "fcfs", "saturation": "none"}


def cell(row: Mapping[str, str], measure: str, sign: str = "") -> str:
    """Return a mean and half the width of its confidence interval, such as ``0.52 ±0.03``.

    ``sign`` is written before the mean, if the mean is a bound.
    """
    if not row[f"{measure}_mean"]:
        return "-"
    mean, high = float(row[f"{measure}_mean"]), float(row[f"{measure}_high"])
    return f"{sign}{mean:.2f} ±{high - mean:.2f}"


def p95_sign(row: Mapping[str, str], measure: str) -> str:
    """Return ">" if the P95 latency is a lower bound because of unfinished programs, or ""."""
    return ">" if measure == "p95" and row["p95_more"] == "true" else ""


def interval_columns(
    found: Mapping[str, Mapping[str, float | None] | None], measure: str
) -> dict[str, str]:
    """Return a mean and its interval as columns of a table row, with "" for unknown values."""
    values = found.get(measure) or {}
    shown = {part: values.get(part) for part in ("mean", "low", "high")}
    return {
        f"{measure}_{part}": "" if value is None else f"{value:.4f}"
        for part, value in shown.items()
    }
