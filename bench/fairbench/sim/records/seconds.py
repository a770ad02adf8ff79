"""Conversion of picoseconds to seconds."""

from __future__ import annotations

import numpy as np

from fairbench.core import PS_PER_S
from fairbench.metrics.records import Floats, Ints
from fairbench.sim.sequence import NEVER


def seconds(times_ps: Ints) -> Floats:
    """Return times in seconds, NaN for never."""
    found: Floats = times_ps / PS_PER_S
    found[times_ps == NEVER] = np.nan
    return found
