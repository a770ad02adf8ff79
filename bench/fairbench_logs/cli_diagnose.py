"""``fairbench diagnose``: find an access log's heavy clients, the delayed clients, and a remedy."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

import typer
from typer import Option

from fairbench import execute
from fairbench import report as reporting
from fairbench.api.logs import FAIR, FCFS
from fairbench.cli import options
from fairbench.cli.output import print_json, show
from fairbench.config.flags import RUN, LogFlags
from fairbench.config.parse_flags import split_commas
from fairbench_logs import diagnosis, planning
from fairbench_logs.cli_page import ReportFile, check_writable


@options.takes(LogFlags)
def diagnose_log(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Access log, in any format that `run --trace` reads."),
    ],
    dp: Annotated[
        int | None,
        options.option_of(
            RUN["dp"],
            "Replicas in the replay.",
            default="the smallest number that serves the load without the floods",
            least=1,
        ),
    ] = None,
    gpu: Annotated[str | None, options.option_of(RUN["gpu"])] = None,
    model: Annotated[str | None, options.option_of(RUN["model"])] = None,
    engine: Annotated[str | None, options.option_of(RUN["engine"])] = None,
    scheduler: Annotated[
        str | None,
        options.option_of(
            RUN["scheduler"],
            "Schedulers to replay under; the first is the scheduler in use today.",
            default=",".join((FCFS, *FAIR)),
            metavar="A,B",
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        Option(
            metavar="METRIC<LIMIT",
            help="Latency target that the planned number of replicas must meet; may be repeated. "
            "[default: the P95 TTFT, averaged over the well-behaved clients, below 2 s]",
        ),
    ] = None,
    no_plan: Annotated[
        bool,
        Option(
            "--no-plan",
            help="Skip the search for the smallest number of replicas that meets the targets.",
        ),
    ] = False,
    report: ReportFile = None,
    as_json: Annotated[bool, options.json_option("the diagnosis")] = False,
    disable_tqdm: options.NoProgress = False,
    **log_flags: Unpack[LogFlags],
) -> None:
    """Find a log's heavy clients, the delayed clients, and a remedy.

    The log is replayed in the simulator under several schedulers. Only a part of a log with more
    than 12,000 requests is replayed: the first period in which heavy clients delay other clients,
    or the busiest period.
    """
    check_writable(report)
    if slo:
        planning.parse_slos(slo)  # Refuse a wrong target before the replay starts.
    params = options.log_params(file, log_flags)
    flags: dict[str, Any] = options.given_options({"gpu": gpu, "model": model, "engine": engine})
    schedulers = split_commas("--scheduler", scheduler) if scheduler else (FCFS, *FAIR)
    asked = diagnosis.DiagnosisInput(flags, dp, tuple(schedulers), tuple(slo or ()), not no_plan)
    with execute.run_context(None if disable_tqdm else reporting.shown_progress()) as context:
        with context.progress.watching():
            context.progress.update(f"reading {file}")
            log = diagnosis.read_log(params)
        found = diagnosis.diagnose(log, asked, context)
    if as_json:
        print_json(diagnosis.diagnosis_json(found))
    else:
        show(diagnosis.diagnosis_text, found)
    if report is not None:
        reporting.write_page(
            diagnosis.diagnosis_page(found), report
        )  # The page is written after the diagnosis is printed, as a full disk ends the command.
        if not as_json:
            typer.echo(f"report  {report}")
    if found.missing:
        missing = ", ".join(found.missing)
        raise context.interrupted.ended(f"interrupted; the diagnosis lacks {missing}")
