"""Methods that charge clients in an engine, by tokens or by GPU time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from fairbench.core import OUTPUT_PRICE, PS_PER_S, CostModel, Request
from fairbench.errors import UsageError
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.base import Setup
from fairbench.schedulers.charging.shared_prefixes import SharedCharges, Sharing
from fairbench.schedulers.views import Read


class Charging:
    """The base class of rules that charge clients for events in an engine.

    The methods of this base class charge nothing.
    """

    # If ``refunds`` is true, output tokens charged in advance are refunded if they are not
    # produced.
    refunds: ClassVar[bool] = True
    # If ``per_request`` is true, the engine must report the output tokens of each request
    # (``request_tokens``). These reports take CPU time.
    per_request: ClassVar[bool] = False
    # ``no_bound`` is the reason why no theorem bounds the service gap under this charging rule. It
    # is empty if a theorem does.
    no_bound = ""

    def __init__(self, account: Account) -> None:
        self.account = account

    def prepare(self, name: str, setup: Setup) -> None:
        """Receive the facts about the experiment before the run.

        Raises UsageError, naming the scheduler, if GPU time cannot be charged.
        """

    def admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        """Charge the uncached part of a prompt; ``recompute`` is true after a retraction."""

    def tokens(self, client: str, tokens: int) -> None:
        """Charge output tokens; a negative number is a refund."""

    def request_tokens(self, request: Request, tokens: int) -> None:
        """Charge output tokens of a single request; called only if ``per_request`` is True."""

    def steps(self, steps: int, running: Mapping[str, int]) -> None:
        """Charge the decode steps of a whole batch."""

    def read(self, request: Request, read: Read) -> None:
        """Charge or refund the difference between the charged and the reported prompt tokens."""

    def retracted(self, request: Request) -> None:
        """Refund a retracted request's prepaid charges."""

    def finished(self, request: Request) -> None:
        """Refund the unused part of a finished request's prepaid charges."""

    def forget(self, client: str) -> None:
        """Delete the state of a client without requests."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of input tokens and output tokens.

    ``input_weight`` and ``output_weight`` are the prices of a prompt token and an output token.
    With ``whole_input``, cached prompt tokens are charged, too ([VTC]). With ``recompute``, the
    second prefill of a retracted request is charged, too.
    """

    input_weight: int = 1
    output_weight: int = OUTPUT_PRICE
    whole_input: bool = False
    recompute: bool = False


class TokenCharging(Charging):
    """A rule that charges clients for their tokens, at the given ``prices`` per token.

    ``sharing`` divides the charge for a prefix among the clients that share the prefix. Without
    ``sharing``, the client whose request computes the prefix pays.
    """

    def __init__(self, account: Account, prices: Prices, sharing: Sharing | None = None) -> None:
        super().__init__(account)
        self.prices = prices
        self._shared = None if sharing is None else SharedCharges(sharing)
        account.shares = sharing is not None
        if sharing is not None and not prices.whole_input:
            self.no_bound = "charges by sharing, which is not the service of a client"
        elif prices.recompute:
            self.no_bound = "bounds no service difference in this form"

    def admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        prices = self.prices
        if recompute and not prices.recompute:
            return
        if prices.whole_input:
            self.account.charge(request.client, prices.input_weight * request.input_tokens)
        elif self._shared is None:
            self.account.charge(request.client, prices.input_weight * extend_tokens)
        else:
            for client, tokens in self._shared.tokens_by_client(request, extend_tokens).items():
                self.account.charge_absent(client, prices.input_weight * tokens)

    def tokens(self, client: str, tokens: int) -> None:
        self.account.running_changed(client)
        if tokens < 0:
            self.account.refund(client, self.prices.output_weight * -tokens)
        else:
            self.account.charge(client, self.prices.output_weight * tokens)

    def steps(self, steps: int, running: Mapping[str, int]) -> None:
        self.account.charge_steps(self.prices.output_weight, steps, running)

    def retracted(self, request: Request) -> None:
        self.account.running_changed(request.client)

    def finished(self, request: Request) -> None:
        self.account.running_changed(request.client)

    def read(self, request: Request, read: Read) -> None:
        if self._shared is not None:
            # No refund is given, because other clients may have paid for parts of the shared
            # prefix.
            return
        cached = 0 if self.prices.whole_input else read.cached_tokens
        more = read.input_tokens - cached - request.input_tokens
        self.account.charge(request.client, self.prices.input_weight * more)


