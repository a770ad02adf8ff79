"""Charging outputs in advance, by a prediction of their length ([VTC] §4.4, Alg. 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairbench.core import Request
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.charging.tokens import Prices, TokenCharging
from fairbench.schedulers.costs import Cost
from fairbench.schedulers.sharing import Sharing

WINDOW = 5  # window of the moving average


class PredictedCharging(TokenCharging):
    """Charges the predicted output at admission, and corrects the charge as tokens come.

    ``predict`` returns the expected outputs of a request, given the moving average of its client's
    last outputs (0 before the first). Without a ``cost`` function of input and output tokens,
    ``prices`` apply. With ``charges_at_finish``, each step that ends a request charges one further
    token for requests that exceed their prediction ([VTC-artifact]).
    """

    refunds = False  # outputs are charged in advance here already

    def __init__(
        self,
        account: Account,
        prices: Prices,
        sharing: Sharing | None,
        predict: Callable[[Request, float], int],
        cost: Cost | None,
        *,
        charges_at_finish: bool,
    ) -> None:
        super().__init__(account, prices, sharing)
        self._predict = predict
        self._cost = cost
        self._charges_at_finish = charges_at_finish
        self._step_charged = False
        self._predicted: dict[Request, int] = {}
        self._produced: dict[Request, int] = {}
        self._input: dict[Request, int] = {}  # tokens charged at admission
        self._average: dict[str, float] = {}

    def admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        if recompute:
            return
        whole = self.prices.whole_input
        tokens = self._input[request] = request.input_tokens if whole else extend_tokens
        if self._cost is not None and (whole or self._shared is None):
            self.account.charge(request.client, self._cost(tokens, 0))
        else:
            super().admitted(request, extend_tokens, recompute)
        predicted = self._predict(request, self._average.get(request.client, 0.0))
        self._predicted[request], self._produced[request] = predicted, 0
        self._charge(request, 0, predicted)

    def tokens(self, client: str, tokens: int) -> None:
        self._step_charged = False

    def steps(self, steps: int, running: Mapping[str, int]) -> None:
        self._step_charged = False

    def request_tokens(self, request: Request, tokens: int) -> None:
        before = max(self._produced[request], self._predicted[request])
        self._produced[request] += tokens
        if (produced := self._produced[request]) > before:
            self._charge(request, before, produced)

    def finished(self, request: Request) -> None:
        if request not in self._predicted:  # the request never ran
            return
        if self._charges_at_finish:
            self._charge_beyond()
        produced, predicted = self._produced.pop(request), self._predicted.pop(request)
        if predicted > produced:
            self._charge(request, predicted, produced)
        del self._input[request]
        old = self._average.get(request.client, 0.0)
        new = ((WINDOW - 1) * old + produced) / WINDOW
        self._average[request.client] = new if old else float(produced)

    def forget(self, client: str) -> None:
        self._average.pop(client, None)

    def _charge_beyond(self) -> None:
        if self._step_charged:
            return
        self._step_charged = True
        for request, predicted in self._predicted.items():
            produced = self._produced[request]
            if predicted < produced < request.max_new_tokens:
                self._charge(request, produced - 1, produced)

    def _charge(self, request: Request, before: int, after: int) -> None:
        """Charge the output tokens between the numbers ``before`` and ``after``."""
        if self._cost is None:
            cost: float = self.prices.output_weight * (after - before)
        else:
            tokens = self._input[request]
            cost = self._cost(tokens, after) - self._cost(tokens, before)
        self.account.charge(request.client, cost)
