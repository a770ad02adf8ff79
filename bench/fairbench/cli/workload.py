"""``fairbench workload``: check a workload file before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairbench import execute, report, workloads
from fairbench.cli.options import given_options, json_option, option_of
from fairbench.cli.output import print_json, show
from fairbench.config.flags import RUN

workload = typer.Typer(
    help="Check a workload file, and compute its load on a cluster.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


@workload.callback()
def _commands() -> None:
    """Do nothing; this callback makes typer treat the single command as one of a group."""


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
        str | None,
        option_of(
            RUN["scenario"], "Scenario of the workload.", default="s1, or the first of the file"
        ),
    ] = None,
    dp: Annotated[int | None, option_of(RUN["dp"])] = None,
    gpu: Annotated[str | None, option_of(RUN["gpu"])] = None,
    model: Annotated[str | None, option_of(RUN["model"])] = None,
    clients: Annotated[int | None, option_of(RUN["clients"], "Number of clients.")] = None,
    request_rate: Annotated[float | None, option_of(RUN["request_rate"])] = None,
    duration: Annotated[float | None, option_of(RUN["duration"])] = None,
    seed: Annotated[
        int, option_of(RUN["seed"], "Seed of the programs that are sampled.", default="")
    ] = 0,
    as_json: Annotated[bool, json_option("the numbers", panel=None)] = False,
) -> None:
    """Validate a workload file, and compute its load on a cluster, without a run."""
    from fairbench.config.resolve import resolve

    path = Path(file)
    if path.is_file() and path.suffix != ".toml":
        from fairbench.workloads.trace_workload import trace_workload

        chosen = trace_workload(workloads.TraceParams(file))
    else:
        chosen = workloads.load_workload(file)
    usual = "s1" if "s1" in chosen.scenarios else next(iter(chosen.scenarios))
    flags = {
        "workload": chosen,
        "scenario": scenario or usual,
        "dp": dp,
        "gpu": gpu,
        "model": model,
        "clients": clients,
        "request_rate": request_rate,
        "duration_s": duration,
        "seed": seed,
        # The workload does not depend on the scheduler, so any scheduler will do.
        "scheduler": "fcfs",
    }
    facts = execute.check_facts(resolve(given_options(flags)))
    if as_json:
        print_json(facts)
    else:
        show(report.printed, report.checked(facts))
