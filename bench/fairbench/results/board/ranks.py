"""Ranks with their uncertainty: which rows are significantly better than which.

Every pair is compared by the paired differences of its seeds, each at 95% by itself. Nothing is
corrected for the number of pairs: of 20 pairs that do not differ, about one is told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fairbench.metrics.metric import Better
from fairbench.results.paired import difference
from fairbench.results.values import Value

Sample = Sequence[Value]
"""A row's values, in the order of the seeds, which all rows share."""


class Ranks(NamedTuple):
    """A row's rank, from 1, and the ranks that it may have within the noise."""

    rank: int
    first: int
    last: int


def rank_ranges(samples: Sequence[Sample], better: Better) -> list[Ranks]:
    """Return the possible ranks of each row, for rows ordered best first.

    ``first`` comes after all significantly better rows, ``last`` before all significantly worse
    rows.
    """
    ahead, behind = [0] * len(samples), [0] * len(samples)
    for one in range(len(samples)):
        for other in range(one + 1, len(samples)):
            sign = difference(samples[one], samples[other]).decisive
            if sign:
                first = one if (sign < 0) is (better is Better.MORE) else other
                behind[first] += 1
                ahead[one + other - first] += 1
    count = len(samples)
    return [
        Ranks(row + 1, 1 + better_rows, count - worse_rows)
        for row, (better_rows, worse_rows) in enumerate(zip(ahead, behind, strict=True))
    ]
