"""The defences in docs/appendix/attacks.md (tenants, defended, limited), and its tables."""

from __future__ import annotations

from collections.abc import Mapping

from fairbench_studies.kit.rows import ROOT

PAGE = ROOT / "docs/appendix/attacks.md"
SEEDS = 5
LIMITED_SEED = 105  # the first row with limits, which were made after the other rows were known
DEFENDED = (
    *("fair-finish.tenants=tree", "dlpm-hold.tenants=tree"),
    *("dlpm-hold.charge=gpu-time", "engine.load_cap=auto"),
)
D2LPM_TENANTS = ("d2lpm.tenants=tree", "dlpm.tenants=tree")
LIMITS = ("gateway.client_limit=auto", "gateway.tenants=tree")
REQUESTS = "gateway.client_requests=64"  # the running limit of a worker
LOWER = "gateway.client_limit=420000"  # instead of auto: three units here, not five
RESERVE = "gateway.client_reserve=2"  # as if two more clients were present
LIMITING = {"gateway": "fcfs", "saturation": "none"}  # the gateway has no other effect


def cell(row: Mapping[str, str], measure: str, sign: str = "") -> str:
    """Return the mean and the half-width of its interval, after the sign of a bound."""
    if not row[f"{measure}_mean"]:
        return "-"
    mean, high = float(row[f"{measure}_mean"]), float(row[f"{measure}_high"])
    return f"{sign}{mean:.2f} ±{high - mean:.2f}"


def p95_sign(row: Mapping[str, str], measure: str) -> str:
    """Return the sign of a lower bound if some programs of a row had not finished."""
    return ">" if measure == "p95" and row["p95_more"] == "true" else ""


def interval_columns(
    found: Mapping[str, Mapping[str, float | None] | None], measure: str
) -> dict[str, str]:
    """Return a mean and its interval as columns of a row, or empty columns."""
    values = found.get(measure) or {}
    shown = {part: values.get(part) for part in ("mean", "low", "high")}
    return {
        f"{measure}_{part}": "" if value is None else f"{value:.4f}"
        for part, value in shown.items()
    }
