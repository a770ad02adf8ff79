"""Timing errors: what if a profile is off, one draw of its coefficients within given limits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Annotated

from annotated_types import Ge, Lt

from fairbench.hardware.timing import DIMENSIONLESS, Frontend, TimingProfile


@dataclass(frozen=True)
class TimingParams:
    """How far the timing profile may be off (``--set timing.error_pct=10``).

    ``error_pct`` scales the profile as a whole, and each of its coefficients, by up to so many
    percent either way, drawn once a run from the seed; attention over a prefix that several
    sequences share is a term of its own.
    """

    error_pct: Annotated[float, Ge(0), Lt(100)] = 0.0


def perturbed(profile: TimingProfile, percent: float, rng: Random) -> TimingProfile:
    """The profile as it may be if it is off by up to ``percent``: as a whole and in each term."""

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
