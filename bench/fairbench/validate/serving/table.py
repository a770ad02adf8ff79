"""The comparison with measured serving runs for people, at most ``MAX_WIDTH`` columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.report.numbers import UNDEFINED, index, number
from fairbench.report.table import MAX_WIDTH, printed
from fairbench.validate.compare import Pair
from fairbench.validate.serving.compare import (
    LONG_TTFT_S,
    P50_TARGET_PCT,
    P99_TARGET_PCT,
    RATE_TARGET_PCT,
    ServingComparison,
)

FITTED, MISSED = "*", "!"


def serving_text(runs: list[ServingComparison]) -> str:
    """Tables, tested and fitted runs apart, and missed targets."""
    profiles = ", ".join(sorted({run.profile for run in runs}))
    tested = [run for run in runs if not run.fitted]
    fitted = [run for run in runs if run.fitted]
    blocks: list[RenderableType] = [
        Text("simulated against measured runs of real serving engines"),
        Text(f"timing profile {profiles}"),
        Text(f"{FITTED} the measured profile was fitted to this run    {MISSED} misses a target"),
    ]
    for title, some in (("tested", tested), ("fitted", fitted)):
        if some:
            blocks += [Text(), _table(title, some)]
    return printed(
        Group(*blocks, Text(), Text("\n".join(_miss_lines(runs)))), colour=False, width=MAX_WIDTH
    )


def _table(title: str, runs: list[ServingComparison]) -> Table:
    headings = ("", "tok/s\nerror", "TPOT ms\nP50", "\nerror", "TTFT ms\nP50", "\nerror",
                "\nP99", "\nerror", "Jain\n")  # fmt: skip
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(f"{title}, simulated/measured\nrun", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for run in runs:
        head = (
            run.name + (FITTED if run.fitted else ""),
            _error(run.throughput, RATE_TARGET_PCT),
            _both(run.tpot_p50_ms),
            _error(run.tpot_p50_ms, RATE_TARGET_PCT),
        )
        for row, ttft in enumerate(run.ttft):
            jain = run.windows[0].jain if run.windows else None
            table.add_row(
                head[0] if not row else "",
                ttft.group if len(run.ttft) > 1 else "",
                *(head[1:] if not row else ("", "", "")),
                _both(_ms(ttft.p50_s)),
                _error(ttft.p50_s, P50_TARGET_PCT, LONG_TTFT_S),
                _both(_ms(ttft.p99_s)),
                _error(ttft.p99_s, P99_TARGET_PCT, LONG_TTFT_S),
                _jain(jain) if not row and len(run.ttft) > 1 else "",
            )
    return table


def _ms(pair: Pair) -> Pair:
    return Pair(1_000 * pair.simulated, 1_000 * pair.measured)


def _both(pair: Pair) -> str:
    return f"{number(pair.simulated)}/{number(pair.measured)}"


def _jain(pair: Pair | None) -> str:
    return UNDEFINED if pair is None else f"{index(pair.simulated)}/{index(pair.measured)}"


def _error(pair: Pair, target: float, least: float = 0.0) -> str:
    missed = pair.measured > least and not pair.within(target)
    text = UNDEFINED if pair.error_pct is None else f"{pair.error_pct:+.0f}%"
    return text + (MISSED if missed else "")


def _miss_lines(runs: list[ServingComparison]) -> Iterator[str]:
    missed = [(run, miss) for run in runs for miss in run.misses]
    yield f"Targets missed: {len(missed) or 'none'}"
    for run, miss in missed:
        yield f"  {MISSED} {run.name}: {miss}"
