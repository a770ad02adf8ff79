"""What docs/results/attacks.md calls tenants, defended and limited, and how tables get there."""

from __future__ import annotations

import re
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