# the value of the parameter ``charge`` that selects charging by GPU time
GPU_TIME = "gpu-time"
# The unit of GPU time is the mean prefill time of a token in a prompt of ``UNIT_TOKENS`` tokens.
UNIT_TOKENS = 1_024


class GPUCharges:
    """The GPU time charged to clients, in whole picoseconds, including prepaid time."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        # ``_ahead`` maps each request to the unused part of its prepaid GPU time (ps).
        self._ahead: dict[Request, int] = {}

    def admission_charge(self, request: Request, extend_tokens: int) -> int:
        """Return the time (ps) to prefill the prompt alone, which is charged at admission."""
        return self._prepay(request, extend_tokens, 0.0)

    def dispatch_charge(self, request: Request, extend_tokens: int) -> int:
        """Return the time (ps) to prefill the prompt without the fixed time of a step."""
        return self._prepay(request, extend_tokens, self._costs.prefill_s(0, 1))

    def _prepay(self, request: Request, extend_tokens: int, less_s: float) -> int:
        cached = max(0, request.input_tokens - extend_tokens)
        prefill_s = self._costs.prefill_s(cached, extend_tokens) - less_s
        ahead_ps = round(max(0.0, prefill_s) * PS_PER_S)
        self._ahead[request] = ahead_ps
        return ahead_ps

    def computed(self, request: Request, gpu_ps: int, complete: bool) -> int:
        """Return the GPU time (ps) of a chunk of a prompt minus the prepaid GPU time.

        ``complete`` is true for the last chunk of a prompt. A negative result is a refund.
        """
        ahead_ps = self._ahead.get(request, 0)
        paid_ps = ahead_ps if complete else min(ahead_ps, gpu_ps)
        self._ahead[request] = ahead_ps - paid_ps
        return gpu_ps - paid_ps

    def refund_rest(self, request: Request) -> int:
        """Return the refund for a request's unused prepaid GPU time, as a negative time (ps)."""
        return -self._ahead.pop(request, 0)

    def token_ps(self) -> float:
        """Return the GPU time (ps) that one token of a quantum stands for, at least 1."""
        return max(1.0, self._costs.prefill_s(0, UNIT_TOKENS) * PS_PER_S / UNIT_TOKENS)


def gpu_charges(name: str, setup: Setup) -> GPUCharges:
    """Return the object that charges clients of a scheduler for GPU time.

    Raises UsageError if the costs of iterations are unknown.
    """
    if setup.costs is None:
        raise UsageError(
            f"{name}.charge = {GPU_TIME!r}: needs a timing profile, because the time of "
            "an iteration is unknown without it; leave charge out"
        )
    return GPUCharges(setup.costs)


class TimeCharging(Charging):
    """A rule that charges clients for the worker's busy time, in picoseconds.

    At admission, the predicted time of the prompt is charged. The real time of each iteration later
    replaces the prediction, so the charges of all clients add up to the worker's busy time.
    """

    no_bound = "charges GPU time, which service does not count"
    _charges: GPUCharges

    def prepare(self, name: str, setup: Setup) -> None:
        self._charges = gpu_charges(name, setup)
        self.account.unit_of_time = self._charges.token_ps

    def admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self.account.charge(request.client, self._charges.admission_charge(request, extend_tokens))

    def prompt_time(self, request: Request, gpu_ps: int, complete: bool) -> None:
        owed = self._charges.computed(request, gpu_ps, complete)
        self.account.charge(request.client, owed)

    def gpu_time(self, client: str, gpu_ps: int) -> None:
        self.account.charge(client, gpu_ps)

    def retracted(self, request: Request) -> None:
        if back := self._charges.refund_rest(request):
            self.account.charge(request.client, back)

    finished = retracted


class ChargingParams(Protocol):
    """The parameters by which ``engine_charging`` selects the ``Charging`` of a scheduler."""

    @property
    def charge(self) -> str | None: ...
    @property
    def sharing(self) -> Sharing | None: ...
    @property
    def weights(self) -> Mapping[str, float] | None: ...


def engine_charging(
    name: str, account: Account, params: ChargingParams, prices: Prices, tokens: type[TokenCharging]
) -> Charging:
    """Return the ``Charging`` that the parameters of the scheduler ``name`` select.

    ``tokens`` is the ``TokenCharging`` class that is used unless GPU time is charged. Raises
    UsageError for parameters that combine GPU time with ``sharing``.
    """
    if params.charge != GPU_TIME:
        return tokens(account, prices, params.sharing)
    if params.sharing is None:
        return TimeCharging(account)
    raise UsageError(f"{name}.charge = {GPU_TIME!r}: cannot be combined with {name}.sharing")
