"""Flags of commands that can have their simulations run elsewhere."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from fairbench.execute.executors import EXECUTORS

ExecutorName = Annotated[
    str,
    Option(
        "--executor",
        metavar="|".join(EXECUTORS),
        help="Where simulations run: processes of this machine, or a Ray cluster.",
    ),
]
RayAddress = Annotated[
    str | None,
    Option(
        metavar="HOST:PORT|auto",
        help="With --executor ray: the cluster's head. [default: auto, this machine's cluster]",
    ),
]
