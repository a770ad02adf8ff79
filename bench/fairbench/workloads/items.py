"""Real input of programs: lengths of an item, and the calls of a recorded program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fairbench.core import Prompt


@dataclass(frozen=True, slots=True)
class Item:
    """Token lengths of one piece of real input.

    ``text_tokens`` is the question, article or document (0 without one); ``exchanges`` are
    (question, answer) lengths in order. Two items with one ``key`` are the same content, and two
    with one ``text_key`` have the same text, such as a system prompt. ``turn`` is that of ``Job``.
    """

    key: str
    text_tokens: int
    exchanges: tuple[tuple[int, int], ...] = ()
    text_key: str = ""
    turn: int | None = None


class Call(NamedTuple):
    """A recorded call.

    The next call begins ``think_s`` after this call's answer, and at least ``gap_s`` after this
    call's beginning. ``branches`` are the sub-agents that this call starts. The first
    ``shared_tokens`` of the prompt may occur in other sessions, too.
    """

    prompt: Prompt
    output_tokens: int
    max_new_tokens: int
    gap_s: float = 0.0
    think_s: float = 0.0
    branches: tuple[Branch, ...] = ()
    shared_tokens: int = 0


class Branch(NamedTuple):
    """A sub-agent: its own calls, parallel to the program that started it.

    The item begins ``delay_s`` after the answer to the call that started it. The program's call
    number ``until`` waits for its end, and so does the end of the program.
    """

    delay_s: float
    calls: tuple[Call, ...]
    until: int


@dataclass(frozen=True, slots=True)
class Recorded(Item):
    """A program of a trace."""

    calls: tuple[Call, ...] = ()


def all_calls(calls: Iterable[Call]) -> Iterator[Call]:
    """Yield the calls and the calls of their sub-agents."""
    for call in calls:
        yield call
        for branch in call.branches:
            yield from all_calls(branch.calls)
