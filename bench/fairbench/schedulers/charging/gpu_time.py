"""Charging by GPU time: the time of a prompt is predicted at admission and corrected afterwards.

The charges add up to the time that the worker was busy: every host that sets ``times_steps``
reports each iteration's time by client, which replaces the prediction.
"""

from __future__ import annotations

from fairbench.core import PS_PER_S, CostModel, Request
from fairbench.errors import UsageError
from fairbench.schedulers.charging.tokens import Charging
from fairbench.schedulers.setup import Setup

GPU_TIME = "gpu-time"  # the value of the parameter ``charge``
UNIT_TOKENS = 1_024  # length of the prompt from which a token's time is measured


class GPUCharges:
    """The GPU time that each request owes beyond its charges, in whole picoseconds."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._ahead: dict[Request, int] = {}  # prompt time that is charged and not yet computed

    def admitted(self, request: Request, extend_tokens: int) -> int:
        """Charge the expected time of a request's prompt, as if it were alone in the batch."""
        return self._charge(request, extend_tokens, 0.0)

    def dispatched(self, request: Request, extend_tokens: int) -> int:
        """Charge the expected time of a prompt without an iteration's fixed cost."""
        return self._charge(request, extend_tokens, self._costs.prefill_s(0, 1))

    def _charge(self, request: Request, extend_tokens: int, less_s: float) -> int:
        cached = max(0, request.input_tokens - extend_tokens)
        prefill_s = self._costs.prefill_s(cached, extend_tokens) - less_s
        ahead_ps = round(max(0.0, prefill_s) * PS_PER_S)
        self._ahead[request] = ahead_ps
        return ahead_ps

    def computed(self, request: Request, gpu_ps: int, complete: bool) -> int:
        """Return the charge for a prompt's part beyond the prepayment, in picoseconds.

        ``complete`` marks the last part. The charge is negative if the prepayment was too high.
        """
        ahead_ps = self._ahead.get(request, 0)
        paid_ps = ahead_ps if complete else min(ahead_ps, gpu_ps)
        self._ahead[request] = ahead_ps - paid_ps
        return gpu_ps - paid_ps

    def over(self, request: Request) -> int:
        """Refund the unused prepayment of a request that has ended or lost its memory."""
        return -self._ahead.pop(request, 0)

    def token_ps(self) -> float:
        """Return the time of one computed prompt token, in which quanta are counted; never 0."""
        return max(1.0, self._costs.prefill_s(0, UNIT_TOKENS) * PS_PER_S / UNIT_TOKENS)


def gpu_charges(name: str, setup: Setup) -> GPUCharges:
    """Return a scheduler's charges. Raises UsageError if its host has no iteration costs."""
    if setup.costs is None:
        raise UsageError(
            f"{name}.charge = {GPU_TIME!r}: needs a timing profile, because the time of "
            "iterations is not known here; leave charge out"
        )
    return GPUCharges(setup.costs)


class TimeCharging(Charging):
    """Charges picoseconds of the worker's busy time.

    The charges of all clients add up to the busy time.
    """

    no_bound = "charges GPU time, which service does not count"
    _charges: GPUCharges

    def prepare(self, name: str, setup: Setup) -> None:
        self._charges = gpu_charges(name, setup)
        self.account.unit_of_time = self._charges.token_ps

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
