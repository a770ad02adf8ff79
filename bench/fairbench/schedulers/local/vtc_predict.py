"""VTC with predicted output lengths ([VTC] Section 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.errors import UsageError
from fairbench.schedulers.charging.engine import GPU_TIME
from fairbench.schedulers.charging.predicted import LINEAR, CostName, PredictedCharging, own_cost
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.params import Fraction

GOLDEN = 0.6180339887498949  # multiples of this number modulo 1 are spread evenly over (0, 1)


class PredictiveVTC(VTC):
    """VTC that charges predicted outputs at admission, and corrects the charge at the end.

    The predictor ``oracle`` predicts ``max_new_tokens`` with a relative error of up to ``error``;
    in runs with ``ignore_eos``, ``max_new_tokens`` is the true length. The predictor ``average``
    predicts a moving average of the client's last outputs, and 0 before the first output. The
    predictor ``none`` predicts 0 output tokens, so clients are charged by VTC's rule. ``cost``
    replaces weighted tokens as the charge ([VTC] §4.2). The cost ``profiled`` is a request's time
    on an A10G. A user's Python file can define another cost as a function ``cost(input_tokens,
    output_tokens)``.
    """

    name = "vtc-predict"
    # ``PredictedCharging`` explains ``charges_at_finish``.
    charges_at_finish: ClassVar[bool] = False

    @dataclass(frozen=True)
    class Params(VTC.Params):
        """VTC's parameters, an output ``predictor`` with an ``error``, and a ``cost`` formula."""

        constants: ClassVar[tuple[str, ...]] = ("form", "input_weight", "output_weight", "preempt")

        predictor: Literal["oracle", "average", "none"] = "oracle"
        cost: CostName = LINEAR
        error: Fraction = 0.0

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        if params.charge == GPU_TIME:
            raise UsageError(
                f"{self.name}.charge = {GPU_TIME!r}: not supported, because this scheduler "
                "charges by its cost function"
            )
        charging = PredictedCharging(
            self.account,
            self.prices,
            params.sharing,
            self._predict,
            own_cost(params.cost),
            charges_at_finish=self.charges_at_finish,
        )
        self._compose(self.account, charging, params.weights)

    def _predict(self, request: Request, average: float) -> int:
        if self.params.predictor == "none":
            return 0
        if self.params.predictor == "average":
            return round(average)
        spread = 2 * (request.request_id * GOLDEN % 1) - 1
        return round(request.max_new_tokens * (1 + self.params.error * spread))

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} bounds no service difference")
