"""Flags of commands that can start servers on other machines."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from fairbench.execute.launchers import DRIVER_LAUNCHERS, LAUNCHERS
from fairbench.live.launchers import DEFAULT

Launcher = Annotated[
    str,
    Option(
        metavar="|".join(LAUNCHERS),
        help="Where servers start: here, on a Ray cluster's nodes, or on --hosts.",
    ),
]
DriverLauncher = Annotated[
    str,
    Option(
        metavar="|".join(DRIVER_LAUNCHERS),
        help="Where the processes of --drivers are: here, or spread over a Ray cluster's nodes.",
    ),
]
RayAddress = Annotated[
    str | None,
    Option(
        metavar="HOST:PORT|auto",
        help="With --launcher ray or --driver-launcher ray: the cluster's head. [default: auto, "
        "this machine's cluster]",
    ),
]
Hosts = Annotated[
    str | None,
    Option(metavar="A,B,...", help="With --launcher command: where servers start, in turn."),
]
LaunchCommand = Annotated[
    str | None,
    Option(
        metavar="'CMD {host} ...'",
        help="With --launcher command: runs a shell's line, its last word, on a host. "
        f"[default: {DEFAULT}]",
    ),
]
