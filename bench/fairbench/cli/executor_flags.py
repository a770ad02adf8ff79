"""Flags of commands that can run simulations on other machines."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from fairbench.execute.executors import EXECUTORS

ExecutorName = Annotated[
    str,
    Option(
        "--executor",
        metavar="|".join(EXECUTORS),
        help="Place where simulations run: processes on this machine, or a Ray cluster.",
    ),
]
RayAddress = Annotated[
    str | None,
    Option(
        metavar="HOST:PORT|auto",
        help="Address of the head of the Ray cluster for --executor ray. [default: auto, the "
        "cluster of this machine]",
    ),
]
