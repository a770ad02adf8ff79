"""Charging at a router: the prompt is charged at dispatch, the output at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fairbench.core import PS_PER_S, Request
from fairbench.errors import UsageError
from fairbench.schedulers.accounts.worker_credits import MAX_CLIENTS
from fairbench.schedulers.charging.gpu_time import GPU_TIME, GPUCharges, gpu_charges
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.sharing import SharedCharges, Sharing


class MeanAnswers:
    """The mean output of a client's finished requests, or of all clients if the client has none."""

    def __init__(self) -> None:
        # requests and tokens; the client heard of longest ago comes first
        self._of: dict[str, tuple[int, int]] = {}
        self._all = (0, 0)

    @property
    def of_all(self) -> float:
        """The mean tokens of all answers; 0 before any answer has ended."""
        requests, tokens = self._all
        return tokens / requests if requests else 0.0

    def expected(self, client: str) -> float:
        """Return the expected tokens of the client's next answer; 0 before any answer has ended."""
        requests, tokens = self._of.get(client, self._all)
        return tokens / requests if requests else 0.0

    def finished(self, client: str, tokens: int) -> None:
        """Record the length of a finished answer, in tokens."""
        requests, before = self._of.pop(client, (0, 0))
        self._of[client] = (requests + 1, before + tokens)
        if len(self._of) > MAX_CLIENTS:
            del self._of[next(iter(self._of))]
        self._all = (self._all[0] + 1, self._all[1] + tokens)

    def forget(self, client: str) -> None:
        """Forget the mean of a client, so that the client starts again."""
        self._of.pop(client, None)


Charge = Literal["input", "uncached", "split", "owner", "gpu-time"]


class DispatchCharging:
    """Charges tokens: the counted tokens of the prompt at dispatch, and the output at the end.

    With ``ahead`` a client's mean output is charged at dispatch, and the difference at the end.
    """

    token_ps: Callable[[], float] | None = None
    """The time of one computed token, by which quanta become times; None charges tokens."""

    def __init__(self, extend_weight: int, output_weight: int, *, ahead: bool = False) -> None:
        self.extend_weight = extend_weight
        self.output_weight = output_weight
        self._answers = MeanAnswers() if ahead else None
        self._ahead: dict[int, float] = {}  # charges for outputs in advance, by request id
        # charges of requests in progress, by their ids
        self._paid: dict[int, dict[str, float]] = {}

    def prepare(self, name: str, setup: Setup) -> None:
        """Receive the facts of the experiment. Raises UsageError naming the scheduler."""

    def dispatched(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        """Return the charge of each client for a request; ``tokens`` of its prompt count."""
        paid = self._paid[request.request_id] = self._prompt(request, tokens, worker)
        if self._answers is not None:
            expected = self.output_weight * self._answers.expected(request.client)
            self._ahead[request.request_id] = expected
            paid[request.client] = paid.get(request.client, 0) + expected
        return paid

    def _prompt(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        return {request.client: self.extend_weight * tokens}

    def finished(self, request: Request, output_tokens: int) -> float:
        """Return the remaining charge of a request that has ended; negative is a refund."""
        self._paid.pop(request.request_id, None)
        cost = self.output_weight * output_tokens
        return cost if self._answers is None else cost - self._ahead.pop(request.request_id, 0)

    def failed(self, request: Request) -> dict[str, float]:
        """Return the amounts that clients had paid for a dispatch that has failed."""
        self._ahead.pop(request.request_id, None)
        return self._paid.pop(request.request_id, {})

    def payers(self) -> set[str]:
        """Return the clients that have paid for unfinished requests."""
        return {payer for payers in self._paid.values() for payer in payers}

    def left(self, worker: int) -> None:
        """Record that a worker has left, and that its cache is lost."""

    def took(self, request: Request, gpu_s: float) -> None:
        """Record the GPU time that a request took at its worker."""

    def answered(self, client: str, output_tokens: int) -> None:
        if self._answers is not None and output_tokens:
            self._answers.finished(client, output_tokens)

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

    def _prompt(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        shared = self._shared.setdefault(worker, SharedCharges(self._sharing))
        charges = shared.charges(request, tokens)
        return {client: self.extend_weight * due for client, due in charges.items()}

    def left(self, worker: int) -> None:
        self._shared.pop(worker, None)


class TimeDispatchCharging(DispatchCharging):
    """Charges the expected time of the prompt at dispatch, and corrects it at the end."""

    _charges: GPUCharges

    def __init__(self, extend_weight: int, output_weight: int, *, ahead: bool) -> None:
        super().__init__(extend_weight, output_weight, ahead=ahead)
        self._took_ps: dict[int, int] = {}  # times of requests that have just ended, by their ids

    def prepare(self, name: str, setup: Setup) -> None:
        if self._answers is not None:
            raise UsageError(
                f"{name}.outputs = 'ahead': cannot be combined with charge = {GPU_TIME!r}"
            )
        self._charges = gpu_charges(name, setup)
        self.token_ps = self._charges.token_ps

    def _prompt(self, request: Request, tokens: int, worker: int) -> dict[str, float]:
        return {request.client: self._charges.dispatched(request, tokens)}

    def took(self, request: Request, gpu_s: float) -> None:
        self._took_ps[request.request_id] = round(gpu_s * PS_PER_S)

    def finished(self, request: Request, output_tokens: int) -> float:
        super().finished(request, output_tokens)
        took_ps = self._took_ps.pop(request.request_id, 0)
        return took_ps + self._charges.over(request)

    def failed(self, request: Request) -> dict[str, float]:
        self._charges.over(request)
        return super().failed(request)


def dispatch_charging(
    extend_weight: int, output_weight: int, charge: Charge, *, ahead: bool
) -> DispatchCharging:
    """Return the charging method that a router's parameters select.

    Args:
        extend_weight: Price of a token of a prompt.
        output_weight: Price of a token of an output.
        charge: ``input`` charges the full prompt ([DLPM] Alg. 2 line 16), ``uncached`` only the
            part that the chosen worker has not cached. ``split`` and ``owner`` charge that part to
            the clients that share a prefix there, as in ``SharedCharges``. ``gpu-time`` charges the
            expected time of the prompt, and at the end the request's true time instead.
        ahead: Whether a client's mean answer is charged at dispatch, and the difference at the
            end. By default outputs are charged when a request has ended (line 22), so the slowest
            worker looks cheapest.
    """
    if charge == GPU_TIME:
        return TimeDispatchCharging(extend_weight, output_weight, ahead=ahead)
    if charge == "split" or charge == "owner":
        return SharedDispatchCharging(extend_weight, output_weight, charge, ahead=ahead)
    return DispatchCharging(extend_weight, output_weight, ahead=ahead)
