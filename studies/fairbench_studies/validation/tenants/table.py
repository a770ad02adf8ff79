"""Printed tables that compare simulated with measured runs of several tenants."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbench.report.numbers import UNDEFINED, index
from fairbench.report.table import MAX_WIDTH, plain_table, printed
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.validation.report import LONG_TTFT_S, both, defined, error, unresolved_line
from fairbench_studies.validation.tenants.compare import TenantComparison


def tenants_text(runs: Sequence[TenantComparison]) -> str:
    """Return the tables as text, followed by the missed targets."""
    head = ["runs of several tenants, straight to an engine: simulated/measured, error"]
    head += [f"timing profile {profile}" for profile in sorted({run.profile for run in runs})]
    head += ["* something was fitted to this run    ! misses a target", unresolved_line(), ""]
    tail = [f"  {run.name}: {note}" for run in runs for note in run.notes]
    missed = [(run, miss) for run in runs for miss in run.misses]
    tail.append(f"Targets missed: {len(missed) or 'none'}")
    tail += [f"  ! {_name(run)}: {miss}" for run, miss in missed]
    blocks = (Text("\n".join(head)), _runs(runs), Text(), _latencies(runs), Text("\n".join(tail)))
    return printed(Group(*blocks), colour=False, width=MAX_WIDTH)


def _runs(runs: Sequence[TenantComparison]) -> Table:
    table = plain_table(
        "run", "tok/s", "error", "TPOT P50, ms", "shares off\n(windows), points", "Jain",
        "off in\nwindows", gap=1)  # fmt: skip
    for run in runs:
        whole, windows = (UNDEFINED if off != off else f"{100 * off:.1f}" for off in run.share_off)
        table.add_row(
            _name(run), both(run.throughput), error(run.throughput), both(run.tpot_p50_ms),
            f"{whole} ({windows})", both(run.jain, index),
            index(defined(run.jain_off)),
        )  # fmt: skip
    return table


def _latencies(runs: Sequence[TenantComparison]) -> Table:
    table = plain_table(
        "time to first token, ms", "tenant", "P50", "error", "P99", "error", "BLIS\nP50/P99", gap=1
    )
    for run in runs:
        for row, one in enumerate(run.tenants):
            blis = "" if one.other_p50_s != one.other_p50_s else both(
                Pair(1_000 * one.other_p50_s, 1_000 * one.other_p99_s)
            )  # fmt: skip
            p50, p99 = (Pair(1e3 * p.simulated, 1e3 * p.measured) for p in (one.p50_s, one.p99_s))
            table.add_row(
                "" if row else _name(run), one.name, both(p50),
                error(one.p50_s, LONG_TTFT_S), both(p99), error(one.p99_s, LONG_TTFT_S), blis,
            )  # fmt: skip
    return table


def _name(run: TenantComparison) -> str:
    return run.name + ("*" if run.fitted else "")
