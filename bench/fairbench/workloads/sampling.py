"""Random token lengths and gaps.

A length is drawn from a clipped lognormal distribution, whose mean after clipping is the requested
one.
"""

from __future__ import annotations

import random
from functools import lru_cache
from math import exp, log
from statistics import NormalDist

# Sampled inputs are clipped at this multiple of their mean, which leaves a tail without giants.
LONGEST_INPUT = 8

_PHI = NormalDist().cdf


def sample_input(rng: random.Random, mean_tokens: float, sigma: float) -> int:
    """Draw the length of a prompt part: lognormal, at least 1, at most ``LONGEST_INPUT`` means."""
    return sample_length(rng, mean_tokens, sigma, LONGEST_INPUT * mean_tokens)


def sample_length(rng: random.Random, mean_tokens: float, sigma: float, high: float) -> int:
    """Draw a length in [1, high] tokens with this mean; ``sigma`` is the spread of its log.

    The location is computed so that clipping does not change the mean. With ``sigma`` 0 (or a mean
    of at most 1) the length is constant. Precondition: ``mean_tokens < high`` unless constant.
    """
    if sigma == 0 or mean_tokens <= 1:
        return max(1, round(mean_tokens))
    drawn = exp(rng.normalvariate(_location(mean_tokens, sigma, high), sigma))
    if drawn <= 1:
        return 1
    return round(drawn if drawn < high else high)


def sample_gap(rng: random.Random, mean_s: float) -> float:
    """Draw an exponential gap in seconds (0 if the mean is 0)."""
    return rng.expovariate(1 / mean_s) if mean_s > 0 else 0.0


def check_mean(field: str, mean_tokens: float, sigma: float, max_new_tokens: int) -> None:
    """Raise ValueError unless a mean below ``max_new_tokens`` is possible."""
    if mean_tokens > max_new_tokens or (sigma and mean_tokens == max_new_tokens):
        raise ValueError(
            f"{field} = {mean_tokens}: must be below max_new_tokens = {max_new_tokens}"
        )


def check_allowed(max_new_tokens: int | None, **output_tokens: int) -> None:
    """Raise ValueError unless the limit allows these output lengths; None allows all."""
    for field, tokens in output_tokens.items():
        if max_new_tokens is not None and tokens > max_new_tokens:
            raise ValueError(
                f"max_new_tokens = {max_new_tokens}: must be at least {field} = {tokens}"
            )


@lru_cache(maxsize=256)
def _location(mean: float, sigma: float, high: float) -> float:
    """Return the mu at which the lognormal clipped to [1, high] has this mean (bisection)."""
    assert 1 < mean < high
    below, above = -10 * sigma, log(high) + 10 * sigma
    for _ in range(100):
        middle = (below + above) / 2
        if _clipped_mean(middle, sigma, high) < mean:
            below = middle
        else:
            above = middle
    return (below + above) / 2


def _clipped_mean(mu: float, sigma: float, high: float) -> float:
    """Return E[min(max(X, 1), high)] for a lognormal X."""
    low_z, high_z = -mu / sigma, (log(high) - mu) / sigma
    middle = exp(mu + sigma**2 / 2) * (_PHI(high_z - sigma) - _PHI(low_z - sigma))
    return _PHI(low_z) + middle + high * _PHI(-high_z)
