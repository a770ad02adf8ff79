"""``fairbench workload``: checks a workload file before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from fairbench.cli.flags import given, json_option

if TYPE_CHECKING:
    from fairbench.workloads.model import WorkloadSpec

workload = typer.Typer(
    help="Check a workload file: clients, rates, and a cluster's load.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


@workload.callback()
def _commands() -> None:
    """Make the app a command group although it has a single command; do nothing else."""


@workload.command()
def check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Path of a workload file or a recorded trace, or the name of a bundled workload.",
        ),
    ],
    scenario: Annotated[
        str | None, Option(help="Scenario of the workload. [default: s1, or the first of the file]")
    ] = None,
    dp: Annotated[int | None, Option(help="Replicas. [default: 1]")] = None,
    gpu: Annotated[str | None, Option(help="Option as of `run`.")] = None,
    model: Annotated[str | None, Option(help="Option as of `run`.")] = None,
    clients: Annotated[int | None, Option(help="Option as of `run`.")] = None,
    request_rate: Annotated[float | None, Option(help="Option as of `run`.")] = None,
    duration: Annotated[float | None, Option(help="Option as of `run`.")] = None,
    seed: Annotated[int, Option(help="Seed of the programs that are sampled.")] = 0,
    as_json: Annotated[bool, json_option("the numbers", panel=None)] = False,
) -> None:
    """Validate a workload file, and compute the load that it puts on a cluster. Nothing is run."""
    from fairbench.cli.output import print_json, show
    from fairbench.config.resolve import resolve
    from fairbench.execute.expected.check import check_facts
    from fairbench.report.table import printed
    from fairbench.report.workload_table import checked

    chosen = _workload(file)
    flags = {
        "workload": chosen,
        "scenario": scenario or _first_scenario(chosen),
        "dp": dp,
        "gpu": gpu,
        "model": model,
        "clients": clients,
        "request_rate": request_rate,
        "duration_s": duration,
        "seed": seed,
        "scheduler": "fcfs",  # a check needs some scheduler; any will do
    }
    facts = check_facts(resolve(given(flags)))
    if as_json:
        print_json(facts)
    else:
        show(printed, checked(facts))


def _workload(file: str) -> WorkloadSpec:
    """Return the workload of a file; a file that is not TOML is a trace."""
    from fairbench.workloads.spec import load_workload
    from fairbench.workloads.trace_workload import trace_workload
    from fairbench.workloads.traces.read import TraceParams

    path = Path(file)
    if path.is_file() and path.suffix != ".toml":
        return trace_workload(TraceParams(file))
    return load_workload(file)


def _first_scenario(chosen: WorkloadSpec) -> str:
    scenarios = chosen.scenarios
    return "s1" if "s1" in scenarios else next(iter(scenarios))
