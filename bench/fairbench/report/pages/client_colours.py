"""Clients with a colour of their own, equal in all pictures of a page."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fairbench.report.palette import SERIES


def client_series(shown: Sequence[str], heavy: Collection[str]) -> dict[str, int]:
    """Return which of ``palette.SERIES`` each client has.

    Heavy clients have the first colours, so that they stand out; the others have what is left, in
    their order, and begin anew where there are more clients than colours.
    """
    first = [name for name in shown if name in heavy]
    found = {name: number % len(SERIES) for number, name in enumerate(first)}
    left = [number for number in range(len(SERIES)) if number not in found.values()]
    others = [name for name in shown if name not in found]
    left = left or list(range(len(SERIES)))
    return found | {name: left[number % len(left)] for number, name in enumerate(others)}
