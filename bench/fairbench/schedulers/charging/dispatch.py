"""Charging at a router, which charges a prompt at dispatch and the output at the request's end."""

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
    """A charging by tokens: prompt tokens at dispatch, and output tokens at the request's end.

    If ``ahead`` is set, a client's mean output is charged at dispatch, and the difference from the
    real output is charged at the end.
    """

    token_ps: Callable[[], float] | None = None
    """A function that returns a token's GPU time in picoseconds; None if tokens are charged."""

    def __init__(self, extend_weight: int, output_weight: int, *, ahead: bool = False) -> None:
        self.extend_weight = extend_weight
        self.output_weight = output_weight
        self._answers = MeanAnswers() if ahead else None
        # ``_ahead`` maps the id of a request to its charge in advance for output tokens.
        self._ahead: dict[int, float] = {}
        # ``_paid`` maps the id of each unfinished request to the charges that its dispatch caused,
        # by client.
        self._paid: dict[int, dict[str, float]] = {}

    def prepare(self, name: str, setup: Setup) -> None:
        """Receive the facts of the experiment before the run.

        Raises UsageError with the name of the scheduler.
        """

    def dispatched(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        """Return each client's charge for a request of which ``tokens`` prompt tokens count."""
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
        """Return the refund of each client when a dispatched request has failed."""
        self._ahead.pop(request.request_id, None)
        return self._paid.pop(request.request_id, {})

    def payers(self) -> set[str]:
        """Return the clients that have already paid for unfinished requests."""
        return {payer for payers in self._paid.values() for payer in payers}

    def forget_worker(self, worker: int) -> None:
        """Record that a worker has left and that the worker's cache is lost."""

    def record_time(self, request: Request, gpu_s: float) -> None:
        """Record the GPU time in seconds that a request used at its worker."""

    def answered(self, client: str, output_tokens: int) -> None:
        if self._answers is not None and output_tokens:
            self._answers.learn(client, output_tokens)

    def forget(self, client: str) -> None:
        if self._answers is not None:
            self._answers.forget(client)


class SharedDispatchCharging(DispatchCharging):
    """A charging of prompts to the clients that share prefixes, as in ``SharedCharges``."""

    def __init__(
        self, extend_weight: int, output_weight: int, sharing: Sharing, *, ahead: bool
    ) -> None:
        super().__init__(extend_weight, output_weight, ahead=ahead)
        self._sharing = sharing
        # ``_shared`` maps each worker to the charges for prefixes that several clients use at the
        # worker.
        self._shared: dict[int, SharedCharges] = {}

    def _prompt_charges(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        shared = self._shared.setdefault(worker, SharedCharges(self._sharing))
        charges = shared.tokens_by_client(request, tokens)
        return {client: self.extend_weight * due for client, due in charges.items()}

    def forget_worker(self, worker: int) -> None:
        self._shared.pop(worker, None)


class TimeDispatchCharging(DispatchCharging):
    """A charging of a prompt's expected GPU time at dispatch, with a correction at the end."""

    _charges: GPUCharges

    def __init__(self, extend_weight: int, output_weight: int, *, ahead: bool) -> None:
        super().__init__(extend_weight, output_weight, ahead=ahead)
        # ``_took_ps`` maps the id of a request that has just ended to its GPU time in picoseconds.
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
    """Return the charging that a router's parameters select.

    Args:
        extend_weight: Price of a prompt token.
        output_weight: Price of an output token.
        charge: ``input`` charges the full prompt ([DLPM] Alg. 2 line 16), ``uncached`` only the
            part that the chosen worker has not cached. ``split`` and ``owner`` charge the uncached
            part to the clients that share the prefix at the worker, as in ``SharedCharges``. ``gpu-
            time`` charges the expected GPU time of the prompt; at the end of the request, the true
            GPU time of the whole request replaces this charge.
        ahead: Whether the mean length of a client's answers is charged at dispatch, and the
            difference from the true length at the end. By default, outputs are charged when a
            request has ended (line 22), so a client's credit falls slowest at the slowest worker.
    """
    if charge == GPU_TIME:
        return TimeDispatchCharging(extend_weight, output_weight, ahead=ahead)
    if charge == "split" or charge == "owner":
        return SharedDispatchCharging(extend_weight, output_weight, charge, ahead=ahead)
    return DispatchCharging(extend_weight, output_weight, ahead=ahead)
