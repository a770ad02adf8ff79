"""The window in which records are scored, and the reason for its end."""

from __future__ import annotations

from math import inf, nextafter
from typing import NamedTuple

import numpy as np

from fairbench.metrics.records import Programs, Requests, Window

LEAST_SHARE = 0.1
"""The least part of the records, in time, that must lie before the end of the arrivals, and after
each client's first request; otherwise a window that ends there can miss all of the service."""

ASKED = "as asked for"
ARRIVALS = "when the last request came, that request included"
SESSIONS = "at the last answer, since programs of several requests go on after they have come"
AT_ONCE = "at the last answer, since the requests came all but at once"
NO_TIME = "where it begins, since nothing took any time after that"
LATE = "at the last answer, since a client came too late to be served before the last request came"


class ScoredWindow(NamedTuple):
    """A time window of records, and the reason for its end, as text for a reader."""

    window: Window
    reason: str


def scored_window(
    requests: Requests,
    programs: Programs,
    horizon_s: float,
    start_s: float | None,
    end_s: float | None,
) -> ScoredWindow:
    """Return the requested window, with defaults for missing ends.

    A window is half-open. The default end is therefore just after the last arrival, or just after
    the last answer, so that whatever came or ended then counts.

    Args:
        requests: All requests of the records.
        programs: The programs of these requests.
        horizon_s: When the last answer ended, seconds.
        start_s: The start that was asked for, seconds; None means 0.
        end_s: The end that was asked for, seconds; None means the default.
    """
    begin_s = start_s or 0.0
    if end_s is not None:
        return ScoredWindow(Window(begin_s, end_s), ASKED)
    if horizon_s <= begin_s:
        return ScoredWindow(Window(begin_s, begin_s), NO_TIME)
    last_s = float(requests.arrival_s.max())
    least_s = LEAST_SHARE * (horizon_s - begin_s)
    if (programs.requests > 1).any():
        reason = SESSIONS
    elif last_s - begin_s <= least_s:
        reason = AT_ONCE
    elif _came_too_late(requests, last_s, least_s):
        reason = LATE
    else:
        return ScoredWindow(Window(begin_s, nextafter(last_s, inf)), ARRIVALS)
    return ScoredWindow(Window(begin_s, nextafter(horizon_s, inf)), reason)


def _came_too_late(requests: Requests, last_s: float, least_s: float) -> bool:
    """Return whether a client first sent shortly before the end and was served later."""
    _, first = np.unique(requests.client, return_index=True)  # requests are in order of arrival
    late = requests.client[first][requests.arrival_s[first] > last_s - least_s]
    served_s = requests.first_token_s
    in_time = np.unique(requests.client[served_s <= last_s])
    answered = np.unique(requests.client[~np.isnan(served_s)])
    return bool(np.isin(late, np.setdiff1d(answered, in_time)).any())
