"""OpenAI's formats that at least two of driver, router and emulator read."""

from __future__ import annotations

from typing import Any

import msgspec

DEFAULT_NEW_TOKENS = 128  # SGLang's default for a request that does not say


class Part(msgspec.Struct):
    """A part of a message; a part that is not text counts as empty."""

    text: str | None = None


class Message(msgspec.Struct):
    """A turn of a conversation."""

    role: str
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""


class Delta(msgspec.Struct):
    """Text of a choice, or new text of a streamed one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None  # the name since vLLM 0.19.1, and in Ollama
    tool_calls: Any = None


class Choice(msgspec.Struct):
    """A choice of an answer or an event: completions have ``text``, chats the other fields."""

    text: str | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: Any = None


class UsageDetails(msgspec.Struct):
    """``prompt_tokens_details`` of a usage."""

    cached_tokens: Any = None

    def __post_init__(self) -> None:
        self.cached_tokens = _count(self.cached_tokens)


def _count(value: Any) -> int | None:
    """Return a count as an int, or None if it is missing. Raises ValueError if it is invalid."""
    if value is None or type(value) is int:
        return value
    if not isinstance(value, float) or value % 1:
        raise ValueError("a count of tokens must be a whole number")
    return int(value)


class ReportedUsage(msgspec.Struct):
    """The ``usage`` of an answer. Counts are None if the server does not report them.

    Some servers write whole numbers with a point, such as 12.0.
    """

    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: UsageDetails | None = None

    def __post_init__(self) -> None:
        self.prompt_tokens = _count(self.prompt_tokens)
        self.completion_tokens = _count(self.completion_tokens)

    @property
    def cached_tokens(self) -> int | None:
        details = self.prompt_tokens_details
        cached: int | None = None if details is None else details.cached_tokens
        return cached
