"""The cases in both studies of several routers, which differ in how routers share charges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SKEWS = (1.0, 3.0, 10.0)
INTERVALS_S = (0.01, 0.1, 1.0, 10.0)

Case = tuple[tuple[str, Any], ...]
"""Settings of the routers as pairs. Without settings, there is a single router."""


def case(**settings: Any) -> Case:
    """Return a case with the given settings of the routers."""
    return tuple(settings.items())


def exchange(skew: float, every_s: float, **settings: float) -> Case:
    """Return a case in which the routers exchange clients' charges every ``every_s`` seconds."""
    return case(form="exchange", skew=skew, every_s=every_s, **settings)


def usual() -> Iterator[Case]:
    """Yield cases with one router, with each way of sharing charges, and with each interval."""
    yield case()
    for skew in SKEWS:
        yield case(form="independent", skew=skew)
    yield case(form="sticky")
    for skew in SKEWS:
        for every_s in INTERVALS_S:
            yield exchange(skew, every_s)


def name_of(case: Case) -> str:
    """Return the name of a case: the way of sharing charges, and settings except the skew."""
    rest = {key: value for key, value in case if key not in ("form", "skew")}
    form = dict(case).get("form", "one router")
    return " ".join([form, *(f"{key}={value:g}" for key, value in rest.items())])


def is_heard(case: Case) -> bool:
    """Return whether every charge reaches all routers of a case."""
    return dict(case).get("form") in (None, "exchange", "ledger")
