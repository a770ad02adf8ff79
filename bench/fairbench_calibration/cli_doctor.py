"""The command ``fairbench doctor``, which tests whether a server's scheduler protects clients."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer
from typer import Option

from fairbench.cli import options
from fairbench.cli.exits import FAILED
from fairbench.cli.output import print_json
from fairbench.config.flags import HEADER
from fairbench.errors import RunFailed
from fairbench_calibration import profiling
from fairbench_load.processes.environment import require_live_extra


def doctor(
    base_url: options.ServerUrl,
    yes: Annotated[
        bool, Option("--yes", help="Send the flood of test requests without asking first.")
    ] = False,
    flood: Annotated[
        int | None,
        Option(
            min=1,
            max=4096,
            help="Number of requests that the flood test sends at the same time. [default: 64 "
            "if it is unknown how many requests the server can run; otherwise three times that "
            "number, but at most 512]",
        ),
    ] = None,
    seconds: Annotated[float, Option(min=1.0, help="Seconds that the flood test takes.")] = 60.0,
    served_model_name: options.ServedModel = None,
    header: options.Headers = None,
    flood_header: Annotated[
        list[str] | None,
        options.option_of(
            HEADER, "Header of the flood only, such as another API key; may be repeated."
        ),
    ] = None,
    as_json: Annotated[bool, options.json_option("the findings", panel=None)] = False,
) -> None:
    """Test whether a flood of one client makes another client wait.

    Two test clients send short requests for a minute, and one of the two clients floods the server.
    Unless `--yes` is given, the command asks for confirmation before it floods the server. The exit
    code is 0 if fairbench's scheduler is active and the flood did not delay the other client, and 1
    otherwise.
    """
    from fairbench_calibration import server_checks as checks
    from fairbench_load.driver.target import DriverTarget

    require_live_extra()
    root, headers = profiling.root_of(base_url), options.parse_headers(header)
    of_flood = options.parse_headers(flood_header, "--flood-header")
    # A ``DriverTarget`` checks the URL and the headers.
    DriverTarget(root, headers={**headers, **of_flood})
    facts = checks.facts_of(root, headers)
    at_once = flood or facts.flood()
    trial = None
    question = f"Send up to {at_once} short requests at a time to {root} for {seconds:g} s?"
    if yes or (sys.stdin.isatty() and typer.confirm(question, err=True)):
        model = served_model_name or _listed(root, headers)
        trial = asyncio.run(checks.flood(root, model, at_once, seconds, headers, of_flood))
    found = checks.Findings(root, facts, trial)
    if as_json:
        print_json(found.as_dict())
    else:
        typer.echo("\n".join(checks.lines_of(found)))
    if not found.fine:
        raise typer.Exit(FAILED)


def _listed(root: str, headers: dict[str, str]) -> str:
    from fairbench_load.server_facts import get_json

    models = get_json(f"{root}/v1/models", headers=headers).get("data")
    name = models[0].get("id") if isinstance(models, list) and models else None
    if not name:
        raise RunFailed(f"{root}/v1/models: the server lists no model; give --served-model-name")
    return str(name)
