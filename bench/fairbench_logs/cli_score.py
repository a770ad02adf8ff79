"""``fairbench score``: compute fairbench's metrics from the request records of any system."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from fairbench import metrics
from fairbench import report as reporting
from fairbench.cli import output
from fairbench.cli.options import Weights, json_option, option_of
from fairbench.config.flags import RUN
from fairbench.config.parse_flags import goodput_flag, parse_weights, split_commas
from fairbench.errors import UsageError
from fairbench.metrics.shown_percentiles import parse_percentiles
from fairbench_logs import scoring
from fairbench_logs.cli_page import ReportFile, check_writable
from fairbench_logs.records.column_names import parse_map
from fairbench_logs.records.known_formats import NAMES


class Unit(StrEnum):
    """The unit of the times in a file of records."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


class Latency(StrEnum):
    """The latency that `score` reports: of whole programs, or the time to first token."""

    PROGRAM = "program"
    TTFT = "ttft"


def score(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="File of request records (JSON lines, JSON, CSV or parquet), or the directory of "
            "a run.",
        ),
    ],
    layout: Annotated[
        str | None,
        Option(
            metavar="|".join(NAMES),
            help="Layout of the request records in the file. [default: the first layout that fits "
            "the file]",
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        Option(
            "--map",
            metavar="FIELD=NAME",
            help="Read FIELD of the records from column NAME of the file (client=user_id); "
            "may be repeated. Required fields: client, start, first_token or ttft, end or "
            "latency or itls, input_tokens, output_tokens. Optional fields: program, worker, "
            "cached_tokens, admitted, status, error, gaps, id. To ignore an optional field, write "
            "no column name after the equals sign: program=.",
        ),
    ] = None,
    time_unit: Annotated[
        Unit | None,
        option_of(RUN["time_unit"], "Unit of all times in the file.", default="s", metavar=None),
    ] = None,
    line: Annotated[
        int | None,
        option_of(
            RUN["trace_line"], "Number of the run, from 1, in a file with several.", option="--line"
        ),
    ] = None,
    clients: Annotated[
        str | None,
        Option(
            metavar="A,B",
            help="Clients that are counted even if the file contains none of their requests.",
        ),
    ] = None,
    misbehaving: Annotated[
        str | None,
        option_of(
            RUN["misbehaving"], "Heavy clients: metrics of the well-behaved clients omit them."
        ),
    ] = None,
    weights: Weights = None,
    goodput: Annotated[list[str] | None, option_of(RUN["goodput"])] = None,
    percentiles: Annotated[str | None, option_of(RUN["percentiles"])] = None,
    latency: Annotated[
        Latency | None,
        Option(
            help="Latency to report: the latency of whole programs (a single request counts as a "
            "program), or the time to first token. [default: program]"
        ),
    ] = None,
    window_start: Annotated[
        float | None,
        Option(
            min=0.0,
            help="Start of the measured period, in seconds after the first request. [default: 0]",
        ),
    ] = None,
    window_end: Annotated[
        float | None,
        Option(
            min=0.0,
            help="End of the measured period, in seconds after the first request. [default: "
            "the last answer if programs have several requests or if all requests arrive at the "
            "same time, and otherwise the last arrival]",
        ),
    ] = None,
    report: ReportFile = None,
    output_file: output.OutputFile = None,
    output_details: output.OutputDetails = False,
    as_json: Annotated[bool, json_option("the summary", panel=None)] = False,
) -> None:
    """Compute every fairness metric from any system's records.

    Times in the file may count from any starting point. A request without an end time counts as
    failed. Several files are read as one run; if the format names no clients (vllm, sglang), each
    file counts as one client.
    """
    if window_end is not None and window_end <= (window_start or 0.0):
        raise UsageError(f"--window-end {window_end:g}: must be above --window-start")
    check_writable(report)
    window, ranks = (window_start, window_end), parse_percentiles(percentiles or "")
    if any(path.is_dir() for path in files):
        others = (layout, names, time_unit, line, clients, misbehaving, weights, goodput, latency)
        if len(files) > 1 or any(others):
            raise UsageError(
                f"{files[0]} is the directory of a run: it must be the only FILE; leave "
                "out options that describe records"
            )
        if report is not None:
            raise UsageError(
                f"--report {report} cannot be given with the directory of a run; use "
                f"`fairbench report {files[0]}`"
            )

        summary, requests = scoring.score_run(files[0], *window, ranks)
    else:
        scored = scoring.read_scored(
            files,
            layout=layout,
            names=parse_map(names or [], scoring.NEEDED),
            line=line,
            unit=time_unit,
            registered=split_commas("--clients", clients) if clients else [],
        )
        requests = scored.requests
        found = scoring.scored_summary(
            scored,
            metrics.service_of(requests, scored.last_token_s),
            scoring.scored_window(requests, scored.programs, scored.horizon_s, *window),
            misbehaving=split_commas("--misbehaving", misbehaving) if misbehaving else [],
            weights=parse_weights(weights),
            goodput=goodput_flag(goodput),
            latency="ttft" if latency is Latency.TTFT else "program",
            percentiles=ranks,
        )
        summary = {"records": [str(path) for path in files], **found}
        if report is not None:
            reporting.write_page(
                scoring.score_page(scored, summary, [path.name for path in files]), report
            )
    output.add_bench_line(output_file, summary, lambda: requests, details=output_details)
    if as_json:
        output.print_json(summary)
    else:
        output.show(reporting.scored_text, summary, ", ".join(map(str, files)))
