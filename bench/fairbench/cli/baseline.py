"""``fairbench baseline``: rerun stored experiments, and check or update their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from fairbench.cli.check import Format, FormatOption, limit_option
from fairbench.cli.exits import complain
from fairbench.cli.flags import NoProgress

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench.errors import FairbenchError
    from fairbench.results.store import StoredRun

baseline = typer.Typer(
    help="Rerun stored experiments; report or accept differences.",
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
        list[str] | None, limit_option("[default: no difference is allowed]")
    ] = None,
    output: FormatOption = Format.TABLE,
    disable_tqdm: NoProgress = False,
) -> None:
    """Rerun all experiments; exit 1 if a result differs from the stored one.

    The exit code is 3 if a run failed, such as one whose scheduler raised an error.
    """
    from fairbench.cli.check import judged, print_outcome, told
    from fairbench.gate.baseline import check_stored, metrics_stored, read_specs
    from fairbench.gate.judge import parse_clause
    from fairbench.gate.outcome import NOTHING
    from fairbench.results.expected import check_metrics_of
    from fairbench.results.grid import point_names

    with told(output):
        specs = read_specs(folder)
        check_stored(folder, specs)
        for text in fail_if or []:  # before anything runs
            clause = parse_clause(text, metrics_stored(folder, specs))
            check_metrics_of([clause.metric], list(specs.values()), "--fail-if")
        with _rerun(specs, show=not disable_tqdm) as rerun:
            outcome = NOTHING
            if rerun.runs:
                outcome = judged(folder, rerun.path, fail_if or [], left_out=rerun.failed)
    for error in rerun.failed.values():
        complain(str(error), getattr(error, "__notes__", ()))
    names = dict(zip(specs, point_names(list(specs.values())), strict=True))
    outcome = outcome.with_errors({names[name]: str(e) for name, e in rerun.failed.items()})
    advice = f". If this is intended: fairbench baseline update {folder}"
    print_outcome(outcome, output, advice=advice)


@baseline.command()
def update(folder: Folder = DEFAULT_FOLDER, disable_tqdm: NoProgress = False) -> None:
    """Rerun all experiments, print the results that changed and store them.

    Results that did not change are left as they are. To add an experiment, create its file
    NAME/experiment.toml first.
    """
    from fairbench.cli.output import look
    from fairbench.gate.baseline import difference, keep, read_specs

    colour, width = look()
    with _rerun(read_specs(folder), show=not disable_tqdm) as rerun:
        for error in rerun.failed.values():
            raise error
        for name, run in rerun.runs.items():
            text = difference(folder / name, run, colour=colour, width=width)
            typer.echo(f"{name}:\n{text}" if text else f"{name}: no difference\n", nl=False)
            if text:
                keep(run, folder / name)


class _Rerun(NamedTuple):
    """Rerun experiments by name: their runs, or why they failed, and the runs' directory."""

    runs: dict[str, StoredRun]
    failed: dict[str, FairbenchError]
    path: Path


@contextmanager
def _rerun(specs: Mapping[str, ExperimentSpec], *, show: bool) -> Iterator[_Rerun]:
    """Rerun all experiments in a temporary directory. Raises Interrupted when interrupted."""
    from fairbench.config import identity
    from fairbench.execute.context import run_context
    from fairbench.execute.executor import Failure
    from fairbench.execute.repeats import simulate_each
    from fairbench.report.progress import shown_progress
    from fairbench.results.store import runs_in

    with TemporaryDirectory(prefix="fairbench-") as temporary:
        path = Path(temporary)
        with run_context(shown_progress() if show else None) as context:
            results = simulate_each(list(specs.values()), path, context)
        if context.interrupted():
            raise context.interrupted.ended("interrupted; the baseline is unchanged")
        failed = {
            name: ended.error
            for index, name in enumerate(specs)
            if isinstance(ended := results[index], Failure)
        }
        found = {run.manifest["spec_identity"]: run for run in runs_in(path)}
        runs = {name: found[identity(spec)] for name, spec in specs.items() if name not in failed}
        yield _Rerun(runs, failed, path)
