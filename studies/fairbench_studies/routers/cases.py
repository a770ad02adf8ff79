"""Cases for studies of several routers: ways in which routers exchange charges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SKEWS = (1.0, 3.0, 10.0)
INTERVALS_S = (0.01, 0.1, 1.0, 10.0)

Case = tuple[tuple[str, Any], ...]
"""Settings of the routers, as pairs of key and value. A case without settings has one router."""


def case(**settings: Any) -> Case:
    """Return a case whose routers have the given settings."""
    return tuple(settings.items())


def exchange(skew: float, every_s: float, **settings: float) -> Case:
    """Return a case in which the routers exchange clients' charges every ``every_s`` seconds."""
    return case(form="exchange", skew=skew, every_s=every_s, **settings)


def usual() -> Iterator[Case]:
    """Yield cases of a single router, independent or sticky routers, and exchanges of charges."""
    yield case()
    for skew in SKEWS:
        yield case(form="independent", skew=skew)
    yield case(form="sticky")
    for skew in SKEWS:
        for every_s in INTERVALS_S:
            yield exchange(skew, every_s)


def name_of(case: Case) -> str:
    """Return a case's name: how the routers share charges, and the values of other settings."""
    rest = {key: value for key, value in case if key not in ("form", "skew")}
    form = dict(case).get("form", "one router")
    return " ".join([form, *(f"{key}={value:g}" for key, value in rest.items())])


def is_heard(case: Case) -> bool:
    """Return whether every router in ``case`` learns of the charges by all other routers."""
    return dict(case).get("form") in (None, "exchange", "ledger")
