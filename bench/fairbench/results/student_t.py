"""Student's t for whole degrees of freedom, by a finite series.

See Abramowitz and Stegun 26.7.3-4.

numpy has no t distribution, and scipy would be the largest dependency for this one function.
"""

from __future__ import annotations

from functools import lru_cache
from math import atan, cos, pi, sin, sqrt, tan

HALVINGS = 60  # of a quarter turn: beyond the digits of a float


def central(t: float, degrees: int) -> float:
    """Return the probability of a value between ``-|t|`` and ``|t|``.

    Raises ValueError for less than one degree of freedom.
    """
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom: must be at least 1")
    return _central(atan(abs(t) / sqrt(degrees)), degrees)


def two_sided_p(t: float, degrees: int) -> float:
    """Return the probability of a value at least as far from 0 as ``t``."""
    return max(0.0, 1.0 - central(t, degrees))


@lru_cache(maxsize=4096)
def quantile(probability: float, degrees: int) -> float:
    """Return the quantile of a probability, which is at least 1/2 and less than 1.

    Raises ValueError for another probability, and for less than one degree of freedom.
    """
    if not 0.5 <= probability < 1:
        raise ValueError(f"probability {probability}: must be at least 0.5 and less than 1")
    wanted = 2 * probability - 1
    low, high = 0.0, pi / 2
    central(0.0, degrees)  # raises for what is no number of degrees
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _central(middle, degrees) < wanted:
            low = middle
        else:
            high = middle
    return tan((low + high) / 2) * sqrt(degrees)


def _central(angle: float, degrees: int) -> float:
    """Return ``central`` for t = sqrt(degrees) tan(angle): a sum of powers of the cosine."""
    squared = cos(angle) ** 2
    odd = degrees % 2
    term = cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for number in range(2 + odd, degrees, 2):
        term *= squared * (number - 1) / number
        total += term
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total
