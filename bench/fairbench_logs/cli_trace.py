"""``fairbench trace``: describe recorded traffic, or write changed copies."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer
from typer import Option

from fairbench import figures, report, workloads
from fairbench.cli.options import json_option, log_params, option_of, takes
from fairbench.cli.output import print_json, show
from fairbench.config.flags import PICTURE, TraceFlags
from fairbench.config.parse_flags import split_commas
from fairbench.errors import UsageError
from fairbench.files.reader import read_key
from fairbench_logs import traces

if TYPE_CHECKING:
    from fairbench.workloads.traces.table import TraceTable

SHORTEST_KEY = 16

trace = typer.Typer(
    help="Inspect recorded traffic (a trace), or write a changed copy.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)

File = Annotated[
    str, typer.Argument(metavar="FILE", help="Trace, in any format that `run --trace` reads.")
]
Output = Annotated[
    Path,
    Option(
        "--output-file",
        "-o",
        metavar="FILE.jsonl",
        help="File to which the result is written, in fairbench's trace format.",
    ),
]
AsJson = Annotated[bool, json_option("the numbers")]
Seed = Annotated[
    int,
    Option(help="Seed of the values that fairbench draws because the trace does not record them."),
]


@trace.command()
@takes(TraceFlags)
def inspect(
    file: File,
    end: Annotated[
        float | None,
        Option(
            "--to", min=0.0, help="Read only this number of seconds from the start of the trace."
        ),
    ] = None,
    seed: Seed = 0,
    plot: Annotated[
        Path | None,
        option_of(PICTURE, "Draw rates and lengths into this file (.svg, .png or .pdf), too."),
    ] = None,
    as_json: AsJson = False,
    **flags: Unpack[TraceFlags],
) -> None:
    """Describe a trace: clients, rates, burstiness, lengths and shared prefixes."""
    params = log_params(file, flags)
    read = traces.read_trace(params)
    table = _trace_requests(file, flags, seed, end)
    facts: dict[str, Any] = {
        "file": file,
        "format": read.format,
        "sha256": read.sha256,
        "unit": read.unit,
        "nameless": read.nameless,
        "cached": read.cached,
        "repeated": read.repeated,
        "synthetic": "; ".join(workloads.synthetic_parts(params, read.trace)),
        **traces.facts_of_table(table),
    }
    if plot is not None:
        figures.draw_trace(table, plot, traces.inspected_title(facts), read.clock)
    if as_json:
        print_json(facts)
    else:
        show(report.printed, traces.inspected(facts))


@trace.command("cut")
@takes(TraceFlags)
def cut_trace(
    file: File,
    output: Output,
    start: Annotated[
        float,
        Option(
            "--from",
            min=0.0,
            help="Start of the kept part of the trace, in seconds after the first request.",
        ),
    ] = 0,
    end: Annotated[
        float | None,
        Option(
            "--to",
            min=0.0,
            help="End of the kept part of the trace, in seconds after the first request.",
        ),
    ] = None,
    head: Annotated[
        int | None,
        Option(
            min=1, help="Number of requests to keep, counted from the first request of the trace."
        ),
    ] = None,
    clients: Annotated[
        str | None,
        Option(metavar="A,B", help="Clients to keep; requests of other clients are left out."),
    ] = None,
    largest: Annotated[
        int | None,
        Option(min=1, help="Number of clients to keep: the clients with the most requests."),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    **flags: Unpack[TraceFlags],
) -> None:
    """Write a part of a trace: a period, some clients, or the first requests."""
    table = _trace_requests(file, flags, seed, end)
    chosen = split_commas("--clients", clients) if clients else []
    part = traces.cut_trace(
        table, start_s=start, end_s=end, head=head, clients=chosen, largest=largest
    )
    _write(part, output, as_json=as_json)


@trace.command()
@takes(TraceFlags)
def scale(
    file: File,
    output: Output,
    rate: Annotated[float, Option(help="Factor by which the request rate is multiplied.")],
    seed: Seed = 0,
    as_json: AsJson = False,
    **flags: Unpack[TraceFlags],
) -> None:
    """Write a trace at another request rate: all arrival times are divided by a factor."""
    _write(traces.scaled(_trace_requests(file, flags, seed), rate), output, as_json=as_json)


@trace.command()
@takes(TraceFlags)
def combine(
    file: File,
    prompts: Annotated[
        str,
        Option(
            "--prompts-of",
            metavar="FILE",
            help="Trace from which prompt lengths, output lengths and prefixes are taken.",
        ),
    ],
    output: Output,
    seed: Seed = 0,
    as_json: AsJson = False,
    **flags: Unpack[TraceFlags],
) -> None:
    """Combine arrival times and clients of one trace with the requests of another."""
    made = traces.combined(_trace_requests(file, flags, seed), _trace_requests(prompts, {}, seed))
    _write(made, output, as_json=as_json)


@trace.command()
@takes(TraceFlags)
def anonymize(
    file: File,
    output: Output,
    key_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="File with one line: the secret from which the new client labels are computed. "
            "With the same secret, a client gets the same label in every file. "
            "[default: a random secret, which is not stored]",
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    **flags: Unpack[TraceFlags],
) -> None:
    """Write a copy of a trace without names and texts; shared prefixes remain."""
    key = token_bytes(32)
    if key_file is not None:
        secret = read_key(key_file, f"{key_file}")
        if len(secret) < SHORTEST_KEY:
            raise UsageError(f"--key-file {key_file}: must hold at least {SHORTEST_KEY} characters")
        key = secret.encode()
    _write(traces.anonymized(_trace_requests(file, flags, seed), key), output, as_json=as_json)


def _trace_requests(
    file: str, flags: TraceFlags, seed: int, end: float | None = None
) -> TraceTable:
    """Read the requests of a trace, up to ``end`` (in seconds) if given."""
    params = log_params(file, flags)
    trace = traces.read_trace(params).trace
    table = trace.table(seed, inf if end is None else end)
    table = replace(table, synthetic=tuple(workloads.synthetic_parts(params, trace)))
    return table if end is None else traces.cut_trace(table, end_s=end)


def _write(table: TraceTable, output: Path, *, as_json: bool) -> None:
    if output.suffix != ".jsonl":
        raise UsageError(f"--output-file {output}: must end in .jsonl")
    traces.write_trace(table, output)
    requests, clients = len(table), len(table.clients)
    if as_json:
        span_s = round(table.span_s, 9)
        print_json(
            {"file": str(output), "requests": requests, "clients": clients, "span_s": span_s}
        )
        return
    typer.echo(f"trace  {output}: {requests:,} requests of {clients:,} clients")
