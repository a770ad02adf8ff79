"""Real input of a program: the token lengths of one item."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """Token lengths of one piece of real input.

    ``text_tokens`` is the question, article or document (0 where there is none); ``exchanges`` are
    (question, answer) lengths in order. Two items with one ``key`` are the same content, and two
    with one ``text_key`` have the same text, such as a system prompt. ``turn``: see ``Job``.
    """

    key: str
    text_tokens: int
    exchanges: tuple[tuple[int, int], ...] = ()
    text_key: str = ""
    turn: int | None = None
