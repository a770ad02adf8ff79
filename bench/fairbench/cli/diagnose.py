"""``fairbench diagnose``: the heavy clients of an access log, their harm, and a remedy."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import typer
from typer import Option

from fairbench.cli.flags import (
    NoProgress,
    ReportFile,
    given,
    json_option,
    log_params,
    option_of,
    takes,
)
from fairbench.cli.output import check_writable, write_report
from fairbench.config.flags.flag import split_commas
from fairbench.config.flags.run import RUN
from fairbench.config.flags.trace import LogFlags
from fairbench.diagnosis import FAIR, FCFS


@takes(LogFlags)
def diagnose_log(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Access log, in any format that `run --trace` reads."),
    ],
    dp: Annotated[
        int | None,
        Option(
            min=1,
            help="Replicas in the replay. [default: the fewest that serve the load without the "
            "floods]",
        ),
    ] = None,
    gpu: Annotated[str | None, option_of(RUN["gpu"])] = None,
    model: Annotated[str | None, option_of(RUN["model"])] = None,
    engine: Annotated[str | None, option_of(RUN["engine"])] = None,
    scheduler: Annotated[
        str | None,
        Option(
            metavar="A,B",
            help="Schedulers to replay under, the present one first. "
            f"[default: {','.join((FCFS, *FAIR))}]",
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        Option(
            metavar="METRIC<LIMIT",
            help="Target that the planned number of replicas must meet; may be repeated. "
            "[default: mean over well-behaved clients of their TTFT P95 below 2 s]",
        ),
    ] = None,
    no_plan: Annotated[
        bool, Option("--no-plan", help="Do not search for the number of replicas.")
    ] = False,
    report: ReportFile = None,
    as_json: Annotated[bool, json_option("the diagnosis")] = False,
    disable_tqdm: NoProgress = False,
    **log_flags: Unpack[LogFlags],
) -> None:
    """Find a log's heavy clients, whom they harm, and a remedy.

    The log is replayed in the simulator under several schedulers. If the log has more than 12,000
    requests, only a part is replayed: the first flood, or the busiest period.
    """
    from fairbench.capacity.slo import parse_slos
    from fairbench.cli.output import print_json, show
    from fairbench.diagnosis.access_log import read_log
    from fairbench.diagnosis.diagnosis import Asked, diagnose
    from fairbench.diagnosis.page import diagnosis_page
    from fairbench.diagnosis.text import diagnosis_json, diagnosis_text
    from fairbench.execute.context import run_context
    from fairbench.report.progress import shown_progress

    check_writable(report)
    if slo:
        parse_slos(slo)  # before anything is replayed
    params = log_params(file, log_flags)
    flags: dict[str, Any] = given({"gpu": gpu, "model": model, "engine": engine})
    schedulers = split_commas("--scheduler", scheduler) if scheduler else (FCFS, *FAIR)
    asked = Asked(flags, dp, tuple(schedulers), tuple(slo or ()), not no_plan)
    with run_context(None if disable_tqdm else shown_progress()) as context:
        with context.progress.watching():
            context.progress.update(f"reading {file}")
            log = read_log(params)
        found = diagnose(log, asked, context)
    if as_json:
        print_json(diagnosis_json(found))
    else:
        show(diagnosis_text, found)
    if report is not None:
        write_report(diagnosis_page(found), report)  # last, so that a full disk loses no answer
        if not as_json:
            typer.echo(f"report  {report}")
    if found.missing:
        missing = ", ".join(found.missing)
        raise context.interrupted.ended(f"interrupted; the diagnosis lacks {missing}")
