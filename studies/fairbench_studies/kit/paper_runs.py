"""``fairbench reproduce`` for the VTC and Preble papers: missing runs, figures and claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import typer

from fairbench.config.spec import ExperimentSpec, identity
from fairbench.errors import DataError
from fairbench.execute.repeats import simulate_all
from fairbench.execute.tasks import Executor, RunContext, run_context
from fairbench.report.progress import shown_progress
from fairbench.results.store import StoredRun, runs_in
from fairbench_studies.kit.claims_page import HERE, Judged, Page, page_text, write_page
from fairbench_studies.kit.parts import Claim
from fairbench_studies.kit.rows import Row, read_rows, write_rows


class Experiment(Protocol):
    """An experiment that can be repeated with any random seed."""

    def spec(self, seed: int) -> ExperimentSpec:
        """Return the complete specification of the experiment with the given seed."""
        ...


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper to reproduce, with the functions that turn its runs into figures and claims.

    ``experiments`` returns the experiments whose data files exist. ``read`` takes a folder and the
    number of seeds, and returns results. ``plot`` draws results and returns the written files.
    ``basis`` returns a text about the hardware and seeds of results. A claim's ``judge`` function
    takes results, and raises KeyError if a run is missing. ``keep`` converts results into rows of
    the judged values for each seed, and ``recall`` restores results from these rows.
    """

    name: str
    title: str
    seeds: int
    claims: Sequence[Claim]
    experiments: Callable[[], Iterable[Experiment]]
    read: Callable[[Path, int], Any]
    plot: Callable[[Any, Path, Sequence[str]], list[Path]]
    basis: Callable[[Any], str]
    keep: Callable[[Any], Sequence[Row]]
    recall: Callable[[Sequence[Row]], Any]

    def judge(self, results: Any) -> list[Judged]:
        """Judge the paper's claims; a claim without stored runs gets no verdict."""
        return [Judged(claim, _parts(claim, results)) for claim in self.claims]

    def page(self, judged: Sequence[Judged], results: Any) -> str:
        """Return the text of the results page, with a verdict on each claim in ``judged``."""
        title = Page(f"Claims of the {self.title} paper")
        return page_text(title, judged, [HERE], [self.basis(results)])


def _parts(claim: Claim, results: Any) -> dict[str, Any]:
    try:
        return {HERE: claim.judge(results)}
    except KeyError:
        return {}


def reproduce_paper(
    paper: Paper,
    folder: Path,
    output: Path,
    claims_dir: Path,
    formats: Sequence[str],
    executor: Executor,
    *,
    quick: bool,
    show: bool,
) -> None:
    """Run missing simulations, draw the figures, and judge the claims.

    Raises Interrupted after a signal. Raises the error of a failed run.
    """
    seeds = 1 if quick else paper.seeds
    with run_context(shown_progress() if show else None, executor) as context:
        fill(paper.experiments(), folder, context, seeds=seeds)
        if context.interrupted():
            raise context.interrupted.ended(f"interrupted; finished runs are in {folder}")
    results = paper.read(folder, seeds)
    for path in paper.plot(results, output, formats):
        typer.echo(path)
    judged = paper.judge(results)
    if rows := paper.keep(results):
        path = _seeds_path(paper, claims_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_rows(path, rows)
        typer.echo(path)
    _write_page(paper, judged, results, claims_dir)
    if left := [str(one.claim.number) for one in judged if not one.parts]:
        typer.echo(
            "fairbench: not judged, because runs are missing "
            f"(docs/studies/{paper.name}-paper.md): {', '.join(left)}",
            err=True,
        )


def judge_stored(paper: Paper, source: Path, claims_dir: Path) -> None:
    """Judge a paper's claims from the stored values of each seed, without any simulation.

    Raises DataError if the folder contains no stored values.
    """
    path = _seeds_path(paper, source)
    try:
        rows = read_rows(path)
        if not rows:
            raise ValueError("no rows")
        results = paper.recall(rows)
    except OSError:
        raise DataError(f"{path}: no such file; run `fairbench reproduce {paper.name}`") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: holds no per-seed values ({error})") from None
    _write_page(paper, paper.judge(results), results, claims_dir)


def _seeds_path(paper: Paper, folder: Path) -> Path:
    return folder / "seeds" / f"{paper.name}.csv"


def _write_page(paper: Paper, judged: Sequence[Judged], results: Any, claims_dir: Path) -> None:
    text = paper.page(judged, results)
    for path in write_page(judged, text, claims_dir, f"{paper.name}-claims"):
        typer.echo(path)
    typer.echo(text, nl=False)


def fill(
    experiments: Iterable[Experiment], folder: Path, context: RunContext, *, seeds: int
) -> None:
    """Simulate, in parallel, the runs with seeds below ``seeds`` that are missing in ``folder``.

    If a run fails, raises the error of the run.
    """
    done = stored(folder)
    specs = {identity(spec): spec for one in experiments for spec in map(one.spec, range(seeds))}
    missing = [spec for key, spec in specs.items() if key not in done]
    if missing:
        simulate_all(missing, folder, context)


def listed_seeds(count: int) -> str:
    """Return the first ``count`` seeds as text, such as ``seeds 0 to 2``."""
    return f"seeds 0 to {count - 1}" if count > 1 else "seed 0"


def stored(folder: Path) -> dict[str, StoredRun]:
    """Return the complete runs in a folder, keyed by the identity of their experiments."""
    runs = runs_in(folder) if folder.is_dir() else []
    return {run.manifest["spec_identity"]: run for run in runs if run.manifest["complete"]}
