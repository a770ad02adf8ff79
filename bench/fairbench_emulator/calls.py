"""Requests to the emulated engine and their outputs, independent of any API.

All output tokens of a request are drawn at its arrival, so that their number is known.
"""

from __future__ import annotations

from asyncio import Event
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, TypeVar
from uuid import uuid4

import msgspec
import numpy as np

from fairbench.core import PS_PER_S
from fairbench.engine.sequence import REFUSED, Sequence
from fairbench_emulator.tokens import Ids, Text
from fairbench_load.headers import (
    CLIENT_ALIASES,
    DEFAULT_CLIENT,
    DEPTH,
    OUTPUT_TOKENS,
    PROGRAM,
    ROUTING_KEY,
    with_tag,
)
from fairbench_load.openai import DEFAULT_NEW_TOKENS

MAX_ID = 2**31 - 1  # largest token id or token count that a request may contain

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]
TokenIds = Annotated[list[TokenId], msgspec.Meta(min_length=1)]
One = Annotated[int, msgspec.Meta(ge=1, le=1)]  # the emulator gives one answer (choice) per request
B = TypeVar("B", bound=msgspec.Struct)
STOP, LENGTH = "stop", "length"


class StopFields(msgspec.Struct, kw_only=True):
    """The request fields of all APIs for stop conditions and for tokens per stream event."""

    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    no_stop_trim: bool | None = None
    stream_interval: Count | None = None


@dataclass(frozen=True, slots=True)
class Stops:
    """Texts and token ids that end an output early.

    If ``keep`` is True, the matched stop text stays in the output.
    """

    texts: tuple[str, ...] = ()
    tokens: frozenset[int] = frozenset()
    keep: bool = False


NO_STOPS = Stops()


class BadRequest(Exception):
    """An invalid request. The client receives the exception's message, which is one line."""


@dataclass(frozen=True, slots=True)
class EmulatedCall:
    """A request to the emulated engine.

    ``output_tokens`` is the length of the output, which the scheduler never sees.

    ``stream_interval`` is the number of tokens per event of a stream; the first and the last event
    may have fewer tokens. ``routing_key`` holds the client's name and the time until the request's
    deadline (``due_tag``).
    """

    rid: str
    routing_key: str
    program_id: int
    depth: int
    ids: Ids
    max_new_tokens: int
    output_tokens: int
    stream: bool
    include_usage: bool = False
    model: str = ""
    stops: Stops = NO_STOPS
    stream_interval: int | None = None


def decoded(raw: bytes, kind: type[B]) -> B:
    """Decode a JSON body as an object of the type ``kind``; a string may stand for a number.

    Raises BadRequest for an invalid body.
    """
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"invalid request body: {error}") from None


def make_call(
    headers: Mapping[str, str],
    ids: list[int],
    max_new_tokens: int | None,
    fields: StopFields,
    *,
    stream: bool,
    rid: str | None = None,
    client: str | None = None,
    include_usage: bool = False,
    model: str = "",
) -> EmulatedCall:
    """Build a call from the headers and the decoded body fields of a request.

    Raises BadRequest for a value that is not supported.
    """
    if not ids:
        raise BadRequest("the prompt must not be empty")
    most = max_new_tokens or DEFAULT_NEW_TOKENS
    headers = with_tag(headers)
    names = (ROUTING_KEY, *CLIENT_ALIASES)
    named = next((headers[name] for name in names if headers.get(name)), DEFAULT_CLIENT)
    return EmulatedCall(
        rid=rid or uuid4().hex,
        routing_key=client or named,
        program_id=_header_number(headers, PROGRAM, 0),
        depth=_header_number(headers, DEPTH, 0),
        ids=np.array(ids, np.int32),
        max_new_tokens=most,
        output_tokens=max(1, min(_header_number(headers, OUTPUT_TOKENS, most), most)),
        stream=stream,
        include_usage=include_usage,
        model=model,
        stops=stops_of(fields),
        stream_interval=fields.stream_interval,
    )


def stops_of(body: StopFields) -> Stops:
    """Return the stop strings and stop tokens of a request body."""
    texts = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if not texts and not body.stop_token_ids:
        return NO_STOPS
    return Stops(tuple(texts), frozenset(body.stop_token_ids or ()), bool(body.no_stop_trim))


def prompt_ids(prompt: list[int] | str, text: Text) -> list[int]:
    """Return a prompt's token ids. A prompt that is a text is tokenized."""
    return text.encode(prompt) if isinstance(prompt, str) else prompt


