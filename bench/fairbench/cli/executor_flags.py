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
        help="Place of simulations: processes of this machine, or a Ray cluster.",
    ),
]
RayAddress = Annotated[
    str | None,
    Option(
        metavar="HOST:PORT|auto",
        help="Head of the Ray cluster of --executor ray. [default: auto, this machine's cluster]",
    ),
]
