"""``fairbench recover``: saves a killed run as a stored run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairbench.cli.flags import json_option


def recover(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Directory of a run that was killed.")
    ],
    as_json: Annotated[bool, json_option("the summary", panel=None)] = False,
) -> None:
    """Save the finished requests of a run that was killed.

    Prints its summary. The run is marked incomplete. What was under way when it was killed is not
    in it.
    """
    from fairbench.cli.output import print_json, print_summary
    from fairbench.execute.recovery import recover_run

    result = recover_run(run_dir)
    if as_json:
        print_json(result.summary)
    else:
        print_summary(result.summary, run_dir, complete=False)