def _header_number(headers: Mapping[str, str], name: str, default: int) -> int:
    value = headers.get(name)
    if value is None:
        return default
    if not value.isdecimal() or len(value) > len(str(MAX_ID)):
        raise BadRequest(f"header {name}: must be a whole number")
    return int(value)


@dataclass(frozen=True, slots=True)
class Ending:
    """The reason why an output ends after ``tokens`` tokens.

    ``reason`` is SGLang's finish reason. ``matched`` is the stop text or token that ended the
    output, if any. ``visible`` is the number of characters that the client receives, or None for
    all characters.
    """

    tokens: int
    reason: str
    matched: str | int | None = None
    visible: int | None = None


def ending_of(ids: list[int], most: int, stops: Stops, text: Text) -> Ending:
    """Return where and why an output with the token ids ``ids`` ends; the limit is ``most`` tokens.

    Like SGLang, the function checks the length after each token, then the stop tokens, and then the
    stop texts.
    """
    is_full = len(ids) >= most
    found = [Ending(most, LENGTH)] if is_full else []
    token = next((place for place, one in enumerate(ids) if one in stops.tokens), None)
    lengths = [0]  # number of characters in the first 0, 1, 2, ... tokens of the answer
    if stops.texts or token is not None:
        lengths += accumulate(len(text.decode([one])) for one in ids)
    if token is not None:
        found.append(Ending(token + 1, STOP, ids[token], lengths[token]))
    said = text.decode(ids) if stops.texts else ""
    for one in stops.texts:
        at = said.find(one)
        if one and at >= 0:
            tokens = next(n for n, end in enumerate(lengths) if end >= at + len(one))
            found.append(Ending(tokens, STOP, one, at))
    if not is_full:
        found.append(Ending(len(ids), STOP))
    first = min(found, key=lambda ending: ending.tokens)
    return replace(first, visible=None) if stops.keep else first


class Generation:
    """The output that the engine generates for a request.

    ``produced`` is the number of tokens that the engine has produced so far, and ``done`` is True
    if no more tokens will follow. Callers may set ``aborted`` to end the call early. ``ids(end)``
    returns the ids of the first ``end`` output tokens. ``ending`` is the reason why the output
    ends.
    """

    def __init__(
        self, call: EmulatedCall, sequence: Sequence, ids: list[int], ending: Ending, text: Text
    ) -> None:
        self.call = call
        self.ending = ending
        self.sequence = sequence
        self.produced = 0
        self.done = False
        self.aborted = False
        self._sent = 0  # number of tokens that the stream has sent so far
        self._ids = ids
        self._text = text
        self._news = Event()

    def deliver(self, produced: int, *, done: bool = False) -> None:
        self.produced, self.done = produced, done
        self._news.set()

    async def begun(self) -> None:
        """Wait until the output has begun or has ended."""
        await self._news.wait()

    async def changed(self) -> None:
        """Wait until tokens have been produced since the last call, or until the output ends."""
        await self._news.wait()
        self._news.clear()

    @property
    def refused(self) -> bool:
        return self.sequence.status == REFUSED

    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens that were in the prefix cache at admission."""
        return self.sequence.cached_tokens

    @property
    def queue_s(self) -> float:
        """The time an admitted request spent in the queue, in seconds of the engine's clock."""
        return (self.sequence.admitted_ps - self.sequence.arrival_ps) / PS_PER_S

    def ids(self, end: int) -> list[int]:
        return self._ids[:end]

    def text(self, start: int, end: int) -> str:
        """Return the visible text of the output tokens from ``start`` to ``end``."""
        said = self._text.decode(self._ids[start:end])
        if self.ending.visible is None:
            return said
        before = len(self._text.decode(self._ids[:start]))
        return said[: max(0, self.ending.visible - before)]

    def steps(self) -> Iterator[tuple[int, int, bool]]:
        """Yield the token range of each streamed event that is now due, as (start, end, last).

        An event covers the output tokens from ``start`` to ``end``. ``last`` is True for the final
        event.

        In a call with ``stream_interval``, each event except the first and the last covers exactly
        ``stream_interval`` tokens.
        """
        every = self.call.stream_interval
        while every is not None and self._sent + (step := every if self._sent else 1) < (
            self.produced + (not self.done)
        ):
            yield self._sent, self._sent + step, False
            self._sent += step
        if self.done or every is None:
            yield self._sent, self.produced, self.done
            self._sent = self.produced
