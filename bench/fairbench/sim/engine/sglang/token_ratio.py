"""SGLang's new-token ratio: the share of the allowed outputs that admission reserves."""

from __future__ import annotations

from fairbench.sim.engine.batch import RunningBatch

INIT, MIN_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
RETRACT_DECODE_STEPS = 20


class NewTokenRatio:
    """Starts at min(0.7 * conservativeness, 1), decays to 14% of that over 600 decode steps.

    Kept as a value and the step it held at, so that a run of decode steps costs nothing.
    """

    def __init__(self, conservativeness: float, full_reservation: bool) -> None:
        self._full = full_reservation
        self._init = min(INIT * conservativeness, 1.0)
        self._min = self._init * MIN_FACTOR
        self._decay = (self._init - self._min) / DECAY_STEPS
        self._base, self._since = self._init, 0

    def at(self, step: int) -> float:
        """Return the ratio after ``step`` decode steps of the worker."""
        if self._full:
            return 1.0
        since = step - self._since
        ratio = self._base - since * self._decay if since > 0 else self._base
        return ratio if ratio > self._min else self._min

    def reset(self, step: int) -> None:
        """Reset the ratio when the worker is idle."""
        self._base, self._since = self._init, step

    def after_retraction(self, batch: RunningBatch) -> None:
        """Set the ratio after a retraction; the step about to run does not decay the value."""
        decoded = sum(batch.produced(s) for s in batch.sequences)
        allowed = sum(s.request.max_new_tokens for s in batch.sequences)
        ratio = (decoded + RETRACT_DECODE_STEPS * len(batch)) / (allowed + 1)
        self._base, self._since = min(1.0, ratio), batch.steps + 1
