"""Usage: how many tokens an answer took, read from the answer as it goes by."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from fairbench.live.openai_shapes import ReportedUsage

_DONE = b"data: [DONE]"
_DATA = b"data:"
# Of an event of its own with the usage: no token is in it. Inside a text it would be escaped.
_NO_CHOICES = re.compile(rb'"choices":\s*\[\s*\]')


class Usage(NamedTuple):
    """Tokens of one answer; None is what the worker did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    failed: bool = False  # it ended with an error


class _MetaInfo(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class _Answer(msgspec.Struct):
    usage: ReportedUsage | None = None
    meta_info: _MetaInfo | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Answer)


def usage_of(answer: bytes) -> Usage:
    """The usage in an answer, or in the last event of a stream, of any of the APIs."""
    try:
        decoded = _decoder.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Usage()
    told = decoded.meta_info or decoded.usage
    if told is None:
        return Usage(failed=decoded.error is not None)
    return Usage(told.prompt_tokens, told.completion_tokens, told.cached_tokens)


class StreamReader:
    """Reads along a stream of server-sent events that is passed on, and remembers only its end.

    With ``hide_usage`` the event that holds nothing but the usage is left out.
    """

    def __init__(self, *, hide_usage: bool) -> None:
        self._hide_usage = hide_usage
        self._events = 0
        self._begun = b""  # an event of which the rest is to come
        self._last = b""

    def feed(self, chunk: bytes) -> bytes:
        """What to pass on, now that this has come."""
        *events, self._begun = (self._begun + chunk).split(b"\n\n")
        self._remember(events)
        if not self._hide_usage:
            return chunk
        return b"".join(event + b"\n\n" for event in events if not _NO_CHOICES.search(event))

    def rest(self) -> bytes:
        """What is still to be passed on when the stream has ended."""
        return self._begun if self._hide_usage else b""

    def usage(self) -> Usage:
        """The tokens so far; an event counts as one if the worker has not said more."""
        told = usage_of(self._last.removeprefix(_DATA))
        if told.output_tokens is not None:
            return told
        return told._replace(output_tokens=self._events - told.failed)

    def _remember(self, events: list[bytes]) -> None:
        for event in events:
            if event.startswith(_DATA) and event != _DONE:
                self._events += 1
                self._last = event
