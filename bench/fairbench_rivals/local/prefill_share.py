"""Prefill time shares, as in ``compute_fairness.py`` of local-inference-lab/vllm (@2a602eb5)."""

from __future__ import annotations

from math import inf, log, tanh

from fairbench.core import PS_PER_S, Request
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.params import NoParams


class PrefillTimeShare(FCFS):
    """An FCFS scheduler that gives prompts 40% of a worker's time while requests decode.

    Prefill and decoding each have a virtual clock. A step of either phase advances the phase's
    clock by the step's measured duration divided by the phase's share of time. If the prefill clock
    is behind the decoding clock, prefill runs next; otherwise, decoding runs next. The virtual
    clocks of prefill and decoding are kept within one step of each other. While only prefill or
    only decoding has work, the clocks of prefill and decoding are reset.
    """

    name = "prefill-share"
    SHARE = 0.4  # prefill share in the launch script of local-inference-lab/vllm

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.share = self.SHARE
        self._prefill_ps = self._decode_ps = 0.0
        # whether the scheduler chose prefill over decode; None if it had no choice between them
        self._chosen: bool | None = None

    def decodes_first(self, oldest: Request, left: int, now_s: float) -> bool:
        self._chosen = self._prefill_ps < self._decode_ps
        return not self._chosen

    def on_iteration(self, prompt_tokens: int, start_ps: int, end_ps: int) -> None:
        prefill, chosen = prompt_tokens > 0, self._chosen
        self._chosen = None
        if prefill is not chosen:
            self._prefill_ps = self._decode_ps = 0.0
        elif prefill:
            charge_ps = (end_ps - start_ps) / self.share
            self._prefill_ps += charge_ps
            self._decode_ps = max(self._decode_ps, self._prefill_ps - charge_ps)
        else:
            charge_ps = (end_ps - start_ps) / (1 - self.share)
            self._decode_ps += charge_ps
            self._prefill_ps = max(self._prefill_ps, self._decode_ps - charge_ps)


LEAST, MOST = 0.2, 0.8  # limits on the share of time that prefill gets
# Prefill keeps its share of time while the pressures (waiting time divided by work) on prefill and
# decoding differ by at most 10%.
DEAD_BAND = 0.1
HALF_LIFE_S = 2.0  # seconds in which the share moves half of the way to its target
MOST_PER_S = 0.05  # maximum change of prefill's share of time per second
NEWEST = 0.2  # weight of the latest prefill in the mean time per prompt token


class PrefillTimeShareAuto(PrefillTimeShare):
    """A scheduler that adapts prefill's share of time (20% to 80%) to the waits of both phases.

    The pressure on decoding is the time since the last decode step, divided by the duration of that
    step. The pressure on prefill is the age of the oldest request with an incomplete prompt,
    divided by the time to compute the rest of this prompt.
    """

    name = "prefill-share-auto"

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self._token_s = 0.0
        # duration and end of the last decode step in seconds
        self._step_s, self._decoded_s = inf, 0.0
        self._adapted_s = 0.0

    def decodes_first(self, oldest: Request, left: int, now_s: float) -> bool:
        self._adapt(oldest, left, now_s)
        return super().decodes_first(oldest, left, now_s)

    def on_iteration(self, prompt_tokens: int, start_ps: int, end_ps: int) -> None:
        super().on_iteration(prompt_tokens, start_ps, end_ps)
        lasted_s = (end_ps - start_ps) / PS_PER_S
        if prompt_tokens:
            token_s = lasted_s / prompt_tokens
            self._token_s += (NEWEST if self._token_s else 1.0) * (token_s - self._token_s)
        else:
            self._step_s, self._decoded_s = lasted_s, end_ps / PS_PER_S

    def _adapt(self, oldest: Request, left: int, now_s: float) -> None:
        passed_s, self._adapted_s = now_s - self._adapted_s, now_s
        if not self._token_s:
            return
        decode = max(1.0, (now_s - self._decoded_s) / self._step_s)
        prefill = max(1.0, (now_s - oldest.arrival_s) / (left * self._token_s))
        quotient = prefill / decode
        if abs(quotient - 1) <= DEAD_BAND:
            return
        wanted = min(MOST, max(LEAST, self.SHARE + 0.4 * tanh(log(quotient))))
        change = (wanted - self.share) * (1 - 2 ** (-passed_s / HALF_LIFE_S))
        limit = MOST_PER_S * passed_s
        self.share += min(limit, max(-limit, change))
