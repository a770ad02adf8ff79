"""The exact rank-sum test with ties (Wilcoxon 1945; Mann and Whitney 1947)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import comb


def p_larger(first: Sequence[Fraction], second: Sequence[Fraction]) -> float:
    """Return the one-sided p-value of ``second`` being larger, over all splits of the pool.

    This is the probability of a rank sum of ``second`` at least as large if all values come from
    one distribution.
    """
    pooled = sorted([*first, *second])
    observed = sum(_doubled_rank(pooled, value) for value in second)
    # splits[k][s]: in how many ways k of the values so far have ranks that sum up to s.
    splits = [Counter({0: 1}), *(Counter[int]() for _ in second)]
    for value in pooled:
        rank = _doubled_rank(pooled, value)
        for size in range(len(second), 0, -1):
            for ranks, ways in splits[size - 1].items():
                splits[size][ranks + rank] += ways
    as_large = sum(ways for ranks, ways in splits[-1].items() if ranks >= observed)
    return as_large / comb(len(pooled), len(second))


def can_reject(first: int, second: int, alpha: float) -> bool:
    """Return whether samples of these sizes can reach a p-value of ``alpha`` or less.

    Args:
        first: Size of the first sample.
        second: Size of the second sample.
        alpha: Significance level.
    """
    return 1 / comb(first + second, second) <= alpha


def _doubled_rank(pooled: Sequence[Fraction], value: Fraction) -> int:
    """Return twice the mean rank of the values that are equal to this one."""
    return bisect_left(pooled, value) + bisect_right(pooled, value) + 1
