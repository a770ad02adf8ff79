"""The sharing incentive: latency on the shared cluster over latency alone on a part.

At most 1 means no reason to leave the shared cluster. A latency may be only a lower bound; then so
is the ratio, or, where the one alone is, an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

PERCENTS = (50, 95, 99)
NOT_SIMULATED = "the client alone was not simulated"
LIVE = "only for simulated runs: what a client has alone is simulated"

ClientRow = Mapping[str, Any]


class Bound(Enum):
    """The certainty of a ratio: exact, or a bound."""

    EXACT = ""
    LOWER = ">"
    UPPER = "<"


class Incentive(NamedTuple):
    """A ratio; ``value`` is None if it is undefined, because of ``reason``."""

    value: float | None
    bound: Bound = Bound.EXACT
    reason: str = ""


def incentive(
    shared: ClientRow, alone: ClientRow | None, percent: int, *, censored: bool
) -> Incentive:
    """Return one client's ratio at a percentile.

    ``shared`` is the client's row of a summary, ``censored`` if the percentile is a lower bound
    there. ``alone`` is its row of the simulation of clients alone.
    """
    key = f"p{percent}_s"
    if alone is None:
        return Incentive(None, reason=NOT_SIMULATED)
    if shared.get(key) is None:
        return Incentive(None, reason="its latency is undefined on the shared cluster")
    if not alone.get(key):
        return Incentive(None, reason="its latency is undefined on a part of its own")
    alone_censored = key in alone["censored"]
    if censored and alone_censored:
        return Incentive(None, reason="both latencies are only lower bounds")
    bound = Bound.LOWER if censored else Bound.UPPER if alone_censored else Bound.EXACT
    return Incentive(shared[key] / alone[key], bound)


def worst(ratios: Sequence[Incentive]) -> Incentive:
    """Return the largest ratio and its certainty; undefined if any is undefined."""
    undefined = next((one for one in ratios if one.value is None), None)
    if not ratios or undefined:
        return undefined or Incentive(None, reason="there is no well-behaved client")
    at_least = _largest(one for one in ratios if one.bound is not Bound.UPPER)
    at_most = _largest(one for one in ratios if one.bound is Bound.UPPER)
    if any(one.bound is Bound.LOWER for one in ratios):
        return Incentive(at_least, Bound.LOWER)
    if at_least >= at_most:
        return Incentive(at_least)
    return Incentive(at_most, Bound.UPPER)


def _largest(ratios: Iterable[Incentive]) -> float:
    return max((one.value for one in ratios if one.value is not None), default=0.0)
