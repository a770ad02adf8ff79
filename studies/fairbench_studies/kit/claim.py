"""A claim and its judgement: by its shape and, if the paper has one, its number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """The degree to which a claim holds here."""

    REPRODUCED = "reproduced"
    DIRECTION_ONLY = "direction only"
    NOT_REPRODUCED = "not reproduced"
    CONTRADICTED = "contradicted"
    NOT_TESTABLE = "not testable"


@dataclass(frozen=True, slots=True)
class Finding:
    """The measured numbers in words, and the verdict that they give.

    ``verdict`` is by the paper's own measure, ``beside`` by other measures. ``elsewhere`` names, by
    measure, the configurations in which the claim does not hold.
    """

    ours: str
    verdict: Verdict
    beside: Mapping[str, Verdict] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the paper at ``source``; ``paper`` is its number or wording.

    ``judge`` takes the data of the figure ``figure``. ``cause`` is the reason why the verdict is
    not ``REPRODUCED``, and is shown only then. A claim is not ``testable`` if the paper says too
    little.
    """

    number: int
    text: str
    paper: str
    source: str
    figure: str
    judge: Callable[[Any], Finding]
    cause: str
    testable: bool = True


def verdict(*, shape: bool, quantity: bool = True, opposite: bool = False) -> Verdict:
    """Return the verdict on a claim, from the checks of its shape and its number.

    ``shape`` is true if order or sign hold as claimed, ``quantity`` if the number is in its band,
    and ``opposite`` if the reverse holds, which excludes ``shape``.
    """
    assert not (shape and opposite)
    if opposite:
        return Verdict.CONTRADICTED
    if not shape:
        return Verdict.NOT_REPRODUCED
    return Verdict.REPRODUCED if quantity else Verdict.DIRECTION_ONLY
