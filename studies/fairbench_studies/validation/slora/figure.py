"""The figure of replayed S-LoRA runs: the errors of all metrics, and times to first token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairbench.report.palette import BLUE, GREEN, PURPLE, VERMILION
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.validation.slora.compare import RunComparison
from fairbench_studies.validation.slora.targets import LONG_TTFT_S, P50_TARGET_PCT, P99_TARGET_PCT
from fairbench_studies.validation.windows import RATE_TARGET_PCT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, HEIGHT_IN, DPI = 10.0, 5.4, 110
ERROR_LIMIT_PCT = 42.0


class _Kind(NamedTuple):
    label: str
    marker: str
    colour: str


THROUGHPUT = _Kind("token throughput", "o", BLUE.colour)
GAP = _Kind("max accumulated service gap", "D", GREEN.colour)
P50 = _Kind("TTFT P50 (if over 1 s)", "^", VERMILION.colour)
P99 = _Kind("TTFT P99 (if over 1 s)", "v", PURPLE.colour)
KINDS = (THROUGHPUT, GAP, P50, P99)


def draw(runs: list[RunComparison], title: str, basis: str, paths: Sequence[Path]) -> None:
    """Draw the figure to each path, in the format of the path's suffix.

    Runs to which constants were fitted have open markers. Equal comparisons give equal SVG files.
    Requires matplotlib.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 8, "svg.hashsalt": "fairbench", "svg.fonttype": "none"}):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        _errors(left, runs)
        _times(right, runs)
        figure.suptitle(f"{len(runs)} runs simulated against measured: {title}")
        figure.supxlabel(basis.replace("; ", "\n", 1), fontsize=7)
        for path in paths:
            # The file gets no date, so that equal numbers give equal files.
            metadata = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, dpi=DPI, metadata=metadata)


def _points(run: RunComparison) -> list[tuple[_Kind, Pair]]:
    points = [(GAP, run.max_gap), (THROUGHPUT, run.throughput)]
    for ttft in run.ttft:
        points += [(P50, ttft.p50_s), (P99, ttft.p99_s)]
    return [
        (k, pair) for k, pair in points if k in (THROUGHPUT, GAP) or pair.measured > LONG_TTFT_S
    ]


def _errors(axes: Axes, runs: list[RunComparison]) -> None:
    ordered = sorted(runs, key=lambda run: (not run.fitted, run.name))
    for target, shade in ((P99_TARGET_PCT, "0.95"), (RATE_TARGET_PCT, "0.86")):
        axes.axvspan(-target, target, color=shade, zorder=0)
    axes.axvline(0, color="0.4", linewidth=0.8)
    for row, run in enumerate(ordered):
        for kind, pair in _points(run):
            if (error := pair.error_pct) is None:
                continue
            shown = max(-ERROR_LIMIT_PCT, min(ERROR_LIMIT_PCT, error))
            axes.plot(shown, row, **_mark(kind, run))
            if shown != error:
                axes.annotate(f"{error:+.0f}%", (shown, row), (0, 5), textcoords="offset points",
                              ha="center", fontsize=6)  # fmt: skip
    names = [run.name + (" (fitted)" if run.fitted else "") for run in ordered]
    axes.set_yticks(range(len(ordered)), names)
    axes.set_xlim(-ERROR_LIMIT_PCT - 3, ERROR_LIMIT_PCT + 3)
    axes.set_xlabel(
        f"simulated - measured, % of measured "
        f"(shaded: {RATE_TARGET_PCT:g}% and {P99_TARGET_PCT:g}%)"
    )
    axes.grid(axis="y", color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    _legend(axes, KINDS)


def _times(axes: Axes, runs: list[RunComparison]) -> None:
    pairs = [
        (kind, run, pair)
        for run in runs
        for ttft in run.ttft
        for kind, pair in ((P50, ttft.p50_s), (P99, ttft.p99_s))
        if pair.measured > 0 and pair.simulated > 0
    ]
    if not pairs:
        return
    ends = [min(p.measured for *_, p in pairs) / 2, max(p.measured for *_, p in pairs) * 2]
    target = P50_TARGET_PCT / 100
    low, high = ([end * (1 + sign * target) for end in ends] for sign in (-1, 1))
    axes.fill_between(ends, low, high, color="0.9", label=f"within {P50_TARGET_PCT:g}%")
    axes.plot(ends, ends, color="0.4", linewidth=0.8)
    axes.axvline(LONG_TTFT_S, color="0.6", linewidth=0.6, linestyle=":")
    for kind, run, pair in pairs:
        axes.plot(pair.measured, pair.simulated, **_mark(kind, run))
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set_xlabel("measured time to first token, s (targets: right of the dots)")
    axes.set_ylabel("simulated, s")
    _legend(axes, (P50, P99))


def _mark(kind: _Kind, run: RunComparison) -> dict[str, Any]:
    return {
        "marker": kind.marker,
        "markersize": 5,
        "markeredgecolor": kind.colour,
        "markerfacecolor": "none" if run.fitted else kind.colour,
        "linestyle": "none",
        "alpha": 0.85,
    }


def _legend(axes: Axes, kinds: Sequence[_Kind]) -> None:
    for kind in kinds:
        label = kind.label if axes.get_xscale() == "linear" else kind.label.split(" (")[0]
        axes.plot([], [], kind.marker, color=kind.colour, markersize=5, label=label)
    axes.plot([], [], "o", markerfacecolor="none", markeredgecolor="0.3", markersize=5,
              label="open: fitted to this run")  # fmt: skip
    if axes.get_xscale() == "log":
        axes.legend(loc="lower right", fontsize=6.5)
    else:  # a legend above the axes covers no markers
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3, fontsize=6.5)
