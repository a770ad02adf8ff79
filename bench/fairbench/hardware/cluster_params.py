"""Parameters of the connection between a simulated cluster's workers and its router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le


@dataclass(frozen=True)
class ClusterParams:
    """Settings of the simulated cluster (``--set cluster.NAME=VALUE``).

    ``eviction_delay_s``: how late routers hear of an eviction. ``eviction_loss``: what part of the
    news never arrives, drawn for each piece by itself; by default (not given) all of it does.
    """

    eviction_delay_s: Annotated[float, Ge(0)] = 0.1
    eviction_loss: Annotated[float, Ge(0), Le(1)] | None = None
