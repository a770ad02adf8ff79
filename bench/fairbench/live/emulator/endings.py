"""Endings: where an output stops, and why. All tokens of the output are known in advance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from fairbench.live.emulator.text import Text

STOP, LENGTH = "stop", "length"


@dataclass(frozen=True, slots=True)
class Stops:
    """The texts and tokens that end an output early. ``keep`` leaves the match in the text."""

    texts: Sequence[str] = ()
    tokens: frozenset[int] = frozenset()
    keep: bool = False


NO_STOPS = Stops()


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an output after ``tokens`` tokens, for this ``reason``.

    ``matched`` is what stopped it, or None for an end of its own. Only the first ``visible``
    characters are shown, all if that is None.
    """

    tokens: int
    reason: str
    matched: str | int | None = None
    visible: int | None = None


def ending_of(ids: Sequence[int], most: int, stops: Stops, text: Text) -> Ending:
    """Return how an output with these tokens ends, if the request allows ``most`` tokens.

    As in SGLang, after each token the length is checked first, then stop tokens, then stop texts in
    order.
    """
    is_full = len(ids) >= most
    found = [Ending(most, LENGTH)] if is_full else []
    token = next((place for place, one in enumerate(ids) if one in stops.tokens), None)
    lengths = _lengths(ids, text) if stops.texts or token is not None else []
    if token is not None:
        found.append(Ending(token + 1, STOP, ids[token], lengths[token]))
    said = text.decode(list(ids)) if stops.texts else ""
    for one in stops.texts:
        at = said.find(one)
        if one and at >= 0:
            tokens = next(n for n, end in enumerate(lengths) if end >= at + len(one))
            found.append(Ending(tokens, STOP, one, at))
    if not is_full:
        found.append(Ending(len(ids), STOP))
    first = min(found, key=lambda ending: ending.tokens)
    return replace(first, visible=None) if stops.keep else first


def _lengths(ids: Sequence[int], text: Text) -> list[int]:
    """Return the lengths in characters of the first 0, 1, 2 ... tokens."""
    return [0, *accumulate(len(text.decode([one])) for one in ids)]
