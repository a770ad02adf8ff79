"""The command ``fairbench engine-check``, which compares an engine's code with its model."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from fairbench import execute
from fairbench.cli.exits import FAILED
from fairbench.cli.options import json_option, option_of
from fairbench.cli.output import print_json
from fairbench.config.flags import ENGINE_CODE, RUN
from fairbench.errors import UsageError
from fairbench_calibration import validate

STREAMS = 8


def engine_check(
    engine_code: Annotated[str, option_of(ENGINE_CODE, default="")],
    engine: Annotated[str, option_of(RUN["engine"], metavar="sglang|vllm", default="")] = "sglang",
    streams: Annotated[
        int, Option(min=1, max=1000, help="Number of random request streams to run.")
    ] = STREAMS,
    seed: Annotated[int, option_of(RUN["seed"], "Seed of the first run.", least=0)] = 0,
    as_json: Annotated[bool, json_option("the comparisons", panel=None)] = False,
) -> None:
    """Compare an engine's own decisions with fairbench's model.

    The command simulates short random runs with little KV memory and the engine's own policies.
    Each run is simulated once with the engine's code and once with fairbench's engine model. The
    exit code is 0 if engine and model produce equal records in all runs, and 1 otherwise.
    """
    if engine not in validate.POLICIES:
        raise UsageError(f"engine = {engine!r}: must be {' or '.join(validate.POLICIES)}")
    found = []
    with execute.interruptible() as interrupted:
        seeds = range(seed, seed + streams)
        for one in validate.check_engine(engine_code, engine, seeds, interrupted):
            found.append(one)
            if not as_json:
                typer.echo("\n".join(validate.check_lines(one)))
    if interrupted():
        raise interrupted.ended(f"interrupted after {len(found)} of {streams} runs")
    differing = sum(one.differing > 0 for one in found)
    code = found[0].code
    if as_json:
        runs = [
            {
                "name": one.name,
                "requests": one.requests,
                "differing": one.differing,
                "first": one.first
                and {key: None if x != x else x for key, x in one.first._asdict().items()},
            }
            for one in found
        ]
        print_json({"engine_code": dict(code), "runs": runs})
    else:
        what = f"{code['engine']} {code['version']} (code {code['digest'][:8]})"
        typer.echo(f"{what}: {differing} of {len(found)} runs differ from the model")
    if differing:
        raise typer.Exit(FAILED)
