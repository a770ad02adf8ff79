"""VTC that charges a predicted output length at admission ([VTC] §4.4, Alg. 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.local.vtc import VTC

GOLDEN = 0.6180339887498949  # multiples of it modulo 1 are spread evenly
WINDOW = 5  # of the moving average


class PredictiveVTC(VTC):
    """Charges the predicted outputs at once, tokens only beyond them, and refunds the rest.

    ``oracle`` takes the allowed output for the true length, as runs with ``ignore_eos`` have it,
    off by up to ``error`` of it either way; ``average`` is a moving average of the client's last
    outputs, 0 before the first. With ``form=artifact`` each step that ends a request charges one
    token more for those that go on beyond their prediction ([VTC-artifact],
    vtc_{oracle,pred_len}_req_queue.py).
    """

    name = "vtc-predict"
    per_request_tokens = True

    @dataclass(frozen=True)
    class Params(VTC.Params):
        """Those of VTC, the predictor, and its error (0.5: off by up to 50%)."""

        predictor: Literal["oracle", "average"] = "oracle"
        error: Annotated[float, Ge(0), Le(1)] = 0.0

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._predicted: dict[Request, int] = {}
        self._produced: dict[Request, int] = {}
        self._average: dict[str, float] = {}

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        if not recompute:
            predicted = self._predict(request)
            self._predicted[request], self._produced[request] = predicted, 0
            self._charge(request.client, self.params.output_weight * predicted)

    def on_tokens(self, client: str, tokens: int) -> None:
        """Charged request by request instead; this only marks a new step."""
        self._step_charged = False

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        before = max(self._produced[request], self._predicted[request])
        self._produced[request] += tokens
        beyond = max(0, self._produced[request] - before)
        self._charge(request.client, self.params.output_weight * beyond)

    def on_finish(self, request: Request) -> None:
        if request not in self._predicted:  # it never ran
            return
        if self._artifact:
            self._charge_beyond()
        produced = self._produced.pop(request)
        refund = max(0, self._predicted.pop(request) - produced)
        self._charge(request.client, -self.params.output_weight * refund)
        old = self._average.get(request.client, 0.0)
        new = ((WINDOW - 1) * old + produced) / WINDOW
        self._average[request.client] = new if old else float(produced)

    def _charge_beyond(self) -> None:
        if self._step_charged:
            return
        self._step_charged = True
        for request, predicted in self._predicted.items():
            if predicted < self._produced[request] < request.max_new_tokens:
                self._charge(request.client, self.params.output_weight)

    def _predict(self, request: Request) -> int:
        if self.params.predictor == "average":
            return round(self._average.get(request.client, 0.0))
        spread = 2 * (request.request_id * GOLDEN % 1) - 1
        return round(request.max_new_tokens * (1 + self.params.error * spread))

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} bounds no service difference")
