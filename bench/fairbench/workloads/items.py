"""Real input of programs: the token lengths of a data set's items, and recorded calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fairbench.core import Prompt


@dataclass(frozen=True, slots=True)
class Item:
    """The token lengths of one item of a data set.

    ``text_tokens`` is the length of a question, article or document, or 0 if the item has no text.
    ``exchanges`` are the lengths of the (question, answer) pairs in order. Items with equal ``key``
    have equal content. Items with equal ``text_key`` share a text, such as a system prompt.
    ``turn`` is the position of the program in a trace file, or None (see ``Job``).
    """

    key: str
    text_tokens: int
    exchanges: tuple[tuple[int, int], ...] = ()
    text_key: str = ""
    turn: int | None = None


class RecordedCall(NamedTuple):
    """A call of a program as a trace recorded it.

    The next call begins ``think_s`` seconds after the answer to this call, and at least ``gap_s``
    seconds after the start of this call. ``branches`` are the sub-agents that start when this call
    has ended. Only the first ``shared_tokens`` tokens of the prompt may occur in other sessions.
    """

    prompt: Prompt
    output_tokens: int
    max_new_tokens: int
    gap_s: float = 0.0
    think_s: float = 0.0
    branches: tuple[Branch, ...] = ()
    shared_tokens: int = 0


class Branch(NamedTuple):
    """A sub-agent: calls that run in parallel with the program that started it.

    The sub-agent begins ``delay_s`` seconds after the answer to the call that started it. The
    program waits for the end of the sub-agent before call number ``until`` and before its own end.
    """

    delay_s: float
    calls: tuple[RecordedCall, ...]
    until: int


@dataclass(frozen=True, slots=True)
class Recorded(Item):
    """A program that was recorded in a trace."""

    calls: tuple[RecordedCall, ...] = ()


def all_calls(calls: Iterable[RecordedCall]) -> Iterator[RecordedCall]:
    """Yield the given calls, and all calls of the sub-agents that they start."""
    for call in calls:
        yield call
        for branch in call.branches:
            yield from all_calls(branch.calls)
