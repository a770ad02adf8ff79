"""``fairbench compare``: experiments compared with the first, paired by seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from fairbench.cli.flags import (
    DEFAULT_RESULT_DIR,
    NoProgress,
    ResultDir,
    Settings,
    json_option,
    option,
    option_of,
    takes,
)
from fairbench.config.flags.experiment import CompareFlags
from fairbench.config.flags.flag import COMMON, OUTPUT, assigned
from fairbench.config.flags.run import SEEDS

if TYPE_CHECKING:
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
        option_of(
            SEEDS, "Number of seeds of each scheduler.", default="5, or the number of stored seeds"
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
    result_dir: ResultDir = DEFAULT_RESULT_DIR,
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
    """Compare experiments on the same seeds, with intervals.

    Prints, for every metric, the difference to the baseline, paired by seed, with its 95%
    confidence interval.
    """
    from fairbench.api.comparison import Comparison
    from fairbench.cli.output import print_json, print_outcome, show
    from fairbench.execute.comparison import compare_experiments
    from fairbench.metrics.catalogue import known_key
    from fairbench.report.pair_table import contrast_text
    from fairbench.report.progress import shown_progress
    from fairbench.results.pair_comparison import contrast_json

    chosen = [known_key(name) for name in metric or ()]  # before anything runs
    compared = compare_experiments(
        [str(side) for side in sides or []],
        flags,
        assigned(settings),
        num_runs=num_runs,
        baseline=baseline,
        resume=resume,
        parent=result_dir,
        progress=None if disable_tqdm else shown_progress(),
        metrics=chosen,
    )
    found = Comparison(compared.groups, chosen, paired=True)
    path = compared.outcome.store.path if compared.outcome else None
    if as_json:
        print_json(contrast_json(found.contrasts), path)
    else:
        show(contrast_text, found.shown)
        _advise(found.shown, path)
    if compared.outcome is not None:
        print_outcome(compared.outcome)
        compared.outcome.require_whole()


def _advise(contrasts: list[Contrast], path: Path | None) -> None:
    """Print where the comparison is stored, and how to add seeds if they may help."""
    if path is None:
        return
    typer.echo(f"files  {path}")
    more = [row.more_seeds for one in contrasts for row in one.metrics if row.more_seeds]
    if more:
        seeds = len(contrasts[0].seeds)
        typer.echo(f"more seeds  fairbench compare --resume {path} --num-runs {seeds + min(more)}")
