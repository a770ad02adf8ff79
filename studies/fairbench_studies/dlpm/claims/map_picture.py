"""The picture of where a claim holds: a row per configuration, a column per varied setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING

from fairbench.report.palette import SERIES, Swatch
from fairbench_papers.style import caption, log_y, panels, paper_style
from fairbench_studies.dlpm.claims.map_axes import AXES, QUANTUM, WORKER_QUANTUM
from fairbench_studies.dlpm.claims.map_points import Mapped, Reading
from fairbench_studies.dlpm.claims.map_table import NAME
from fairbench_studies.dlpm.claims.pairs import Pair
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.pictures import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDER = 1.25  # factor by which the y axis extends beyond the largest and smallest values
NAMES = {QUANTUM: "Q^u", WORKER_QUANTUM: "Q^w"}
LEGEND = (
    "The dotted line is where the claim's sign flips: it holds above. Open marks are cells that "
    "are not contended, arrows bounds. The shaded value is the default."
)
BARS = " Bars are 95% intervals of the paired difference, cut off at the panel."


def draw_map(claim: Mapped, title: str, readings: Sequence[Reading], basis: str) -> Figure:
    """Draw the figure of one claim: each measure against the values of each setting."""
    names = {pair.name for pair in claim.lines}
    mine = [r for r in readings if r.claim == claim.number and r.measure.name in names]
    places = list(dict.fromkeys(one.place for one in mine))
    axes = [axis for axis in AXES if any(one.step.axis == axis for one in mine)]
    figure, grid = panels(
        len(places), len(axes), 1.0 + 1.55 * len(axes), 1.3 + 1.35 * len(places), sharey="row"
    )
    for row, place in zip(grid, places, strict=True):
        for panel, axis in zip(row, axes, strict=True):
            _panel(panel, claim.lines, [r for r in mine if (r.place, r.step.axis) == (place, axis)])
        _scale(row[0], claim.lines[0], [r.seen.value for r in mine if r.place == place])
        row[0].set_ylabel(f"{place}\n{_unit(claim.lines[0])}", fontsize=7)
    for panel, axis in zip(grid[-1], axes, strict=True):
        panel.set_xlabel(NAMES.get(axis, axis), fontsize=8)
    bars = BARS if any(one.seeds > 1 for one in mine) else ""
    caption(figure, title, f"{LEGEND}{bars} {basis[0].upper()}{basis[1:]}.", grid[0][0], columns=3)
    return figure


def _scale(axes: Axes, pair: Pair, values: Sequence[float | None]) -> None:
    """Fit the y axis to the values and ``pair.flip``; long confidence intervals may be cut off."""
    known = [pair.flip, *(value for value in values if value is not None)]
    if not pair.is_ratio:
        margin = 0.15 * (max(known) - min(known)) or 0.1
        axes.set_ylim(min(known) - margin, max(known) + margin)
        return
    low, high = min(known) / WIDER, max(known) * WIDER
    log_y(axes)
    axes.set_ylim(low, high)
    ticks = [
        digit * 10.0**power
        for power in range(floor(log10(low)), ceil(log10(high)))
        for digit in _digits(high / low)
    ]
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])


def _digits(span: float) -> Sequence[float]:
    """Return the leading digits of ticks on a log axis that spans the factor ``span``."""
    if span < 3:
        return (1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    return (1, 2, 5) if span < 50 else (1,)


def _unit(pair: Pair) -> str:
    return "ratio" if pair.is_ratio else "difference"


def _panel(axes: Axes, lines: Sequence[Pair], readings: Sequence[Reading]) -> None:
    labels = list(dict.fromkeys(one.step.label for one in readings))
    for one in readings:
        if one.step.is_default:
            at = labels.index(one.step.label)
            axes.axvspan(at - 0.35, at + 0.35, color="0.9", zorder=0, linewidth=0)
    for number, pair in enumerate(lines):
        shift = 0.5 * ((number + 0.5) / len(lines) - 0.5)
        of = {one.step.label: one for one in readings if one.measure.name == pair.name}
        _line(axes, SERIES[number % len(SERIES)], pair, labels, of, shift)
    for flip in {pair.flip for pair in lines}:
        axes.axhline(flip, color="0.2", linestyle=":", linewidth=1.0, zorder=1)
    axes.set_xticks(range(len(labels)), [name.replace("-", "-\n") for name in labels], fontsize=6)
    axes.tick_params(axis="y", labelsize=6)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.grid(visible=False, axis="x")


def _line(
    axes: Axes,
    swatch: Swatch,
    pair: Pair,
    labels: Sequence[str],
    readings: Mapping[str, Reading],
    shift: float,
) -> None:
    """Draw a line for one measure; the x axis shows the values of a setting.

    ``shift`` moves the points sideways, to keep the intervals of several measures apart.
    """
    known = {
        labels.index(label) + shift: one.seen
        for label, one in readings.items()
        if one.seen.value is not None
    }
    values = {at: seen.value or 0.0 for at, seen in known.items()}
    axes.plot(
        list(values), list(values.values()), color=swatch.colour, linewidth=0.8, alpha=0.7,
        linestyle=(0.0, swatch.dashes) if swatch.dashes else "-",
    )  # fmt: skip
    for at, seen in known.items():
        value = values[at]
        below = max(0.0, value - (value if seen.low is None else seen.low))
        above = max(0.0, (value if seen.high is None else seen.high) - value)
        axes.errorbar(
            at, value, yerr=[[below], [above]],
            color=swatch.colour, elinewidth=0.9, marker=swatch.marker, markersize=3.5,
            markerfacecolor="white" if seen.outcome is Outcome.UNCONTENDED else swatch.colour,
        )  # fmt: skip
        if seen.bound:
            _arrow(axes, at, value, up=seen.bound == ">", colour=swatch.colour)
    axes.plot([], [], swatch.marker, color=swatch.colour, label=pair.name)


def _arrow(axes: Axes, at: float, value: float, *, up: bool, colour: str) -> None:
    axes.annotate(
        "",
        (at, value),
        (0, 9 if up else -9),
        textcoords="offset points",
        arrowprops={"arrowstyle": "<-", "color": colour, "linewidth": 0.8},
    )


def draw_maps(
    mapped: Sequence[Mapped],
    titles: Mapping[int, str],
    readings: Sequence[Reading],
    bases: Mapping[int, str],
    output: Path,
    formats: Sequence[str],
) -> list[Path]:
    """Draw a picture ``claims-map-N`` for each claim with verdicts; return the paths of all files.

    ``titles`` and ``bases`` (the hardware of the runs) are keyed by claim number. Raises UsageError
    if a file cannot be written.
    """
    written = []
    with paper_style():
        for claim in mapped:
            if not any(one.claim == claim.number for one in readings):
                continue
            title = f"Claim {claim.number}: {titles[claim.number]}"
            figure = draw_map(claim, title, readings, bases[claim.number])
            written += write_figure(figure, output, f"{NAME}-{claim.number}", formats)
    return written
