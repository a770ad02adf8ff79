"""How a request's deadlines travel from the router to its worker: behind the client's name.

Nothing else of a request reaches SGLang's scheduler process by every API. The times are what is
left when it is sent, since clocks of machines differ.
"""

from __future__ import annotations

import re

from fairbench.targets import NOT_DUE, Due

_TAGGED = re.compile(r"(.*);due=(-?\d{1,12})?,(-?\d{1,12})?", re.DOTALL)


def tagged(client: str, due: Due, now_s: float) -> str:
    """The name with the milliseconds that are left of each deadline; without any, the name."""
    left = ["" if at_s is None else f"{round((at_s - now_s) * 1000)}" for at_s in due]
    # A name that looks as if it were tagged is, so that it is not cut.
    return f"{client};due={','.join(left)}" if any(left) or _TAGGED.fullmatch(client) else client


def untagged(name: str, now_s: float, scale: float = 1.0) -> tuple[str, Due]:
    """The client, and when its request is due on a clock that goes so many times as fast."""
    found = _TAGGED.fullmatch(name)
    if found is None:
        return name, NOT_DUE
    first_s, end_s = (
        None if ms is None else now_s + scale * int(ms) / 1000 for ms in found.groups()[1:]
    )
    return found[1], Due(first_s, end_s)
