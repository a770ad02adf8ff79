"""The deadlines of a request, appended to the client's name on the way from router to worker.

No other field of a request reaches SGLang's scheduler process by every API. Times are sent as
the time that is left, since the clocks of machines differ.
"""

from __future__ import annotations

import re

from fairbench.targets import NOT_DUE, Due

_MOST_MS = 10**12 - 1  # what the tag has digits for: 31 years
_TAGGED = re.compile(r"(.*);due=(-?\d{1,12})?,(-?\d{1,12})?,(\d{1,12})?", re.DOTALL)


def tagged(client: str, due: Due, now_s: float) -> str:
    """Return the name with the time left to each deadline and the target pace, in ms.

    Without any of them the name is returned unchanged.
    """
    ends = [None if at_s is None else at_s - now_s for at_s in (due.first_token_s, due.end_s)]
    left = ["" if span_s is None else f"{_ms(span_s)}" for span_s in (*ends, due.token_every_s)]
    # A name that looks as if it were tagged is, so that it is not cut.
    return f"{client};due={','.join(left)}" if any(left) or _TAGGED.fullmatch(client) else client


def _ms(span_s: float) -> int:
    return round(max(-_MOST_MS, min(span_s * 1000, _MOST_MS)))


def untagged(name: str, now_s: float, scale: float = 1.0) -> tuple[str, Due]:
    """Return the client and its request's due times on a clock ``scale`` times as fast."""
    found = _TAGGED.fullmatch(name)
    if found is None:
        return name, NOT_DUE
    first_s, end_s, pace_s = (
        None if ms is None else scale * int(ms) / 1000 for ms in found.groups()[1:]
    )
    return found[1], Due(
        None if first_s is None else now_s + first_s,
        None if end_s is None else now_s + end_s,
        pace_s,
    )
