"""``fairbench check``: stored runs compared with a baseline, for people and for CI."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from fairbench.errors import NotJudged, RunFailed, UsageError

if TYPE_CHECKING:
    from fairbench.gate.outcome import Outcome

JOB_SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file whose Markdown a job of GitHub Actions shows


class Format(StrEnum):
    """The output format of an outcome."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    GITHUB = "github"


class Inconclusive(StrEnum):
    """The result of an inconclusive check."""

    PASS = "pass"
    FAIL = "fail"


FormatOption = Annotated[
    Format,
    Option(
        "--format",
        help="Output format. `github` prints annotations and adds the table to the summary of "
        "the job.",
    ),
]


def limit_option(unlimited: str) -> Any:
    """Declare ``--fail-if``; the text says what applies without a limit."""
    return Option(
        metavar="METRIC:LOSS",
        help="Limit on how much worse a metric may get, such as min_share_60s:-5%, "
        f"victim_p95_s:+10%, victim_p99_s:+20% and service_rate_tok_s:-3%; may be repeated. "
        f"{unlimited}",
    )


def check(
    baseline: Annotated[
        Path, typer.Argument(metavar="BASELINE", help="Directory of a run, or of several runs.")
    ],
    current: Annotated[
        Path,
        typer.Argument(
            metavar="CURRENT", help="Directory of the new runs of the same experiments."
        ),
    ],
    fail_if: Annotated[
        list[str] | None, limit_option("Without a limit, simulated runs must not differ at all.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        Option(
            metavar="KEY",
            help="Key of the experiment that was changed on purpose, such as dp or "
            "vtc.charge. Runs are compared even if this key differs; may be repeated.",
        ),
    ] = None,
    output: FormatOption = Format.TABLE,
    alpha: Annotated[
        float,
        Option(
            min=1e-6, max=0.5, help="Significance level of the tests over several seeds or repeats."
        ),
    ] = 0.05,
    inconclusive: Annotated[
        Inconclusive,
        Option(
            "--inconclusive", "--cannot-tell", help="Whether an inconclusive check passes or fails."
        ),
    ] = Inconclusive.FAIL,
) -> None:
    """Compare runs with a baseline; exit 1 if one got worse.

    Both directories hold runs of the same experiments. Single simulated runs are compared number by
    number. Runs over several seeds are paired by seed, as in `compare`; a check passes or fails
    only if the result is significant.
    """
    with told(output):
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
    """Compare two directories. Raises UsageError for an unusable directory or clause."""
    from fairbench.gate.outcome import judge
    from fairbench.gate.points import read_pairs

    return judge(read_pairs(baseline, current, allowed, left_out), clauses, alpha=alpha)


@contextmanager
def told(output: Format) -> Iterator[None]:
    """Print an error inside as an outcome, too, in the formats for machines."""
    from fairbench.gate.outcome import NOTHING

    try:
        yield
    except (UsageError, RunFailed) as error:
        if output in (Format.JUNIT, Format.GITHUB):
            _print(NOTHING.with_errors({"fairbench": str(error)}), output)
        raise


def print_outcome(
    outcome: Outcome, output: Format, *, inconclusive_fails: bool = True, advice: str = ""
) -> None:
    """Print an outcome on stdout; for GitHub also add it to the summary of the job.

    Raises NotJudged if a run failed, RunFailed, with the advice, if a check failed or is
    inconclusive.
    """
    from fairbench.gate.judge import Verdict

    _print(outcome, output, inconclusive_fails=inconclusive_fails)
    failed, unknown = outcome.count(Verdict.FAIL), outcome.count(Verdict.INCONCLUSIVE)
    if outcome.count(Verdict.ERROR):
        raise NotJudged(f"not everything could be judged: {outcome.summary()}")
    if failed or (unknown and inconclusive_fails):
        raise RunFailed(f"the check failed: {outcome.summary()}{advice}")


def _print(outcome: Outcome, output: Format, *, inconclusive_fails: bool = True) -> None:
    from fairbench.cli.output import show
    from fairbench.gate.formats import as_commands, as_junit, outcome_markdown, outcome_text

    if output is Format.TABLE:
        show(outcome_text, outcome)
    elif output is Format.MARKDOWN:
        typer.echo(outcome_markdown(outcome), nl=False)
    else:
        made = as_junit if output is Format.JUNIT else as_commands
        typer.echo(made(outcome, inconclusive_fails=inconclusive_fails), nl=False)
    if output is Format.GITHUB and (summary := os.environ.get(JOB_SUMMARY)):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(outcome_markdown(outcome))
