"""``fairbench reproduce artifact``: a page with every reproduced figure and claim of the papers.

For each part of a claim, the page shows the paper's result, fairbench's result with its interval,
and the verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.config.sweep import sweep_names
from fairbench.errors import DataError
from fairbench.execute.tasks import RunContext
from fairbench.report.pages.html import write_page
from fairbench.report.pages.page import Cell, Grid, Headline, Page, Paragraph, Section
from fairbench.results.comparison import SchedulerResults, compare_sweep
from fairbench_studies.dlpm.claims.table import SEEDS
from fairbench_studies.kit.claims_page import readings
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import COUNTED
from fairbench_studies.kit.rows import ROOT, Row, read_rows
from fairbench_studies.kit.seeds import FACTS, TEXTS, read_seeds
from fairbench_studies.kit.store import fill_store

ARTIFACT = "artifact"
HEADINGS = ("part", "here", "95% interval", "verdict", "holds under")


class PaperTable(NamedTuple):
    """A paper's title, the stem of its file of verdicts, and the prefix of its picture files."""

    title: str
    stem: str
    pictures: str = ""


PAPERS = (
    PaperTable("Locality-aware Fair Scheduling in LLM Serving (DLPM, D2LPM)", "claims"),
    PaperTable("Fairness in Serving Large Language Models (VTC)", "vtc-claims", "vtc-"),
    PaperTable("Preble", "preble-claims", "preble-"),
    PaperTable("A textbook's listing", "textbook-claims"),
)


def artifact_page(folders: Sequence[Path], repeated: Mapping[str, str]) -> Page:
    """Build the page about every figure and claim from stored results.

    Args:
        folders: The folders to search, in order, for each paper's table of claims.
        repeated: For each figure whose runs were repeated, a comparison with the stored values.

    Raises DataError if a table of claims does not exist.
    """
    sections, headlines = [], []
    for paper in PAPERS:
        rows = _rows(folders, paper)
        for setting in dict.fromkeys(row["setting"] for row in rows):
            mine = [row for row in rows if row["setting"] == setting]
            headlines.append(Headline(*_counted(paper, setting, mine)))
            for figure in dict.fromkeys(row["figure"] for row in mine):
                of = [row for row in mine if row["figure"] == figure]
                sections.append(_section(paper, setting, figure, of, repeated))
    return Page(
        "Artifact: the judged claims of four papers",
        "Simulated, except DLPM's figure 4 and Preble's decisions per second, which are measured. "
        "Each section names its runs.",
        headlines,
        [],
        [_how(repeated), *sections],
    )


def _rows(folders: Sequence[Path], paper: PaperTable) -> list[dict[str, str]]:
    paths = [folder / f"{paper.stem}.csv" for folder in folders]
    for path in paths:
        if path.exists():
            return read_rows(path)
    raise DataError(f"{paths[-1]}: no such file; give a folder of results, such as 'results'")


def _counted(paper: PaperTable, setting: str, rows: Sequence[Row]) -> tuple[str, str, str]:
    counts = Counter(row["outcome"] for row in rows)
    tested = sum(counts[one] for one in COUNTED)
    rest = ", ".join(f"{counts[one]} {one}" for one in COUNTED[1:])
    name = paper.title if setting == "here" else f"{paper.title}, {setting}"
    return name, f"{counts[Outcome.HOLDS]} of {tested} parts hold", rest


def _how(repeated: Mapping[str, str]) -> Section:
    blocks: list[Any] = [
        Paragraph(
            "A verdict is one of: holds, reversed, off (a number outside its band), inconclusive, "
            "not contended (no client competed), not testable. claims.md, vtc-claims.md, "
            "preble-claims.md and textbook-claims.md say how a part is judged and why a part does "
            "not hold. An interval is that of the number that decides; parts about several "
            "configurations have a range instead. The last column lists the readings of what a "
            "paper leaves open; a dash means that no other reading was tried."
        )
    ]
    if repeated:
        rows = [(Cell(figure), Cell(said)) for figure, said in repeated.items()]
        blocks.append(Grid(("figure", "runs that were repeated now"), rows))
    return Section("How to read this page", blocks)


def _section(
    paper: PaperTable, setting: str, figure: str, rows: Sequence[Row], repeated: Mapping[str, str]
) -> Section:
    where = "" if setting == "here" else f", {setting}"
    name = f"figure {figure.removeprefix('fig')}" if figure.startswith("fig") else figure
    text = f"Runs: {rows[0].get('basis') or 'see the page of the claims'}."
    if pictures := _pictures(paper, figure, setting):
        text += f" Pictures: {', '.join(pictures)}."
    if figure in repeated and "rerun" not in setting:
        text += f" Repeated: {repeated[figure]}."
    title = f"{paper.title}: {name}{where}"
    return Section(title, [Paragraph(text), Grid(HEADINGS, list(_grid_rows(rows)))])


def _pictures(paper: PaperTable, figure: str, setting: str) -> list[str]:
    names = f"{paper.pictures}*.svg" if paper.pictures else f"{figure}.svg"
    if "rerun" in setting:
        names = f"{figure}-dlpm-paper.svg"
    return sorted(f"plots/{path.name}" for path in (ROOT / "plots").glob(names))


def _grid_rows(rows: Sequence[Row]) -> Iterator[tuple[Cell, ...]]:
    claim = ""
    for row in rows:
        if row["number"] != claim:
            claim = row["number"]
            source = row["source"].replace("[", "").replace("]", "")
            yield (Cell(f"{claim}. {row['claim']} ({source}). Paper: {row['paper']}"),)
        yield tuple(
            Cell(text or "-")
            for text in (
                row["part"], row["ours"], row.get("interval"), row["outcome"],
                readings(outcomes_in(row.get("under") or "")),
            )
        )  # fmt: skip


def outcomes_in(text: str) -> dict[str, Outcome]:
    """Parse a text such as ``output tok/s: holds; makespan: reversed``; return verdicts by name."""
    named = (one.rpartition(": ") for one in text.split("; ") if one)
    return {name: Outcome(made) for name, _, made in named}


def write_artifact(page: Page, folder: Path) -> list[Path]:
    """Write the page as ``artifact.html`` and ``artifact.md``, and return both paths."""
    paths = [folder / f"{ARTIFACT}{ending}" for ending in (".html", ".md")]
    for path in paths:
        write_page(page, path, "claims_dir")
    return paths


def repeat_first_seeds(folder: Path, runs: Path, context: RunContext) -> dict[str, str]:
    """Simulate each figure's runs with the first seed again, and compare them with stored values.

    Args:
        folder: The folder with the results and the stored values of each seed.
        runs: The folder for the new simulation runs.

    Returns a text for each figure with the number of runs that reproduce the stored values.
    """
    said = {}
    for figure in sweep_names():
        stored = folder / SEEDS / f"{figure}.csv"
        if stored.exists() and not context.interrupted():
            failed = fill_store(figure, runs / f"{figure}-quick", context, quick=True)
            again = compare_sweep(runs / f"{figure}-quick")
            said[figure] = _agreement(read_seeds(stored), again, len(failed))
    return said


def _agreement(
    stored: Iterable[SchedulerResults], again: Iterable[SchedulerResults], failed: int
) -> str:
    known = [_facts(run.summary) for cell in stored for run in cell.runs]
    new = [_facts(run.summary) for cell in again for run in cell.runs]
    same = sum(one in known for one in new)
    return f"{same} of {len(new) + failed} runs repeat every stored value"


def _facts(summary: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(
        value if key in TEXTS or value is None else float(value)
        for key in FACTS
        for value in [summary.get(key)]
    )
