"""Equinox: the client with the lowest sum of a user counter and a resource counter goes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from fairbench.core import OUTPUT_PRICE, Request
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.params import Fraction, NotNegative, Positive
from fairbench_rivals.local.least_counter import LeastCounter


class _Charge(NamedTuple):
    outputs: int
    extend_tokens: int
    waited_s: float
    utilization: float


class Equinox(LeastCounter):
    """A scheduler that first serves clients with low sums of a user counter and a resource counter.

    In [Equinox], the User Fairness Counter measures weighted tokens and latency, and the Resource
    Fairness Counter measures throughput and GPU utilization. The paper predicts the values of the
    user and the resource counter at admission, and adds these counters with tunable weights. In
    fairbench, a request adds (input + ``output_weight`` x outputs) / (1 + ``latency_weight`` x
    latency) to its client's user counter, so a client that waited is charged less. The charge to
    the resource counter is tokens per second x the used fraction of the KV pool. Charges are
    divided by the client's weight, and corrected by the true length when the request ends. Before
    the user and the resource counter are added, each counter is divided by its largest value over
    all clients.

    The Equinox paper leaves some terms undefined, which fairbench defines as follows. A moving
    average of the client's outputs replaces the paper's mixture of expert predictors; with
    ``oracle``, ``max_new_tokens`` replaces the mixture. Latency and throughput are computed from
    the predicted length, with ``step_s`` seconds per output token and ``prefill_token_s`` seconds
    per uncached prompt token. Both counters of a returning client are lifted, as in VTC.
    """

    name = "equinox"
    reads_clock = True

    @dataclass(frozen=True)
    class Params:
        """Parameters of Equinox.

        The user counter has the weight ``user_share``, and the resource counter has the weight 1 -
        ``user_share``.
        """

        constants: ClassVar[tuple[str, ...]] = ("latency_weight", "output_weight", "user_share")

        user_share: Fraction = 0.7
        output_weight: NotNegative = float(OUTPUT_PRICE)
        latency_weight: NotNegative = 0.1
        predictor: Literal["average", "oracle"] = "average"
        step_s: Positive = 0.03
        prefill_token_s: Positive = 1e-4

    def __init__(self, params: Params) -> None:
        self.user: dict[str, float] = {}
        self.resource: dict[str, float] = {}
        super().__init__(self.user, self.resource)
        self.params = params
        self._charged: dict[Request, _Charge] = {}
        self._produced: dict[Request, int] = {}
        self._average: dict[str, float] = {}
        self._now_s = 0.0
        self._utilization = 0.0

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._now_s = now_s
        pool = self.setup.pool_tokens
        self._utilization = max(0.0, 1 - view.running.free_tokens / pool) if pool else 1.0
        return super().select(view, now_s)

    def _score(self, client: str) -> float:
        most = max(self.user.values()) or 1.0, max(self.resource.values()) or 1.0
        share = self.params.user_share
        return share * self.user[client] / most[0] + (1 - share) * self.resource[client] / most[1]

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        if recompute:
            return
        waited_s = self._now_s - request.arrival_s
        output = request.max_new_tokens
        if self.params.predictor != "oracle" and request.client in self._average:
            output = round(self._average[request.client])
        charge = _Charge(output, extend_tokens, waited_s, self._utilization)
        self._charged[request], self._produced[request] = charge, 0
        self._count_charge(request, charge, 1)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._produced[request] += tokens

    def on_finish(self, request: Request) -> None:
        if request not in self._charged:  # the request never ran, so its client was not charged
            return
        charge, produced = self._charged.pop(request), self._produced.pop(request)
        self._count_charge(request, charge, -1)
        self._count_charge(request, charge._replace(outputs=produced), 1)
        old = self._average.get(request.client)
        self._average[request.client] = produced if old is None else (4 * old + produced) / 5

    def _count_charge(self, request: Request, charge: _Charge, sign: int) -> None:
        params, weight = self.params, self.setup.weight(request.client)
        busy_s = charge.extend_tokens * params.prefill_token_s + charge.outputs * params.step_s
        tokens = request.input_tokens + params.output_weight * charge.outputs
        latency_s = charge.waited_s + busy_s
        user = tokens / (1 + params.latency_weight * latency_s)
        rate = (charge.extend_tokens + charge.outputs) / busy_s
        self.user[request.client] += sign * user / weight
        self.resource[request.client] += sign * rate * charge.utilization / weight

    def balances(self) -> Mapping[str, float]:
        return {client: self._score(client) for client in self.user}
