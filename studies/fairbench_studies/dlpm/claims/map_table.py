"""Tables for the map of claims: the number of configurations in which each claim holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairbench.errors import UsageError
from fairbench_studies.dlpm.claims.map_axes import AXES
from fairbench_studies.dlpm.claims.map_points import Reading
from fairbench_studies.kit.rows import write_rows
from fairbench_studies.kit.tally import Tally

NAME = "claims-map"
EXPLANATION = (
    "This page shows which claims depend on which setting. One setting at a time differs from its "
    "default (**bold**). For example, `1/2: 3/4` means that with half of the KV pool the claim "
    "holds in 3 of 4 contended configurations; a dash means that none is contended. Inconclusive "
    "configurations count as not holding. Claims 9 and 15 use the configurations of their "
    f"figures, 9 and 11. {NAME}.csv has each value with its interval."
)


def map_markdown(readings: Sequence[Reading], titles: dict[int, str], basis: str) -> str:
    """Return a Markdown table with a row per claim and measure, and a column per setting."""
    axes = [axis for axis in AXES if any(one.step.axis == axis for one in readings)]
    places = ", ".join(dict.fromkeys(str(one.place) for one in readings))
    lines = [
        "# Where each claim of the DLPM paper holds",
        "",
        EXPLANATION,
        "",
        f"Configurations, as workload, scenario and number of replicas: {places}. "
        f"{basis[0].upper()}{basis[1:]}.",
        "",
        f"| # | claim | by | {' | '.join(axes)} |",
        f"|--:|---|---|{'---|' * len(axes)}",
    ]
    for claim, of_claim in _grouped(readings, lambda one: one.claim):
        title = titles[claim]  # only the first table row of a claim shows the claim's title
        for measure, mine in _grouped(of_claim, lambda one: one.measure.name):
            columns = [_axis([one for one in mine if one.step.axis == axis]) for axis in axes]
            lines.append(f"| {claim} | {title} | {measure} | {' | '.join(columns)} |")
            title = ""
    return "\n".join(lines) + "\n"


def _axis(readings: Sequence[Reading]) -> str:
    """Return the number of configurations in which a claim holds, for each value of a setting.

    In the text ``1/2: 4/4``, the claim holds in all 4 contended configurations at half the default
    value.
    """
    listed = []
    for label, of in _grouped(readings, lambda one: one.step.label):
        tally = Tally(label, {one.place: one.seen for one in of})
        # A label is bold if it is the default of any configuration; defaults may differ.
        name = f"**{label}**" if any(one.step.is_default for one in of) else label
        listed.append(f"{name}: {f'{tally.holds}/{tally.counted}' if tally.counted else '-'}")
    return ", ".join(listed)


def _grouped(readings: Iterable[Reading], key: Any) -> list[tuple[Any, list[Reading]]]:
    found: dict[Any, list[Reading]] = {}
    for one in readings:
        found.setdefault(key(one), []).append(one)
    return list(found.items())


def map_rows(readings: Iterable[Reading]) -> list[dict[str, Any]]:
    """Return a row for each combination of claim, measure, configuration and setting value."""
    return [
        {
            "claim": one.claim,
            "measure": one.measure.name,
            "workload": one.place.workload,
            "scenario": one.place.scenario,
            "dp": one.place.dp,
            "axis": one.step.axis,
            "at": one.step.label,
            "is_default": one.step.is_default,
            "outcome": str(one.seen.outcome),
            "value": one.seen.value,
            "low": one.seen.low,
            "high": one.seen.high,
            "bound": one.seen.bound,
            "seeds": one.seeds,
        }
        for one in readings
    ]


def write_map(
    readings: Sequence[Reading], titles: dict[int, str], basis: str, folder: Path
) -> list[Path]:
    """Write ``claims-map.md`` and ``claims-map.csv``.

    Raises UsageError if a file cannot be written.
    """
    markdown, table = folder / f"{NAME}.md", folder / f"{NAME}.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        markdown.write_text(map_markdown(readings, titles, basis), encoding="utf-8")
        write_rows(table, map_rows(readings))
    except OSError as error:
        raise UsageError(f"claims_dir {folder}: cannot be written: {error.strerror}") from None
    return [markdown, table]
