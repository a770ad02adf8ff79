"""The comparison with measured S-LoRA runs as text, at most ``MAX_WIDTH`` columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isnan
from typing import Any, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.report.numbers import UNDEFINED, index, number
from fairbench.report.table import MAX_WIDTH, plain_table, printed
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.validation.report import both, defined
from fairbench_studies.validation.slora.compare import RunComparison, mean_size
from fairbench_studies.validation.slora.order import RUN_NOISE_PCT, ScenarioOrder
from fairbench_studies.validation.slora.targets import (
    IDLE_TTFT_S,
    gap_within,
    least_within,
    p50_within,
    p99_within,
)
from fairbench_studies.validation.windows import RATE_TARGET_PCT, Window

FITTED, MISSED = "*", "!"


# A ``CrossCheck`` is a row of the table of cross-checks: a mapping from column name to value. The
# column ``quoted`` holds another project's prediction as text.
CrossCheck: TypeAlias = Mapping[str, Any]


def validation_text(
    runs: list[RunComparison],
    orders: list[ScenarioOrder],
    basis: str,
    checks: list[CrossCheck] | None = None,
) -> str:
    """Return the tables, the missed targets and ``basis`` (a note on fitted values) as text."""
    return printed(_render(runs, orders, basis, checks), colour=False, width=MAX_WIDTH)


def _render(
    runs: list[RunComparison],
    orders: list[ScenarioOrder],
    basis: str,
    checks: list[CrossCheck] | None,
) -> RenderableType:
    blocks: list[RenderableType] = [
        Text("simulated against measured runs"),
        Text(basis),
        Text(f"{FITTED} fitted to this run    {MISSED} misses a target"),
        Text(),
        _rates(runs),
        Text(),
        _ttft(runs),
        Text(),
        Text("\n".join(_order_lines(orders))),
        Text("\n".join(_miss_lines(runs))),
    ]
    if checks is not None:
        blocks += [Text(), _crosschecks(checks)]
    return Group(*blocks)


def _rates(runs: list[RunComparison]) -> Table:
    headings = ("tok/s\n", "\nerror", "clients'\nworst", "rates\nmean", "Jain\n", "slices'\noff by",
                "max gap\nk tokens", "refused\n")  # fmt: skip
    table = _table("simulated/measured;\nto the last arrival", headings)
    for run in runs:
        errors = run.rate_errors_pct
        worst = max(errors, key=abs, default=None)
        whole, *slices = run.windows
        rates_within = all(map(whole.rate_within, whole.rates))
        gap, gap_mark = run.max_gap, "" if gap_within(run.max_gap) else MISSED
        table.add_row(
            _name(run),
            both(run.throughput),
            _percent(run.throughput.error_pct, within=run.throughput.within(RATE_TARGET_PCT)),
            _percent(worst, within=rates_within),
            UNDEFINED if (mean := mean_size(errors)) is None else f"{mean:.1f}%",
            both(run.jain, index) + ("" if whole.jain_within else MISSED),
            _slices(slices),
            both(Pair(gap.simulated / 1_000, gap.measured / 1_000)) + gap_mark,
            f"{run.refused.simulated:.0f}/{run.refused.measured:.0f}"
            + ("" if run.refused.within(RATE_TARGET_PCT) else MISSED),
        )
    return table


def _slices(slices: list[Window]) -> str:
    off = [abs(window.jain.simulated - window.jain.measured) for window in slices]
    within = all(w.jain_within and all(map(w.rate_within, w.rates)) for w in slices)
    worst = max((one for one in off if not isnan(one)), default=None)
    return index(worst) + ("" if within else MISSED)


def _ttft(runs: list[RunComparison]) -> Table:
    sides = ("simulated", "measured", "error")
    headings = [f"{rank}\n{side}" for rank in ("P50", "P99") for side in sides]
    table = _table("time to first token, s\nrun", ["clients\n", *headings])
    for run in runs:
        for ttft in run.ttft:
            cells = [
                cell
                for pair, within in (
                    (ttft.p50_s, p50_within(ttft.p50_s)),
                    (ttft.p99_s, p99_within(ttft.p99_s)),
                )
                for cell in _triple(pair, within)
            ]
            table.add_row(_name(run), ttft.group.removeprefix("client "), *cells)
        if run.least_ttft_s.measured <= IDLE_TTFT_S:
            least = _triple(run.least_ttft_s, least_within(run.least_ttft_s))
            table.add_row(_name(run), "least", *least, "", "", "")
    return table


def _crosschecks(checks: list[CrossCheck]) -> Table:
    table = _table("published elsewhere", ["published", "predicted", "error"], prose=True)
    for check in checks:
        if check["quoted"]:
            table.add_row(check["what"], "", f"(quoted) {check['quoted']}", "")
            continue
        published, predicted = (number(float(check[key])) for key in ("published", "predicted"))
        unit, error = check["unit"], _percent(check["error_pct"], within=True)
        table.add_row(check["what"], f"{published} {unit}", f"{predicted} {unit}", error)
    return table


def _table(first: str, headings: Iterable[str], *, prose: bool = False) -> Table:
    table = plain_table(gap=1)
    table.add_column(first, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="left" if prose else "right", overflow="fold")
    return table


def _name(run: RunComparison) -> str:
    return run.name + (FITTED if run.fitted else "")


def _triple(pair: Pair, within: bool) -> tuple[str, str, str]:
    error = _percent(pair.error_pct, within=within)
    return number(defined(pair.simulated)), number(defined(pair.measured)), error


def _percent(value: float | None, *, within: bool) -> str:
    mark = "" if within else MISSED
    return (UNDEFINED if value is None else f"{value:+.1f}%") + mark


def _order_lines(orders: list[ScenarioOrder]) -> Iterator[str]:
    yield f"Order of the runs of a scenario, every column (closer than {RUN_NOISE_PCT:g}%: a tie):"
    for order in orders:
        yield (
            f"  {order.scenario}: {order.same} pairs as measured, {len(order.inverted)} inverted, "
            f"{order.close} ties"
        )
        for inversion in order.inverted:
            (a, b), (x, y) = inversion.measured, inversion.simulated
            first, second = (
                name.removesuffix(f"/{order.scenario}")
                for name in (inversion.first, inversion.second)
            )
            yield (
                f"    {MISSED} {inversion.column}, {first} and {second}: "
                f"measured {number(a)}, {number(b)}; simulated {number(x)}, {number(y)}"
            )


def _miss_lines(runs: list[RunComparison]) -> Iterator[str]:
    missed = [(run, miss) for run in runs for miss in run.misses]
    yield f"Targets missed: {len(missed) or 'none'}"
    for run, miss in missed:
        yield f"  {MISSED} {_name(run)}: {miss}"
