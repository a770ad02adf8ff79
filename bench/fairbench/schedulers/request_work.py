"""The work of a request: the time that the request adds at a worker, in tokens of prefill.

A token of prefill costs the same for every client, so the work of several clients can be added and
divided. The fixed time of a step belongs to no client's work: the whole batch shares it.
"""

from __future__ import annotations

from fairbench.core import CostModel
from fairbench.schedulers.load_cap import step_units

# cost of an output token, in tokens of prefill ([DLPM] §3), if costs are unknown
UNKNOWN_OUTPUT_WEIGHT = 2

_PROMPT = 1_024  # tokens of the prompt whose mean token time is the unit of work


class RequestWork:
    """Work by an engine's costs, or by the usual weights of service if costs are unknown."""

    def __init__(self, costs: CostModel | None = None) -> None:
        units = step_units(costs)
        self._units = units
        self._costs = costs
        if costs is not None and units is not None:
            self._iteration_s = costs.prefill_s(0, 1)
            self._token_s = (costs.prefill_s(0, _PROMPT) - self._iteration_s) / _PROMPT

    def gpu_s(self, cached_tokens: int, new_tokens: int, output_tokens: float) -> float:
        """Return the work in seconds. Precondition: the costs are known and describe steps."""
        return self.tokens(cached_tokens, new_tokens, output_tokens) * self._token_s

    def tokens(self, cached_tokens: int, new_tokens: int, output_tokens: float) -> int:
        """Return the work of a partly cached prompt and its output, at least one token."""
        if self._units is None or self._costs is None:
            return max(1, round(new_tokens + UNKNOWN_OUTPUT_WEIGHT * output_tokens))
        prefill_s = self._costs.prefill_s(cached_tokens, new_tokens) - self._iteration_s
        context = cached_tokens + new_tokens + output_tokens / 2 + self._units.request_tokens
        decode_s = output_tokens * self._units.context_token_s * context
        return max(1, round((prefill_s + decode_s) / self._token_s))
