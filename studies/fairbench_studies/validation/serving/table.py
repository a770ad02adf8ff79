"""Simulated and measured serving runs as a text table of at most ``MAX_WIDTH`` characters."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.report.numbers import UNDEFINED, index, number
from fairbench.report.table import MAX_WIDTH, plain_table, printed
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.validation.report import (
    LONG_TTFT_S,
    UNRESOLVED,
    both,
    defined,
    error,
    unresolved_line,
)
from fairbench_studies.validation.serving.compare import (
    P50_TARGET_PCT,
    P99_TARGET_PCT,
    RATE_TARGET_PCT,
    ServingComparison,
    off_target,
)

FITTED, MISSED = "*", "!"


def serving_text(runs: list[ServingComparison]) -> str:
    """Return a table of tested runs, a table of fitted runs, and the missed targets, as text."""
    profiles = sorted({run.profile for run in runs})
    tested = [run for run in runs if not run.fitted]
    fitted = [run for run in runs if run.fitted]
    blocks: list[RenderableType] = [
        Text("runs of real serving engines: measured values, and the simulator's error"),
        *(Text(f"timing profile {profile}") for profile in profiles),
        Text(f"{FITTED} the profile was fitted to this run    {MISSED} misses a target"),
        Text(unresolved_line()),
    ]
    for title, some in (("tested", tested), ("fitted", fitted)):
        if some:
            blocks += [Text(), _table(title, some)]
    return printed(
        Group(*blocks, Text(), Text("\n".join(_miss_lines(runs)))), colour=False, width=MAX_WIDTH
    )


def _table(title: str, runs: list[ServingComparison]) -> Table:
    headings = ("clients", "tok/s\nerror", "TPOT P50\nms", "\nerror", "TTFT P50\nms", "\nerror",
                "P99\nms", "\nerror", "Jain\nsim./meas.")  # fmt: skip
    table = plain_table(f"{title}\nrun", *headings, gap=1)
    for run in runs:
        head = (
            run.name + (FITTED if run.fitted else ""),
            _error(run.throughput, RATE_TARGET_PCT),
            number(defined(run.tpot_p50_ms.measured)),
            _error(run.tpot_p50_ms, RATE_TARGET_PCT),
        )
        for row, ttft in enumerate(run.ttft):
            jain = run.windows[0].jain if run.windows else None
            table.add_row(
                head[0] if not row else "",
                ttft.group if len(run.ttft) > 1 else "",
                *(head[1:] if not row else ("", "", "")),
                number(defined(1_000 * ttft.p50_s.measured)),
                _error(ttft.p50_s, P50_TARGET_PCT, LONG_TTFT_S),
                number(defined(1_000 * ttft.p99_s.measured)),
                _error(ttft.p99_s, P99_TARGET_PCT, LONG_TTFT_S),
                _jain(jain) if not row and len(run.ttft) > 1 else "",
            )
    return table


def _jain(pair: Pair | None) -> str:
    return UNDEFINED if pair is None else both(pair, index)


def _error(pair: Pair, target: float, least: float = 0.0) -> str:
    text = error(pair, least)
    return text + MISSED if text != UNRESOLVED and off_target(pair, target) else text


def _miss_lines(runs: list[ServingComparison]) -> Iterator[str]:
    missed = [(run, miss) for run in runs for miss in run.misses]
    yield f"Targets missed: {len(missed) or 'none'}"
    for run, miss in missed:
        yield f"  {MISSED} {run.name}: {miss}"
