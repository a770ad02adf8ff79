"""``fairbench compare``: compare experiments with the first one, over runs with equal seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from fairbench import api, execute, metrics, report, results
from fairbench.cli import options
from fairbench.cli.output import print_json, print_outcome, show
from fairbench.config.flags import RESUME, SEEDS, CompareFlags
from fairbench.config.parse_flags import COMMON, OUTPUT, parse_assignments

if TYPE_CHECKING:
    from fairbench.results.comparison import Contrast


@options.takes(CompareFlags)
def compare(
    sides: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="A B [C ...]",
            help="Schedulers, experiment files (FILE.toml) or directories of stored runs; the "
            "first is the baseline. If a single directory is given, the command compares the "
            "schedulers of the directory's runs, separately for each configuration.",
        ),
    ] = None,
    settings: options.Settings = None,
    num_runs: Annotated[
        int | None,
        options.option_of(
            SEEDS, "Number of seeds of each scheduler.", default="5, or the number of stored seeds"
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        options.option(
            COMMON,
            "Metric to compare, such as victim_p99_s or clients.NAME.p99_s; may be "
            "repeated. [default: the main metrics]",
            metavar="KEY",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        options.option(
            COMMON,
            "Scheduler that is the baseline if a single directory is given. [default: the first]",
            metavar="SCHEDULER",
        ),
    ] = None,
    every: Annotated[
        bool, options.option(OUTPUT, "Show all metrics instead of the eight main metrics.", "--all")
    ] = False,
    result_dir: options.ResultDir = options.DEFAULT_RESULT_DIR,
    resume: Annotated[
        Path | None,
        options.option_of(
            RESUME,
            "Go on with the comparison in this directory, or over more seeds, with --num-runs.",
        ),
    ] = None,
    as_json: Annotated[bool, options.json_option("the comparison")] = False,
    disable_tqdm: options.NoProgress = False,
    **flags: Unpack[CompareFlags],
) -> None:
    """Compare experiments seed by seed, with confidence intervals.

    The command compares runs with equal seeds. For every metric, the command prints the difference
    from the baseline with a 95% confidence interval.
    """
    # An unknown metric is refused before any run starts.
    chosen = [metrics.known_key(name) for name in metric or ()]
    compared = execute.compare_experiments(
        [str(side) for side in sides or []],
        flags,
        parse_assignments(settings),
        num_runs=num_runs,
        baseline=baseline,
        resume=resume,
        parent=result_dir,
        progress=None if disable_tqdm else report.shown_progress(),
        metrics=chosen,
    )
    found = api.Comparison(compared.groups, chosen, paired=True, every=every)
    path = compared.outcome.store.path if compared.outcome else None
    if as_json:
        print_json(results.contrast_json(found.contrasts), path)
    else:
        show(report.contrast_text, found.shown)
        _advise(found.shown, path)
    if compared.outcome is not None:
        print_outcome(compared.outcome)
        compared.outcome.require_whole()


def _advise(contrasts: list[Contrast], path: Path | None) -> None:
    """Print where a comparison is stored, and the command that continues the comparison.

    If more seeds could make a difference significant, also print the command that adds the seeds.
    """
    if path is None:
        return
    typer.echo(f"files  {path}")
    open_rows = [row for one in contrasts for row in one.metrics if row.more_seeds]
    if open_rows:
        next_row = min(open_rows, key=lambda row: row.more_seeds or 0)
        seeds = len(contrasts[0].seeds) + (next_row.more_seeds or 0)
        typer.echo(f"more seeds  fairbench compare --resume {path} --num-runs {seeds}")
        typer.echo(f"            may decide: {report.metric_label(next_row.metric)}")
