"""What docs/results/attacks.md calls tenants, defended and limited, and how tables get there."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/results/attacks.md"
SEEDS = 5
LIMITED_SEED = 105  # first of what has limits, which were made after the other rows were known
DEFENDED = (
    *("fair-finish.tenants=tree", "dlpm-hold.tenants=tree"),
    *("dlpm-hold.charge=gpu-time", "engine.load_cap=auto"),
)
D2LPM_TENANTS = ("d2lpm.tenants=tree", "dlpm.tenants=tree")
LIMITS = ("gateway.client_limit=auto", "gateway.tenants=tree")
REQUESTS = "gateway.client_requests=64"  # as many as a worker runs
LOWER = "gateway.client_limit=420000"  # in place of auto: three units here, not five
RESERVE = "gateway.client_reserve=2"  # as if two more clients were there
LIMITING = {"gateway": "fcfs", "saturation": "none"}  # which does nothing else


def put_table(page: str, name: str, table: str) -> str:
    """The page with a table in its place."""
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    return block.sub(lambda found: f"{found[1]}{table}\n{found[2]}", page)


def cell(row: Mapping[str, str], measure: str, sign: str = "") -> str:
    """The mean, and how far its interval reaches above it, behind the sign of a bound."""
    if not row[f"{measure}_mean"]:
        return "-"
    mean, high = float(row[f"{measure}_mean"]), float(row[f"{measure}_high"])
    return f"{sign}{mean:.2f} ±{high - mean:.2f}"


def p95_sign(row: Mapping[str, str], measure: str) -> str:
    """What says that the P95 of a row is at least that, as some programs had not finished."""
    return ">" if measure == "p95" and row["p95_more"] == "true" else ""


def interval_columns(
    found: Mapping[str, Mapping[str, float | None] | None], measure: str
) -> dict[str, str]:
    """A mean and its interval in columns of a row, empty where there is none."""
    values = found.get(measure) or {}
    shown = {part: values.get(part) for part in ("mean", "low", "high")}
    return {
        f"{measure}_{part}": "" if value is None else f"{value:.4f}"
        for part, value in shown.items()
    }


def read_rows(table: Path) -> list[dict[str, str]]:
    """The rows of a file of results."""
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(table: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write them, with the columns of the first."""
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
