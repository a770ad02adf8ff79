"""VTC that charges a predicted output length at admission ([VTC] §4.4, Alg. 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.errors import UsageError
from fairbench.schedulers.costs import LINEAR, CostName, own_cost
from fairbench.schedulers.gpu_charges import GPU_TIME
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.setup import Setup

GOLDEN = 0.6180339887498949  # multiples of it modulo 1 are spread evenly
WINDOW = 5  # of the moving average


class PredictiveVTC(VTC):
    """Charges the predicted outputs at once, tokens only beyond them, and refunds the rest.

    ``oracle`` takes the allowed output for the true length, as runs with ``ignore_eos`` have it,
    off by up to ``error`` of it either way; ``average`` is a moving average of the client's last
    outputs, 0 before the first; ``none`` predicts 0, which is VTC. ``cost`` is what is charged in
    place of weighted tokens ([VTC] §4.2): ``profiled`` is the time of a request on an A10G, a file
    ``mine.py`` your own function ``cost(input_tokens, output_tokens)``. With
    ``form=artifact`` each step that ends a request charges one token more for those that go on
    beyond their prediction ([VTC-artifact], vtc_{oracle,pred_len}_req_queue.py).
    """

    name = "vtc-predict"
    per_request_tokens = True

    @dataclass(frozen=True)
    class Params(VTC.Params):
        """Those of VTC, the predictor, its error (0.5: off by up to 50%), and what is charged."""

        predictor: Literal["oracle", "average", "none"] = "oracle"
        cost: CostName = LINEAR
        error: Annotated[float, Ge(0), Le(1)] = 0.0

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.refunds_tokens = False  # it charges ahead by itself
        self._cost = own_cost(params.cost)
        self._predicted: dict[Request, int] = {}
        self._produced: dict[Request, int] = {}
        self._average: dict[str, float] = {}
        self._input: dict[Request, int] = {}  # tokens charged at admission

    def prepare(self, setup: Setup) -> None:
        if self.times_steps:
            raise UsageError(f"{self.name}.charge = {GPU_TIME!r}: it charges by its cost")
        super().prepare(setup)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        if not recompute:
            predicted = self._predict(request)
            self._predicted[request], self._produced[request] = predicted, 0
            self._charge(request.client, self._outputs_cost(request, 0, predicted))

    def on_tokens(self, client: str, tokens: int) -> None:
        """Charged request by request instead; this only marks a new step."""
        self._step_charged = False

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        before = max(self._produced[request], self._predicted[request])
        self._produced[request] += tokens
        if (produced := self._produced[request]) > before:
            self._charge(request.client, self._outputs_cost(request, before, produced))

    def on_finish(self, request: Request) -> None:
        if request not in self._predicted:  # it never ran
            return
        if self._charges_at_finish:
            self._charge_beyond()
        produced, predicted = self._produced.pop(request), self._predicted.pop(request)
        if predicted > produced:
            self._charge(request.client, self._outputs_cost(request, predicted, produced))
        del self._input[request]
        old = self._average.get(request.client, 0.0)
        new = ((WINDOW - 1) * old + produced) / WINDOW
        self._average[request.client] = new if old else float(produced)

    def _charge_beyond(self) -> None:
        if self._step_charged:
            return
        self._step_charged = True
        for request, predicted in self._predicted.items():
            produced = self._produced[request]
            if predicted < produced < request.max_new_tokens:
                cost = self._outputs_cost(request, produced - 1, produced)
                self._charge(request.client, cost)

    def _input_cost(self, request: Request, tokens: int) -> float:
        self._input[request] = tokens
        if self._cost is not None:
            return self._cost(tokens, 0)
        return super()._input_cost(request, tokens)

    def _outputs_cost(self, request: Request, before: int, after: int) -> float:
        """What the outputs cost up to ``after``, beyond those up to ``before``."""
        if self._cost is None:
            return self.params.output_weight * (after - before)
        tokens = self._input[request]
        return self._cost(tokens, after) - self._cost(tokens, before)

    def _predict(self, request: Request) -> int:
        if self.params.predictor == "none":
            return 0
        if self.params.predictor == "average":
            return round(self._average.get(request.client, 0.0))
        spread = 2 * (request.request_id * GOLDEN % 1) - 1
        return round(request.max_new_tokens * (1 + self.params.error * spread))

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} bounds no service difference")
