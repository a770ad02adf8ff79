"""``fairbench trace``: describes recorded traffic, or writes changed copies of it."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer
from typer import Option

from fairbench.cli.flags import json_option, log_params, takes
from fairbench.config.flags.flag import split_commas
from fairbench.config.flags.trace import TraceFlags
from fairbench.errors import UsageError
from fairbench.files.reader import read_key

if TYPE_CHECKING:
    from fairbench.workloads.traces.table import Table

SHORTEST_KEY = 16

trace = typer.Typer(
    help="Inspect recorded traffic, or write a changed copy of it.",
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
    Option(help="Seed of the values that a trace does not record and that are drawn at random."),
]


@trace.command()
@takes(TraceFlags)
def inspect(
    file: File,
    end: Annotated[
        float | None, Option("--to", min=0.0, help="Read only this many seconds of the trace.")
    ] = None,
    seed: Seed = 0,
    plot: Annotated[
        Path | None,
        Option(
            metavar="FILE.svg",
            help="Draw rates and lengths into this file (.svg, .png or .pdf), too.",
        ),
    ] = None,
    as_json: AsJson = False,
    **flags: Unpack[TraceFlags],
) -> None:
    """Describe a trace: clients, rates, burstiness, lengths and shared prefixes."""
    from fairbench.cli.output import print_json, show
    from fairbench.figures.trace import draw_trace
    from fairbench.report.table import printed
    from fairbench.report.trace_table import inspected, inspected_title
    from fairbench.workloads.trace_workload import synthetic_parts
    from fairbench.workloads.traces.facts import facts_of_table
    from fairbench.workloads.traces.read import read_trace

    params = log_params(file, flags)
    read = read_trace(params)
    table = _table(file, flags, seed, end)
    facts: dict[str, Any] = {
        "file": file,
        "format": read.format,
        "sha256": read.sha256,
        "unit": read.unit,
        "nameless": read.nameless,
        "cached": read.cached,
        "synthetic": "; ".join(synthetic_parts(params, read.trace)),
        **facts_of_table(table),
    }
    if plot is not None:
        draw_trace(table, plot, inspected_title(facts), read.clock)
    if as_json:
        print_json(facts)
    else:
        show(printed, inspected(facts))


@trace.command("cut")
@takes(TraceFlags)
def cut_trace(
    file: File,
    output: Output,
    start: Annotated[
        float,
        Option(
            "--from", min=0.0, help="Start of the part to keep, in seconds after the first request."
        ),
    ] = 0,
    end: Annotated[
        float | None,
        Option(
            "--to", min=0.0, help="End of the part to keep, in seconds after the first request."
        ),
    ] = None,
    head: Annotated[
        int | None, Option(min=1, help="Number of requests to keep, from the first.")
    ] = None,
    clients: Annotated[
        str | None,
        Option(metavar="A,B", help="Clients to keep; requests of other clients are left out."),
    ] = None,
    largest: Annotated[
        int | None, Option(min=1, help="Number of clients to keep: those with the most requests.")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    **flags: Unpack[TraceFlags],
) -> None:
    """Write a part of a trace: a period, some clients, or the first requests."""
    from fairbench.workloads.traces.change import cut

    table = _table(file, flags, seed, end)
    chosen = split_commas("--clients", clients) if clients else []
    part = cut(table, start_s=start, end_s=end, head=head, clients=chosen, largest=largest)
    _write(part, output, as_json=as_json)


@trace.command()
@takes(TraceFlags)
def scale(
    file: File,
    output: Output,
    rate: Annotated[float, Option(help="Factor on the request rate.")],
    seed: Seed = 0,
    as_json: AsJson = False,
    **flags: Unpack[TraceFlags],
) -> None:
    """Write a trace at another request rate: all arrival times are divided by a factor."""
    from fairbench.workloads.traces.change import scaled

    _write(scaled(_table(file, flags, seed), rate), output, as_json=as_json)


@trace.command()
@takes(TraceFlags)
def combine(
    file: File,
    prompts: Annotated[
        str,
        Option("--prompts-of", metavar="FILE", help="Trace that provides lengths and prefixes."),
    ],
    output: Output,
    seed: Seed = 0,
    as_json: AsJson = False,
    **flags: Unpack[TraceFlags],
) -> None:
    """Write a synthetic trace: arrival times and clients of one trace, requests of another."""
    from fairbench.workloads.traces.change import combined

    made = combined(_table(file, flags, seed), _table(prompts, {}, seed))
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
            help="File with a secret on one line. The same secret gives the same labels in "
            "several files. [default: a random secret, which is not kept]",
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    **flags: Unpack[TraceFlags],
) -> None:
    """Write a trace without names and texts; shared prefixes stay shared."""
    from fairbench.workloads.traces.change import anonymized

    key = token_bytes(32) if key_file is None else _key(key_file)
    _write(anonymized(_table(file, flags, seed), key), output, as_json=as_json)


def _key(file: Path) -> bytes:
    """Return the secret of ``--key-file``, which must be too long to be guessed."""
    key = read_key(file, f"{file}")
    if len(key) < SHORTEST_KEY:
        raise UsageError(f"--key-file {file}: must hold at least {SHORTEST_KEY} characters")
    return key.encode()


def _table(file: str, flags: TraceFlags, seed: int, end: float | None = None) -> Table:
    """Return the requests of a trace, up to the end if given."""
    from fairbench.workloads.trace_workload import synthetic_parts
    from fairbench.workloads.traces.change import cut
    from fairbench.workloads.traces.read import read_trace

    params = log_params(file, flags)
    trace = read_trace(params).trace
    table = trace.table(seed, inf if end is None else end)
    table = replace(table, synthetic=tuple(synthetic_parts(params, trace)))
    return table if end is None else cut(table, end_s=end)


def _write(table: Table, output: Path, *, as_json: bool) -> None:
    from fairbench.cli.output import print_json
    from fairbench.workloads.traces.write import write_trace

    if output.suffix != ".jsonl":
        raise UsageError(f"--output-file {output}: must end in .jsonl")
    write_trace(table, output)
    requests, clients = len(table), len(table.clients)
    if as_json:
        span_s = round(table.span_s, 9)
        print_json(
            {"file": str(output), "requests": requests, "clients": clients, "span_s": span_s}
        )
        return
    typer.echo(f"trace  {output}: {requests:,} requests of {clients:,} clients")
