"""Figure 4 ([DLPM] §5.1): the cost of a central scheduler, by replicas and queue length.

The scheduler's time per round is measured on the machine that runs ``fairbench reproduce fig4``.
The figure compares this time with the length of a simulated decode step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.errors import DataError
from fairbench.report.palette import BLUE, GREEN, ORANGE
from fairbench.results.store import read_json
from fairbench_papers.style import HATCHES, caption, panels
from fairbench_studies.kit.rows import read_rows, write_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE = "timings.json"
QUEUE = 200  # queued requests in the plot over the number of replicas ([DLPM] Fig. 4)
REPLICAS = 8  # number of replicas in the plot over the queue length

BASIS = ("timing_profile", "host", "seed", "rounds")
PARTS = {
    "synchronisation_ms": ("messages", ORANGE.colour),
    "match_ms": ("prefix match", BLUE.colour),
    "dispatch_ms": ("sort and DLPM", GREEN.colour),
}


@dataclass(frozen=True, slots=True)
class Timings:
    """Measured times of a central scheduler, with the machine and the number of rounds.

    Each point is a mapping with ``workers``, ``waiting``, the times of all ``PARTS``, ``update_ms``
    and ``decode_step_ms``.
    """

    timing_profile: str
    host: str
    seed: int
    rounds: int
    points: Sequence[Mapping[str, Any]]


def read_timings(folder: Path) -> Timings:
    """Read a central scheduler's timings. Raises DataError if the timings are unreadable."""
    path = folder / FILE
    content = read_json(path)
    try:
        return Timings(**content)
    except TypeError:
        raise DataError(f"{path}: must hold the timings of a central scheduler") from None


def write_values(path: Path, timings: Timings) -> None:
    """Write a central scheduler's timings as CSV, with machine, seed and rounds in each row."""
    basis = {key: getattr(timings, key) for key in BASIS}
    write_rows(path, [basis | row for row in rows(timings)])


def read_values(path: Path) -> Timings:
    """Read a central scheduler's timings from a file that ``write_values`` wrote."""
    listed = read_rows(path)
    profile, host, seed, rounds = (listed[0][key] for key in BASIS)
    points = [{key: float(row[key]) for key in row if key not in BASIS} for row in listed]
    return Timings(profile, host, int(seed), int(rounds), points)


def overhead_pct(point: Mapping[str, Any]) -> float:
    """Return the scheduler's total cost in percent of a decode step, as in [DLPM] §5.1."""
    return 100 * sum(float(point[part]) for part in PARTS) / float(point["decode_step_ms"])


def rows(timings: Timings) -> list[dict[str, Any]]:
    """Return a row for each combination of replicas and queue length."""
    return [dict(point) | {"overhead_pct": overhead_pct(point)} for point in timings.points]


def draw(timings: Timings) -> Figure:
    """Draw a central scheduler's time per round by replicas (left) and by queue length (right)."""
    table = rows(timings)
    figure, axes = panels(1, 2, 8.0, 3.6, sharey=True)
    left = [row for row in table if row["waiting"] == QUEUE]
    right = [row for row in table if row["workers"] == REPLICAS]
    _bars(axes[0][0], left, "workers", f"replicas (queue of {QUEUE})")
    _bars(axes[0][1], right, "waiting", f"requests in the queue ({REPLICAS} replicas)")
    axes[0][0].set_ylabel("ms per round")
    caption(
        figure,
        "DLPM Fig. 4: what a central scheduler costs",
        f"bars: measured on {timings.host}, {timings.rounds} rounds, seed {timings.seed}; decode "
        f"step of 25 requests: simulated on {timings.timing_profile}",
        axes[0][0],
    )
    return figure


def _bars(axes: Axes, table: Sequence[dict[str, Any]], x: str, label: str) -> None:
    places = range(len(table))
    base = [0.0] * len(table)
    for (part, (name, colour)), hatch in zip(PARTS.items(), HATCHES, strict=False):
        heights = [row[part] for row in table]
        axes.bar(
            places, heights, 0.6, base, label=name, color=colour, hatch=hatch, edgecolor="white"
        )
        base = [below + height for below, height in zip(base, heights, strict=True)]
    for place, top, row in zip(places, base, table, strict=True):
        axes.annotate(f"{row['overhead_pct']:.0f}%", (place, top), ha="center", va="bottom")
    if table:
        axes.axhline(
            table[0]["decode_step_ms"], color="black", linestyle="--", label="one decode step"
        )
    axes.set_xticks(places, [str(row[x]) for row in table])
    axes.set_xlabel(label)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.1)  # space for the percentages above the bars
