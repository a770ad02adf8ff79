"""Charging at a router: the prompt is charged at dispatch, the output at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fairbench.core import PS_PER_S, Request
from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.charging.engine import GPU_TIME, GPUCharges, gpu_charges
from fairbench.schedulers.charging.shared_prefixes import SharedCharges, Sharing
from fairbench.schedulers.output_lengths import MeanAnswers

Charge = Literal["input", "uncached", "split", "owner", "gpu-time"]


class DispatchCharging:
    """Charges tokens: the counted tokens of the prompt at dispatch, and the output at the end.

    With ``ahead`` a client's mean output is charged at dispatch, and the difference to the real
    output at the end.
    """

    token_ps: Callable[[], float] | None = None
    """Returns the GPU time of a computed token in picoseconds; None if tokens are charged."""

    def __init__(self, extend_weight: int, output_weight: int, *, ahead: bool = False) -> None:
        self.extend_weight = extend_weight
        self.output_weight = output_weight
        self._answers = MeanAnswers() if ahead else None
        self._ahead: dict[int, float] = {}  # request id -> charge for the output in advance
        # request id -> client -> charge at the dispatch of an unfinished request
        self._paid: dict[int, dict[str, float]] = {}

    def prepare(self, name: str, setup: Setup) -> None:
        """Receive the facts of the experiment. Raises UsageError naming the scheduler."""

    def dispatched(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        """Return the charge of each client for a request; ``tokens`` of the prompt are charged."""
        paid = self._paid[request.request_id] = self._prompt_charges(request, tokens, worker)
        if self._answers is not None:
            expected = self.output_weight * self._answers.expected(request.client)
            self._ahead[request.request_id] = expected
            paid[request.client] = paid.get(request.client, 0) + expected
        return paid

    def _prompt_charges(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        return {request.client: self.extend_weight * tokens}

    def end_charge(self, request: Request, output_tokens: int) -> float:
        """Return the remaining charge of a request that has ended; a refund is negative."""
        self._paid.pop(request.request_id, None)
        cost = self.output_weight * output_tokens
        return cost if self._answers is None else cost - self._ahead.pop(request.request_id, 0)

    def failed(self, request: Request) -> dict[str, float]:
        """Return the amount that each client had paid for a dispatch that has failed."""
        self._ahead.pop(request.request_id, None)
        return self._paid.pop(request.request_id, {})

    def payers(self) -> set[str]:
        """Return the clients that have paid for unfinished requests."""
        return {payer for payers in self._paid.values() for payer in payers}

    def forget_worker(self, worker: int) -> None:
        """Record that a worker has left and that the worker's cache is lost."""

    def record_time(self, request: Request, gpu_s: float) -> None:
        """Record the GPU time of a request at its worker, in seconds."""

    def answered(self, client: str, output_tokens: int) -> None:
        if self._answers is not None and output_tokens:
            self._answers.learn(client, output_tokens)

    def forget(self, client: str) -> None:
        if self._answers is not None:
            self._answers.forget(client)


class SharedDispatchCharging(DispatchCharging):
    """Charges a prompt to the clients that share its prefix, as in ``SharedCharges``."""

    def __init__(
        self, extend_weight: int, output_weight: int, sharing: Sharing, *, ahead: bool
    ) -> None:
        super().__init__(extend_weight, output_weight, ahead=ahead)
        self._sharing = sharing
        self._shared: dict[int, SharedCharges] = {}  # worker -> charges

    def _prompt_charges(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        shared = self._shared.setdefault(worker, SharedCharges(self._sharing))
        charges = shared.tokens_by_client(request, tokens)
        return {client: self.extend_weight * due for client, due in charges.items()}

    def forget_worker(self, worker: int) -> None:
        self._shared.pop(worker, None)


class TimeDispatchCharging(DispatchCharging):
    """Charges the expected time of a prompt at dispatch, and corrects the charge at the end."""

    _charges: GPUCharges

    def __init__(self, extend_weight: int, output_weight: int, *, ahead: bool) -> None:
        super().__init__(extend_weight, output_weight, ahead=ahead)
        # request id -> GPU time in picoseconds of a request that has just ended
        self._took_ps: dict[int, int] = {}

    def prepare(self, name: str, setup: Setup) -> None:
        if self._answers is not None:
            raise UsageError(
                f"{name}.outputs = 'ahead': cannot be combined with charge = {GPU_TIME!r}"
            )
        self._charges = gpu_charges(name, setup)
        self.token_ps = self._charges.token_ps

    def _prompt_charges(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        return {request.client: self._charges.dispatch_charge(request, tokens)}

    def record_time(self, request: Request, gpu_s: float) -> None:
        self._took_ps[request.request_id] = round(gpu_s * PS_PER_S)

    def end_charge(self, request: Request, output_tokens: int) -> float:
        super().end_charge(request, output_tokens)
        took_ps = self._took_ps.pop(request.request_id, 0)
        return took_ps + self._charges.refund_rest(request)

    def failed(self, request: Request) -> dict[str, float]:
        self._charges.refund_rest(request)
        return super().failed(request)


def dispatch_charging(
    extend_weight: int, output_weight: int, charge: Charge, *, ahead: bool
) -> DispatchCharging:
    """Return the charging method that a router's parameters select.

    Args:
        extend_weight: Price of a prompt token.
        output_weight: Price of an output token.
        charge: ``input`` charges the full prompt ([DLPM] Alg. 2 line 16), ``uncached`` only the
            part that the chosen worker has not cached. ``split`` and ``owner`` charge the uncached
            part to the clients that share the prefix at the worker, as in ``SharedCharges``.
            ``gpu-time`` charges the expected time of the prompt, and at the end the request's true
            time instead.
        ahead: Whether a client's mean answer is charged at dispatch, and the difference at the end.
            By default outputs are charged when a request has ended (line 22), so a client's credit
            falls slowest at the slowest worker.
    """
    if charge == GPU_TIME:
        return TimeDispatchCharging(extend_weight, output_weight, ahead=ahead)
    if charge == "split" or charge == "owner":
        return SharedDispatchCharging(extend_weight, output_weight, charge, ahead=ahead)
    return DispatchCharging(extend_weight, output_weight, ahead=ahead)
