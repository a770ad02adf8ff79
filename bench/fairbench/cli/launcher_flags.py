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
        help="Place of servers: here, a Ray cluster's nodes, or --hosts.",
    ),
]
DriverLauncher = Annotated[
    str,
    Option(
        metavar="|".join(DRIVER_LAUNCHERS),
        help="Place of the processes of --drivers: here, or a Ray cluster's nodes.",
    ),
]
RayAddress = Annotated[
    str | None,
    Option(
        metavar="HOST:PORT|auto",
        help="Head of the Ray cluster of --launcher ray or --driver-launcher ray. [default: auto, "
        "this machine's cluster]",
    ),
]
Hosts = Annotated[
    str | None,
    Option(metavar="A,B,...", help="Hosts on which --launcher command starts servers, in turn."),
]
LaunchCommand = Annotated[
    str | None,
    Option(
        metavar="'CMD {host} ...'",
        help="Command of --launcher command that runs a shell line, its last word, on a host. "
        f"[default: {DEFAULT}]",
    ),
]
