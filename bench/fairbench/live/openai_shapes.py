"""OpenAI's formats that at least two of driver, router and emulator read."""

from __future__ import annotations

from contextlib import suppress
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
    """Output of a choice, or new output of a streamed one; texts, parts or objects."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None  # the name since vLLM 0.19.1, and in Ollama
    reasoning_details: Any = None
    thinking: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None
    images: Any = None


class Choice(msgspec.Struct):
    """A choice of an answer or an event: completions have ``text``, chats the other fields."""

    text: str | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: Any = None
    error: Any = None
    index: Any = None


class UsageDetails(msgspec.Struct):
    """``prompt_tokens_details`` or ``input_tokens_details`` of a usage."""

    cached_tokens: Any = None

    def __post_init__(self) -> None:
        self.cached_tokens = _count(self.cached_tokens)


MOST_TOKENS = 2**53  # the largest count that a float holds exactly


def _count(value: Any) -> int | None:
    """Return a count as an int, or None if it is missing. Raises ValueError if it is invalid."""
    if value is None:
        return None
    if type(value) not in (int, float) or value % 1 or not 0 <= value <= MOST_TOKENS:
        raise ValueError("a count of tokens must be a whole number")
    return int(value)


class ReportedUsage(msgspec.Struct):
    """The ``usage`` of an answer. Counts are None if the server does not report them.

    The Responses API and the Messages API name the counts input and output. The Messages API counts
    cached tokens beside the input, not within the input: ``prompt_tokens`` is then the sum. Some
    servers write whole numbers with a point, such as 12.0.
    """

    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: UsageDetails | None = None
    input_tokens: Any = None
    output_tokens: Any = None
    input_tokens_details: UsageDetails | None = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None

    def __post_init__(self) -> None:
        self.prompt_tokens = _count(_known(self.prompt_tokens, self._input()))
        self.completion_tokens = _count(_known(self.completion_tokens, self.output_tokens))

    def _input(self) -> int | None:
        told = _count(self.input_tokens)
        beside = _count(self.cache_read_input_tokens), _count(self.cache_creation_input_tokens)
        return None if told is None else told + sum(count or 0 for count in beside)

    @property
    def cached_tokens(self) -> int | None:
        details = self.prompt_tokens_details or self.input_tokens_details
        within: int | None = None if details is None else details.cached_tokens
        return _count(_known(within, self.cache_read_input_tokens))


def _known(value: Any, other: Any) -> Any:
    return other if value is None else value


# The names of counts in a usage, in the chat API and in the responses API.
_OUTPUT = ("completion_tokens", "output_tokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_CACHED = ("cached_tokens", "prompt_cache_hit_tokens")  # Moonshot's and DeepSeek's names
_COUNTS = ("prompt_tokens", "input_tokens", *_OUTPUT)


def usage_in(usage: Any, payload: bytes) -> ReportedUsage | None:
    """Return the usage of an event: its ``usage``, or counts that the server put elsewhere.

    Other places are choices and objects of the server's own, such as ``x_groq``. Raises
    ``msgspec.MsgspecError`` for counts that are no numbers of tokens.
    """
    found = _counts_in(usage) if usage else None
    if found is None and b'_tokens"' in payload:
        found = _counts_in(msgspec.json.decode(payload))
    if found is None:
        return None
    told = {name: found[name] for name in ReportedUsage.__struct_fields__ if name in found}
    if _first(told, _DETAILS) is None and (cached := _first(found, _CACHED)) is not None:
        told["prompt_tokens_details"] = {"cached_tokens": cached}
    return msgspec.convert(told, ReportedUsage)


def output_tokens_in(usage: dict[str, Any]) -> int | None:
    """Return the output tokens that a usage reports, or None without a valid count."""
    with suppress(ValueError):
        return _count(_first(usage, _OUTPUT))
    return None


def _counts_in(value: Any) -> dict[str, Any] | None:
    """Return the outermost object with counts of tokens."""
    waiting = [value]
    for one in waiting:
        if isinstance(one, dict):
            if _first(one, _COUNTS) is not None:
                return one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return None


def _first(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)
