"""``fairbench compare``: experiments compared with the first, paired by seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from fairbench.cli.flags import (
    DEFAULT_RESULT_DIR,
    NoProgress,
    Settings,
    json_option,
    option,
    takes,
)
from fairbench.config.flags.experiment import CompareFlags
from fairbench.config.flags.flag import COMMON, OUTPUT, assigned

if TYPE_CHECKING:
    from fairbench.execute.comparison import Compared
    from fairbench.results.pair_comparison import Contrast


@takes(CompareFlags)
def compare(
    sides: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="A B [C ...]",
            help="Schedulers, experiment files (FILE.toml) or directories of stored runs; the "
            "first is the baseline. For a single directory, its schedulers are compared "
            "in each configuration.",
        ),
    ] = None,
    settings: Settings = None,
    num_runs: Annotated[
        int | None,
        option(
            COMMON,
            "Number of seeds of each scheduler. [default: 5, or the number of stored seeds]",
            min=1,
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        option(
            COMMON,
            "Metric to compare, such as victim_p99_s or clients.NAME.p99_s; may be "
            "repeated. [default: the main metrics]",
            metavar="KEY",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        option(
            COMMON,
            "Scheduler that is the baseline if a single directory is given. [default: the first]",
            metavar="SCHEDULER",
        ),
    ] = None,
    result_dir: Annotated[
        Path, option(OUTPUT, "Parent directory; the comparison makes a new directory in it.")
    ] = DEFAULT_RESULT_DIR,
    resume: Annotated[
        Path | None,
        option(
            OUTPUT,
            "Go on with the comparison in this directory, or over more seeds, with --num-runs.",
            metavar="DIR",
        ),
    ] = None,
    as_json: Annotated[bool, json_option("the comparison")] = False,
    disable_tqdm: NoProgress = False,
    **flags: Unpack[CompareFlags],
) -> None:
    """Compare experiments on the same seeds: better, worse or inconclusive.

    Prints, for every metric, the difference to the baseline, paired by seed, with its 95%
    confidence interval.
    """
    from fairbench.execute.comparison import carry_out, go_on, read_alone
    from fairbench.execute.comparison_plan import check_usage, plan_comparison
    from fairbench.execute.context import run_context
    from fairbench.report.progress import shown_progress

    arguments, assignments = [str(side) for side in sides or []], assigned(settings)
    runs = ["num_runs"] if num_runs and resume is None and len(arguments) == 1 else []
    check_usage(arguments, resume, baseline, given=[*flags, *assignments, *runs])
    if resume is None and len(arguments) == 1:
        compared = read_alone(Path(arguments[0]), baseline)
    else:
        plan = None if resume else plan_comparison(arguments, flags, assignments, num_runs)
        with run_context(None if disable_tqdm else shown_progress()) as context:
            if plan is None:
                compared = go_on(Path(resume or ""), num_runs, context)
            else:
                compared = carry_out(plan, result_dir, context)
    _print(compared, metric, as_json=as_json)
    if compared.outcome is not None:
        compared.outcome.require_whole()


def _print(compared: Compared, metrics: list[str] | None, *, as_json: bool) -> None:
    """Print the comparison; failed runs and warnings go to stderr."""
    from fairbench.cli.output import look, print_json
    from fairbench.metrics.catalogue import key_of
    from fairbench.report.pair_table import contrast_text, shown_metrics
    from fairbench.results.pair_comparison import (
        check_metrics,
        contrast,
        contrast_json,
        known_metrics,
    )

    sides = [side for group in compared.groups for side in group]
    metrics = [key_of(name) for name in metrics or ()]
    if metrics:
        check_metrics(metrics, sides)
    known = known_metrics(sides)
    usual = known if as_json else [key for key in shown_metrics(sides) if key in known]
    chosen = metrics or usual
    contrasts = [
        contrast(group[0], other, chosen) for group in compared.groups for other in group[1:]
    ]
    path = compared.outcome.store.path if compared.outcome else None
    if as_json:
        print_json(contrast_json(contrasts))
    else:
        colour, width = look()
        typer.echo(contrast_text(contrasts, colour=colour, width=width), nl=False)
        _advise(contrasts, path)
    if compared.outcome is not None:
        if as_json:
            typer.echo(f"fairbench: saved to {path}", err=True)
        for failure in compared.outcome.failures:
            typer.echo(f"fairbench: {failure.name}: {failure.error}", err=True)
        for remark in compared.outcome.remarks():
            typer.echo(f"fairbench: {remark}", err=True)


def _advise(contrasts: list[Contrast], path: Path | None) -> None:
    """Print where the comparison is stored, and how to add seeds if they may help."""
    if path is None:
        return
    typer.echo(f"files  {path}")
    more = [row.more_seeds for one in contrasts for row in one.metrics if row.more_seeds]
    if more:
        seeds = len(contrasts[0].seeds)
        typer.echo(f"more seeds  fairbench compare --resume {path} --num-runs {seeds + min(more)}")
