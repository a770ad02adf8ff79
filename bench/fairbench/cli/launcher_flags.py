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
        help="Place where servers start: this machine, the nodes of a Ray cluster, or --hosts.",
    ),
]
DriverLauncher = Annotated[
    str,
    Option(
        metavar="|".join(DRIVER_LAUNCHERS),
        help="Place where the processes of --drivers run: this machine, or the nodes of a Ray "
        "cluster.",
    ),
]
RayAddress = Annotated[
    str | None,
    Option(
        metavar="HOST:PORT|auto",
        help="Address of the head of the Ray cluster for --launcher ray or --driver-launcher "
        "ray. [default: auto, the cluster of this machine]",
    ),
]
Hosts = Annotated[
    str | None,
    Option(
        metavar="A,B,...",
        help="Hosts on which --launcher command starts servers, used in this order.",
    ),
]
LaunchCommand = Annotated[
    str | None,
    Option(
        metavar="'CMD {host} ...'",
        help="Command with which --launcher command runs a shell line on {host}; the line "
        f"is appended as its last word. [default: {DEFAULT}]",
    ),
]
