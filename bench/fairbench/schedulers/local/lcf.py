"""Least counter first: VTC without lifting the counters of returning clients ([VTC] §5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairbench.core import NoBound, ServiceBound
from fairbench.schedulers.local.vtc import VTC


class LCF(VTC):
    """VTC without the lift: a client that returns is owed all the service that it missed."""

    name = "lcf"

    @dataclass(frozen=True)
    class Params(VTC.Params):
        """The parameters of VTC, but without lifting."""

        lift: Literal["none"] = "none"

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} bounds no service difference")
