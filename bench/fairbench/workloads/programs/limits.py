"""Types of program parameters, with the limits for workload files."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le

PartTokens = Annotated[int, Ge(0), Le(10**7)]
"""Length of a fixed prompt part; 0 leaves it out."""

OutputTokens = Annotated[int, Ge(1), Le(10**6)]
"""Length of an output, or the most that is allowed."""

MeanTokens = Annotated[float, Ge(1), Le(1e7)]
"""Mean of a sampled length."""

Sigma = Annotated[float, Ge(0), Le(3)]
"""Standard deviation of the logarithm of a sampled length; 0 makes it constant."""

Scale = Annotated[float, Gt(0), Le(1000)]
"""A factor by which lengths are multiplied."""

MeanGap = Annotated[float, Ge(0), Le(1e6)]
"""Mean of an exponential gap in seconds; 0 leaves it out."""
