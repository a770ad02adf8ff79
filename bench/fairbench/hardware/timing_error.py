"""Timing errors: a random error of the profile's coefficients within given limits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Annotated

from annotated_types import Ge, Lt

from fairbench.hardware.timing import DIMENSIONLESS, Frontend, TimingProfile


@dataclass(frozen=True)
class TimingParams:
    """The possible error of the timing profile (``--set timing.error_pct=10``).

    ``error_pct`` scales the whole profile, and each of its coefficients, by up to that many percent
    in either direction. The errors are drawn once per run from the seed. Attention over a prefix
    shared by several sequences is a separate term.
    """

    error_pct: Annotated[float, Ge(0), Lt(100)] = 0.0


def perturbed(profile: TimingProfile, percent: float, rng: Random) -> TimingProfile:
    """Return the profile with random errors of up to ``percent``: overall and in each term."""

    def factor() -> float:
        return 1 + rng.uniform(-percent, percent) / 100

    bias = factor()
    coefficients = {
        name: value if name in DIMENSIONLESS else value * bias * factor()
        for name, value in sorted(profile.coefficients_ms.items())
    }
    host_ms = profile.host_ms * bias * factor()
    frontend = profile.frontend
    if frontend != Frontend():
        off = {name: value * factor() for name, value in asdict(frontend).items()}
        frontend = Frontend(**off)
    return replace(
        profile,
        coefficients_ms=coefficients,
        host_ms=host_ms,
        frontend=frontend,
        shared_read=profile.shared_read * factor(),
    )
