"""The Virtual Token Counter without the lift (LCF, [VTC] §5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fairbench.core import NoBound, ServiceBound
from fairbench.schedulers.local.vtc import VTC


class LCF(VTC):
    """VTC without the lift: a returning client catches up on the service that it missed."""

    name = "lcf"

    @dataclass(frozen=True)
    class Params(VTC.Params):
        """The parameters of VTC without the lift."""

        constants: ClassVar[tuple[str, ...]] = ("form", "input_weight", "output_weight", "preempt")

        lift: Literal["none"] = "none"

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} bounds no service difference")
