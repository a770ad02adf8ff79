"""The command ``fairbench check``, which compares stored runs with a baseline."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

import fairbench_gate as gate
from fairbench.cli.output import show
from fairbench.errors import NotJudged, RunFailed, UsageError

if TYPE_CHECKING:
    from fairbench_gate.outcome import Outcome

# This environment variable names the Markdown file that GitHub Actions shows after a job.
JOB_SUMMARY = "GITHUB_STEP_SUMMARY"


class CheckFormat(StrEnum):
    """The output formats of ``fairbench check``."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    GITHUB = "github"


class Inconclusive(StrEnum):
    """The two ways to treat an inconclusive check: it passes, or it fails."""

    PASS = "pass"
    FAIL = "fail"


FormatOption = Annotated[
    CheckFormat,
    Option(
        "--format",
        help="Output format. `github` prints annotations and adds the table to the summary of "
        "the job.",
    ),
]


def limit_option(unlimited: str) -> Any:
    """Declare the flag ``--fail-if``; the text ``unlimited`` is appended to its help text."""
    return Option(
        metavar="METRIC:LOSS",
        help="Largest loss of a metric that passes the check, such as min_share_60s:-5%, "
        f"victim_p95_s:+10%, victim_p99_s:+20% and service_rate_tok_s:-3%; may be repeated. "
        f"{unlimited}",
    )


def check(
    baseline: Annotated[
        Path, typer.Argument(metavar="BASELINE", help="Directory of the baseline's runs.")
    ],
    current: Annotated[
        Path,
        typer.Argument(
            metavar="CURRENT",
            help="Directory of new runs of the experiments in BASELINE.",
        ),
    ],
    fail_if: Annotated[
        list[str] | None, limit_option("Without a limit, simulated runs must not differ at all.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        Option(
            metavar="KEY",
            help="Setting of the experiment that was changed on purpose, such as dp or "
            "vtc.charge. Runs with different values of KEY are still compared; may be repeated.",
        ),
    ] = None,
    output: FormatOption = CheckFormat.TABLE,
    alpha: Annotated[
        float,
        Option(
            min=1e-6,
            max=0.5,
            help="Significance level of the statistical tests over several seeds or repeats.",
        ),
    ] = 0.05,
    inconclusive: Annotated[
        Inconclusive,
        Option(
            "--inconclusive",
            "--cannot-tell",
            help="Whether the check passes or fails if its result is inconclusive.",
        ),
    ] = Inconclusive.FAIL,
) -> None:
    """Compare runs with a baseline; exit 1 if a run got worse.

    The two directories must hold runs of the same experiments. Single simulated runs are compared
    value by value. Runs over several seeds are paired by seed; a check passes or fails only if the
    difference is significant.
    """
    with reporting(output):
        outcome = judged(baseline, current, fail_if or [], alpha=alpha, allowed=allow or [])
    print_outcome(outcome, output, inconclusive_fails=inconclusive is Inconclusive.FAIL)


def judged(
    baseline: Path,
    current: Path,
    clauses: list[str],
    *,
    alpha: float = 0.05,
    allowed: Collection[str] = (),
    left_out: Collection[str] = (),
) -> Outcome:
    """Compare the runs in two directories, and return the outcome, with errors of failed runs.

    Raises UsageError if a directory or a limit of ``--fail-if`` cannot be used.
    """
    from fairbench_gate.outcome import judge

    pairs = gate.read_pairs(baseline, current, allowed, left_out)
    outcome = judge(pairs, clauses, alpha=alpha) if pairs else gate.NOTHING
    errors = gate.failed_runs(baseline)
    for name, error in gate.failed_runs(current).items():
        errors[name] = f"{errors[name]}; {error}" if name in errors else error
    return outcome.with_errors(errors)


@contextmanager
def reporting(output: CheckFormat) -> Iterator[None]:
    """Print an error of the ``with`` block also in the machine-readable format ``output``."""
    try:
        yield
    except (UsageError, RunFailed) as error:
        if output in (CheckFormat.JUNIT, CheckFormat.GITHUB):
            _print(gate.NOTHING.with_errors({"fairbench": str(error)}), output)
        raise


def print_outcome(
    outcome: Outcome, output: CheckFormat, *, inconclusive_fails: bool = True, advice: str = ""
) -> None:
    """Print an outcome on stdout. With ``--format github``, also write GitHub's job summary.

    Raises NotJudged if a run failed. Raises RunFailed, with ``advice`` in the message, if a check
    failed or is inconclusive.
    """
    _print(outcome, output, inconclusive_fails=inconclusive_fails)
    failed, unknown = (
        outcome.rows_with(gate.Verdict.FAIL),
        outcome.rows_with(gate.Verdict.INCONCLUSIVE),
    )
    if outcome.rows_with(gate.Verdict.ERROR):
        raise NotJudged(f"some checks could not be judged: {outcome.summary()}")
    if failed or (unknown and inconclusive_fails):
        raise RunFailed(f"the check failed: {outcome.summary()}{advice}")


def _print(outcome: Outcome, output: CheckFormat, *, inconclusive_fails: bool = True) -> None:
    if output is CheckFormat.TABLE:
        show(gate.outcome_text, outcome)
    elif output is CheckFormat.MARKDOWN:
        typer.echo(gate.outcome_markdown(outcome), nl=False)
    else:
        made = gate.as_junit if output is CheckFormat.JUNIT else gate.as_commands
        typer.echo(made(outcome, inconclusive_fails=inconclusive_fails), nl=False)
    if output is CheckFormat.GITHUB and (summary := os.environ.get(JOB_SUMMARY)):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(gate.outcome_markdown(outcome))
