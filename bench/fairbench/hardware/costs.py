"""Simulated costs: times of iterations for schedulers, from the timing profile."""

from __future__ import annotations

from fairbench.core import PS_PER_S
from fairbench.hardware.timing import TimingProfile


class ProfileCosts:
    """The ``CostModel`` of a timing profile."""

    def __init__(self, profile: TimingProfile) -> None:
        self._profile = profile

    def frontend_s(self, input_tokens: int) -> float:
        """Return the seconds that a request spends outside an otherwise idle engine."""
        frontend = self._profile.frontend
        ms = frontend.request_ms + frontend.token_ms * input_tokens + frontend.delay_ms
        return ms / 1000

    def prefill_s(self, cached_tokens: int, new_tokens: int) -> float:
        return self._profile.prefill_ps([(cached_tokens, new_tokens)]) / PS_PER_S

    def decode_step_s(self, requests: int, context_tokens: int) -> float:
        return self._profile.decode_ps(requests, context_tokens) / PS_PER_S
