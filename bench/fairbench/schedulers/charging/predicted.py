"""Charging of predicted outputs at admission, with a linear, measured or user-defined cost.

[VTC] §4.4 and Alg. 3 charge predicted output lengths. According to [VTC] §4.2, a request's cost
h(input tokens, output tokens) must increase with both numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator

from fairbench.core import Request
from fairbench.errors import UsageError, unknown_name
from fairbench.files.reader import module_of
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.charging.engine import Prices, TokenCharging
from fairbench.schedulers.charging.shared_prefixes import Sharing
from fairbench.schedulers.params import COST_FILES

Cost: TypeAlias = Callable[[int, int], float]

LINEAR, PROFILED = "linear", "profiled"
SUFFIX, FUNCTION = COST_FILES
# numbers of input and output tokens with which a user's cost function is tested
TRIED_TOKENS = (0, 1, 2, 16, 17, 256, 4_096, 100_000)


def profiled_cost_ms(input_tokens: int, output_tokens: int) -> float:
    """Return a request's time (ms) in a full batch of Llama-7b on an A10G ([VTC-artifact])."""
    x, y = input_tokens, output_tokens
    return 0.21001891 * x + 0.10075395 * y + 0.0039868 * x * y + 0.00324733 * y * y + 1.14601454


def own_cost(name: str) -> Cost | None:
    """Return the cost function that a setting names, or None for weighted tokens.

    A cost must be a number of at least 0, and must not fall when a number of tokens grows. Raises
    UsageError for an unknown name, a file that cannot be run, or an invalid cost function.
    """
    if name == LINEAR:
        return None
    if name == PROFILED:
        return profiled_cost_ms
    if not name.endswith(SUFFIX):
        raise unknown_name("cost", name, (LINEAR, PROFILED, f"FILE{SUFFIX}"))
    function = getattr(module_of(Path(name).resolve(), "cost"), FUNCTION, None)
    if not callable(function):
        raise UsageError(f"{name}: must define a function {FUNCTION}(input_tokens, output_tokens)")
    _try_out(function, name)
    cost: Cost = function
    return cost


def _try_out(function: Callable[[int, int], Any], name: str) -> None:
    values: dict[tuple[int, int], float] = {}
    for x, y in product(TRIED_TOKENS, repeat=2):
        where = f"{name}: {FUNCTION}({x}, {y})"
        try:
            value = function(x, y)
        except Exception as error:
            raise UsageError(f"{where} raises {type(error).__name__}: {error}") from error
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise UsageError(f"{where} is {value!r}: must be a number")
        if value < max(values.get(fewer, 0) for fewer in ((_fewer(x), y), (x, _fewer(y)))):
            raise UsageError(
                f"{where} is {value!r}: a cost must be at least 0, and more tokens must never cost "
                "less"
            )
        values[x, y] = value


def _fewer(tokens: int) -> int:
    return max([tried for tried in TRIED_TOKENS if tried < tokens], default=0)


def _known(name: str) -> str:
    try:
        own_cost(name)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return name


CostName = Annotated[str, AfterValidator(_known)]
"""A parameter that selects the cost: ``linear``, ``profiled`` or a Python file."""


# The moving average corresponds to the mean of about the last ``WINDOW`` output lengths.
WINDOW = 5


class PredictedCharging(TokenCharging):
    """Charging of the predicted output at admission, with later corrections.

    ``predict`` returns the expected output tokens of a request, given the moving average of its
    client's last outputs (0 before the first output). ``cost`` is a function of input and output
    tokens; if ``cost`` is None, ``prices`` apply. ``charges_at_finish`` is a rule of
    [VTC-artifact]: each step in which a request ends charges one more output token for each running
    request that is longer than predicted.
    """

    # ``refunds`` is false, because ``PredictedCharging`` itself charges outputs in advance.
    refunds = False
    per_request = True

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
        # ``_input`` maps each request to the input tokens charged at its admission.
        self._input: dict[Request, int] = {}
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
        self._charge_outputs(request, 0, predicted)

    def tokens(self, client: str, tokens: int) -> None:
        self._step_charged = False

    def steps(self, steps: int, running: Mapping[str, int]) -> None:
        self._step_charged = False

    def request_tokens(self, request: Request, tokens: int) -> None:
        before = max(self._produced[request], self._predicted[request])
        self._produced[request] += tokens
        if (produced := self._produced[request]) > before:
            self._charge_outputs(request, before, produced)

    def finished(self, request: Request) -> None:
        # A request that ended before it ran was not charged.
        if request not in self._predicted:
            return
        if self._charges_at_finish:
            self._charge_beyond()
        produced, predicted = self._produced.pop(request), self._predicted.pop(request)
        if predicted > produced:
            self._charge_outputs(request, predicted, produced)
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
                self._charge_outputs(request, produced - 1, produced)

    def _charge_outputs(self, request: Request, before: int, after: int) -> None:
        """Charge the output tokens of a request from number ``before`` + 1 to number ``after``."""
        if self._cost is None:
            cost: float = self.prices.output_weight * (after - before)
        else:
            tokens = self._input[request]
            cost = self._cost(tokens, after) - self._cost(tokens, before)
        self.account.charge(request.client, cost)
