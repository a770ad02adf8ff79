"""Parameters of what lies between the workers of a simulated cluster and its router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge


@dataclass(frozen=True)
class ClusterParams:
    """Settings of the simulated cluster (``--set cluster.NAME=VALUE``).

    ``eviction_delay_s``: how late routers hear of an eviction.
    """

    eviction_delay_s: Annotated[float, Ge(0)] = 0.1
