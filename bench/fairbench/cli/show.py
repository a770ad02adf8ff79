"""``fairbench show`` prints a stored run, and ``recover`` saves and prints a killed run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairbench import execute, results, sim
from fairbench.api.logs import log_tools
from fairbench.cli import output
from fairbench.cli.options import Explain, json_option
from fairbench.errors import DataError, UsageError
from fairbench.files.reader import MissingFile
from fairbench.results.new_directories import FOLDER


def show(
    run_dir: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of a run, a sweep or a plan.")
    ],
    as_json: Annotated[bool, json_option("the summary", panel=None)] = False,
    explain: Explain = False,
    output_file: output.OutputFile = None,
    output_details: output.OutputDetails = False,
) -> None:
    """Print a stored run or the comparison of a sweep again."""
    is_sweep = _is_sweep(run_dir)
    output.check_explain(explain, single=not is_sweep, as_json=as_json)
    if is_sweep:
        if output_file is not None:
            raise UsageError(
                f"--output-file {output_file} needs the directory of a single run, and "
                f"{run_dir} is the directory of a sweep; choose one of the sweep's runs"
            )
        _show_sweep(run_dir, as_json=as_json)
        return
    try:
        stored = results.read_run(run_dir)
    except DataError as error:
        hint = _hint(run_dir) if isinstance(error.__context__, MissingFile) else ""
        if not hint:
            raise
        raise DataError(f"{run_dir}: {hint}") from None
    if not as_json:
        results.check_summary(stored.summary, run_dir / results.SUMMARY)
    output.add_run_line(output_file, stored.path, stored.summary, details=output_details)
    if as_json:
        output.print_json(stored.summary)
    else:
        complete = bool(stored.manifest.get("complete"))
        beside = results.reference_for(stored)
        output.print_summary(
            stored.summary, run_dir, complete=complete, explain=explain, reference=beside
        )


def _is_sweep(folder: Path) -> bool:
    try:
        return (folder / results.SWEEP_FILE).is_file()
    except OSError:
        return False


def _show_sweep(folder: Path, *, as_json: bool) -> None:
    """Print the answer of a stored plan, or compare the finished runs of a stored sweep."""
    if (folder / results.ANSWER).is_file():
        answer = results.read_json(folder / results.ANSWER)
        log_tools().print_plan(answer, folder, as_json=as_json)
        return
    cells = results.compare_sweep(folder)
    if not cells:
        raise DataError(f"{folder}: no run of this sweep is finished")
    if as_json:
        output.print_json(execute.comparison_json(results.SweepStore(folder), cells))
    else:
        output.print_comparison(cells, folder)


def _hint(folder: Path) -> str:
    """Return advice on a directory that is not a finished run, or "" if there is no advice."""
    if (folder / FOLDER).is_dir() or (folder / sim.FOLDER).is_dir():
        return f"still running, or killed: `fairbench recover {folder}` saves its records"
    if (folder / results.INTERVALS_FILE).exists():
        return f"holds several runs; give the path of one, or use `fairbench report {folder}`"
    try:
        folders = sorted(one for one in folder.iterdir() if one.is_dir())
    except OSError:
        return ""
    if inside := [one for one in folders if results.is_run(one) or _is_sweep(one)]:
        return f"must be the directory of a run or a sweep, such as {inside[0]} inside it"
    return ""


def recover(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Directory of a run that was killed.")
    ],
    as_json: Annotated[bool, json_option("the summary", panel=None)] = False,
) -> None:
    """Save the finished requests of a run that was killed.

    The printed summary of the recovered run is marked as incomplete and leaves out requests that
    had not finished.
    """
    result = execute.recover_run(run_dir)
    if as_json:
        output.print_json(result.summary)
    else:
        output.print_summary(result.summary, run_dir, complete=False)
