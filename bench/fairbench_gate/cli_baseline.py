"""``fairbench baseline``: rerun stored experiments, and check or update their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import fairbench_gate as gate
from fairbench import execute, report
from fairbench import results as stored
from fairbench.cli.exits import complain
from fairbench.cli.options import NoProgress
from fairbench.cli.output import terminal_look
from fairbench_gate import cli_check

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench.errors import FairbenchError
    from fairbench.results.store import StoredRun

baseline = typer.Typer(
    help="Rerun stored experiments, and report or accept changed results.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="Directory of the baseline, with NAME/experiment.toml for each experiment.",
    ),
]
DEFAULT_FOLDER = Path("results/baseline")


@baseline.command()
def check(
    folder: Folder = DEFAULT_FOLDER,
    fail_if: Annotated[
        list[str] | None, cli_check.limit_option("[default: no difference is allowed]")
    ] = None,
    output: cli_check.FormatOption = cli_check.CheckFormat.TABLE,
    disable_tqdm: NoProgress = False,
) -> None:
    """Rerun all experiments; exit 1 if a result differs from the stored result.

    The exit code is 3 if a run failed, for example because its scheduler raised an error.
    """
    with cli_check.reporting(output):
        specs = gate.read_specs(folder)
        gate.check_stored(folder, specs)
        # An invalid limit is refused before the runs start.
        for text in fail_if or []:
            clause = gate.parse_clause(text, gate.metrics_stored(folder, specs))
            stored.check_metrics_of([clause.metric], list(specs.values()), "--fail-if")
        with _rerun(specs, show=not disable_tqdm) as rerun:
            outcome = gate.NOTHING
            if rerun.runs:
                outcome = cli_check.judged(folder, rerun.path, fail_if or [], left_out=rerun.failed)
    for error in rerun.failed.values():
        complain(str(error), getattr(error, "__notes__", ()))
    names = dict(zip(specs, stored.point_names(list(specs.values())), strict=True))
    outcome = outcome.with_errors({names[name]: str(e) for name, e in rerun.failed.items()})
    advice = f". If this is intended: fairbench baseline update {folder}"
    cli_check.print_outcome(outcome, output, advice=advice)


@baseline.command()
def update(folder: Folder = DEFAULT_FOLDER, disable_tqdm: NoProgress = False) -> None:
    """Rerun all experiments; print and store the results that changed.

    To add an experiment to the baseline, first create its file NAME/experiment.toml.
    """
    colour, width = terminal_look()
    with _rerun(gate.read_specs(folder), show=not disable_tqdm) as rerun:
        for error in rerun.failed.values():
            raise error
        for name, run in rerun.runs.items():
            text = gate.difference(folder / name, run, colour=colour, width=width)
            typer.echo(f"{name}:\n{text}" if text else f"{name}: no difference\n", nl=False)
            if text:
                gate.keep(run, folder / name)


class _Rerun(NamedTuple):
    """The results of reruns: runs and errors by experiment name, and the directory of the runs."""

    runs: dict[str, StoredRun]
    failed: dict[str, FairbenchError]
    path: Path


@contextmanager
def _rerun(specs: Mapping[str, ExperimentSpec], *, show: bool) -> Iterator[_Rerun]:
    """Rerun all experiments of the baseline in a temporary directory.

    Raises Interrupted if the user stops the runs.
    """
    from fairbench.config import identity

    with TemporaryDirectory(prefix="fairbench-") as temporary:
        path = Path(temporary)
        with execute.run_context(report.shown_progress() if show else None) as context:
            results = execute.simulate_each(list(specs.values()), path, context)
        if context.interrupted():
            raise context.interrupted.ended("interrupted; the baseline is unchanged")
        failed = {
            name: ended.error
            for index, name in enumerate(specs)
            if isinstance(ended := results[index], execute.Failure)
        }
        found = {run.manifest["spec_identity"]: run for run in stored.runs_in(path)}
        runs = {name: found[identity(spec)] for name, spec in specs.items() if name not in failed}
        yield _Rerun(runs, failed, path)
