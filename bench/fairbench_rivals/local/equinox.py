"""Equinox: the client with the least sum of a user's and the operator's predicted counter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fairbench.core import Request
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.local.least_counter import LeastCounter
from fairbench.schedulers.params import Fraction, NotNegative, Positive


class _Charge(NamedTuple):
    """The known facts of a request at its admission."""

    outputs: int
    extend_tokens: int
    waited_s: float
    utilization: float


class Equinox(LeastCounter):
    """Least weighted sum of a user's and an operator's counter first, each over its maximum.

    [Equinox]: the User Fairness Counter measures weighted tokens and latency, the Resource Fairness
    Counter throughput and GPU utilization; both are predicted at admission and combined by tunable
    weights. These terms are read as follows: a request adds (input + ``output_weight`` x outputs) /
    (1 + ``latency_weight`` x latency) to its client's first counter, so that a client that waited
    is charged less. It adds tokens per second x the used part of the KV pool to the second counter.
    Both counters are divided by weight, and corrected by the true length when the request ends.

    The paper does not define these parts; the choices here are: a moving average of the client's
    outputs replaces its mixture of expert predictors (``oracle``: the allowed length); latency and
    throughput follow from the length, at ``step_s`` per token and ``prefill_token_s`` per uncached
    prompt token. A returning client is lifted in both counters, as in VTC.
    """

    name = "equinox"
    per_request_tokens = True
    reads_clock = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``user_share`` is the weight of the first counter.

        The second counter has the rest.
        """

        user_share: Fraction = 0.7
        output_weight: NotNegative = 2.0
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
        charge = _Charge(self._predict(request), extend_tokens, waited_s, self._utilization)
        self._charged[request], self._produced[request] = charge, 0
        self._book(request, charge, 1)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._produced[request] += tokens

    def on_finish(self, request: Request) -> None:
        if request not in self._charged:  # the request never ran
            return
        charge, produced = self._charged.pop(request), self._produced.pop(request)
        self._book(request, charge, -1)
        self._book(request, charge._replace(outputs=produced), 1)
        old = self._average.get(request.client)
        self._average[request.client] = produced if old is None else (4 * old + produced) / 5

    def _predict(self, request: Request) -> int:
        if self.params.predictor == "oracle" or request.client not in self._average:
            return request.max_new_tokens
        return round(self._average[request.client])

    def _book(self, request: Request, charge: _Charge, sign: int) -> None:
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
