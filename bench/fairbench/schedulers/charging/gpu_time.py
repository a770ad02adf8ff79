"""Charging by GPU time: the time of a prompt is predicted at admission and corrected afterwards."""

from __future__ import annotations

from fairbench.core import Request
from fairbench.schedulers.charging.charging import Charging
from fairbench.schedulers.gpu_charges import GPUCharges, gpu_charges
from fairbench.schedulers.setup import Setup


class TimeCharging(Charging):
    """Charges picoseconds of the worker's busy time. The charges of all clients add up to it."""

    no_bound = "charges GPU time, which service does not count"
    _charges: GPUCharges

    def prepare(self, name: str, setup: Setup) -> None:
        self._charges = gpu_charges(name, setup)
        self.token_ps = self._charges.token_ps

    def admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self.account.charge(request.client, self._charges.admitted(request, extend_tokens))

    def prompt_time(self, request: Request, gpu_ps: int, complete: bool) -> None:
        owed = self._charges.computed(request, gpu_ps, complete)
        self.account.charge(request.client, owed)

    def gpu_time(self, client: str, gpu_ps: int) -> None:
        self.account.charge(client, gpu_ps)

    def retracted(self, request: Request) -> None:
        if back := self._charges.over(request):
            self.account.charge(request.client, back)

    finished = retracted
