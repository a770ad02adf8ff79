"""A limit on the duration of measured runs, so that their simulation stays short."""

from __future__ import annotations

import numpy as np

from fairbench.errors import DataError
from fairbench.metrics.records import Floats

CLOCK_S = 1e-3  # Two recorded times of a request may contradict each other by this many seconds.
MAX_SPAN_S = 1e7  # longest measured run in seconds (116 days)


def check_span(times_s: Floats, field: str, where: str) -> None:
    """Raise DataError, which names ``field``, if the times span more than ``MAX_SPAN_S``."""
    span_s = float(np.ptp(times_s))
    if span_s > MAX_SPAN_S:
        raise DataError(
            f"{where}: field {field!r} must hold times within {MAX_SPAN_S:g} s of each other, not "
            f"{span_s:g} s"
        )
