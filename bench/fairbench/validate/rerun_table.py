"""The comparison with reruns of the DLPM authors' benchmark, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbench.report.numbers import index, number
from fairbench.report.table import MAX_WIDTH, printed
from fairbench.validate.pair import Pair
from fairbench.validate.rerun import (
    JAIN_TARGET,
    MAKESPAN_TARGET_PCT,
    SERVICE_TARGET_PCT,
    RerunComparison,
)


def rerun_text(runs: Sequence[RerunComparison]) -> str:
    """Return a table with a row a run, and below it the targets that are missed."""
    profiles = ", ".join(sorted({run.profile for run in runs}))
    lines = [f"Targets missed: {sum(len(run.misses) for run in runs) or 'none'}"]
    lines += [f"  ! {run.name}: {miss}" for run in runs for miss in run.misses]
    shown = Group(
        Text("the DLPM authors' benchmark on a GPU: simulated / measured, nothing fitted"),
        Text(f"timing profile {profiles}"),
        Text("service is input + 2 x output; P50 is that of a user's programs"),
        Text(),
        _table(runs),
        Text(),
        Text("\n".join(lines)),
    )
    return printed(shown, colour=False, width=MAX_WIDTH)


def _table(runs: Sequence[RerunComparison]) -> Table:
    users = max(len(run.p50_s) for run in runs)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold")
    for heading in ("service\ntok/s", "all active\ntok/s", "Jain's\nindex", "makespan\ns"):
        table.add_column(heading, justify="right")
    for user in range(users):
        table.add_column(f"P50 of\nuser {user}, s", justify="right")
    for run in runs:
        table.add_row(
            run.name.removeprefix("dlpm-judge-"),
            _both(run.service_tok_s, not run.service_tok_s.within(SERVICE_TARGET_PCT)),
            _both(run.active_tok_s),
            _index(run.jain),
            _both(run.makespan_s, not run.makespan_s.within(MAKESPAN_TARGET_PCT)),
            *(_both(pair) for pair in run.p50_s),
        )
    return table


def _both(pair: Pair, missed: bool = False) -> str:
    return f"{number(pair.simulated)} /\n{number(pair.measured)}{'!' if missed else ''}"


def _index(pair: Pair) -> str:
    missed = abs(pair.simulated - pair.measured) > JAIN_TARGET
    return f"{index(pair.simulated)} /\n{index(pair.measured)}{'!' if missed else ''}"


def reruns_json(runs: Sequence[RerunComparison]) -> dict[str, Any]:
    """Return everything, for programs."""
    return {"reruns": [run.as_dict() for run in runs]}
