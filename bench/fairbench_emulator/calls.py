"""Calls: an HTTP request to the engine in a form independent of the API, and its output.

All tokens of an output, and therefore its end, are known in advance.
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
from fairbench.live.headers import (
    CLIENT_ALIASES,
    DEFAULT_CLIENT,
    DEPTH,
    OUTPUT_TOKENS,
    PROGRAM,
    ROUTING_KEY,
)
from fairbench.live.openai_shapes import DEFAULT_NEW_TOKENS
from fairbench.live.request_tag import with_tag
from fairbench.sim.sequence import REFUSED, Sequence
from fairbench_emulator.tokens import Ids, Text

MAX_ID = 2**31 - 1

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]
TokenIds = Annotated[list[TokenId], msgspec.Meta(min_length=1)]
One = Annotated[int, msgspec.Meta(ge=1, le=1)]  # the scheduler does not know of several choices
B = TypeVar("B", bound=msgspec.Struct)
STOP, LENGTH = "stop", "length"


class StopFields(msgspec.Struct, kw_only=True):
    """Fields of each API's body, or of its ``sampling_params``, for the end and pace of output."""

    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    no_stop_trim: bool | None = None
    stream_interval: Count | None = None


@dataclass(frozen=True, slots=True)
class Stops:
    """The texts and tokens that end an output early. ``keep`` leaves the match in the text."""

    texts: tuple[str, ...] = ()
    tokens: frozenset[int] = frozenset()
    keep: bool = False


NO_STOPS = Stops()


class BadRequest(Exception):
    """Raised for a request that is not valid. The message is one line for the client."""


@dataclass(frozen=True, slots=True)
class EmulatedCall:
    """A request; its true length ``output_tokens`` is never shown to the scheduler.

    With ``stream_interval``, every event of a stream has that many tokens, except the first and
    last. ``routing_key`` names the client and the time left to its deadlines (``due_tag``).
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
    """Decode a body as ``kind``, as tolerant of numbers as servers are. Raises BadRequest."""
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
    """Build the call from a decoded body and its headers. Raises BadRequest."""
    if not ids:
        raise BadRequest("the prompt is empty")
    most = max_new_tokens or DEFAULT_NEW_TOKENS
    headers = with_tag(headers)
    return EmulatedCall(
        rid=rid or uuid4().hex,
        routing_key=client or _routing_key(headers),
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
    """Return the stop conditions of a body."""
    texts = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if not texts and not body.stop_token_ids:
        return NO_STOPS
    return Stops(tuple(texts), frozenset(body.stop_token_ids or ()), bool(body.no_stop_trim))


def tokens_of(prompt: list[int] | str, text: Text) -> list[int]:
    """Return a prompt's tokens."""
    return text.encode(prompt) if isinstance(prompt, str) else prompt


def _routing_key(headers: Mapping[str, str]) -> str:
    """Return a router's routing key, or the client's own header without a router."""
    names = (ROUTING_KEY, *CLIENT_ALIASES)
    return next((headers[name] for name in names if headers.get(name)), DEFAULT_CLIENT)


def _header_number(headers: Mapping[str, str], name: str, default: int) -> int:
    value = headers.get(name)
    if value is None:
        return default
    if not value.isdecimal() or len(value) > len(str(MAX_ID)):
        raise BadRequest(f"header {name}: must be a whole number")
    return int(value)


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an output after ``tokens`` tokens, for this ``reason``.

    ``matched`` is the stop string or token, or None for its natural end. Only the first ``visible``
    characters are shown, all if that is None.
    """

    tokens: int
    reason: str
    matched: str | int | None = None
    visible: int | None = None


def ending_of(ids: list[int], most: int, stops: Stops, text: Text) -> Ending:
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


def _lengths(ids: list[int], text: Text) -> list[int]:
    """Return the lengths in characters of the first 0, 1, 2 ... tokens."""
    return [0, *accumulate(len(text.decode([one])) for one in ids)]


class Generation:
    """The output of a request: ``produced`` tokens so far, ``done`` when no more will come.

    ``aborted`` is set to end the call early. ``ids`` is its output, which ends as ``ending`` says.
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
        self._sent = 0  # tokens of a stream sent so far
        self._ids = ids
        self._text = text
        self._news = Event()

    def deliver(self, produced: int, *, done: bool = False) -> None:
        self.produced, self.done = produced, done
        self._news.set()

    async def begun(self) -> None:
        """Wait for the first output or for the end without output, without consuming it."""
        await self._news.wait()

    async def changed(self) -> None:
        """Wait until there is more output than before, or until no more will come."""
        await self._news.wait()
        self._news.clear()

    @property
    def refused(self) -> bool:
        return self.sequence.status == REFUSED

    @property
    def cached_tokens(self) -> int:
        """The prompt tokens that were cached when the request was admitted."""
        return self.sequence.cached_tokens

    @property
    def queue_s(self) -> float:
        """The queueing delay on the engine's clock. Precondition: the request was admitted."""
        return (self.sequence.admitted_ps - self.sequence.arrival_ps) / PS_PER_S

    def ids(self, end: int) -> list[int]:
        return self._ids[:end]

    def text(self, start: int, end: int) -> str:
        """Return output tokens ``start`` to ``end`` as text, up to the visible end."""
        said = self._text.decode(self._ids[start:end])
        if self.ending.visible is None:
            return said
        before = len(self._text.decode(self._ids[:start]))
        return said[: max(0, self.ending.visible - before)]

    def steps(self) -> Iterator[tuple[int, int, bool]]:
        """Yield (start, end, last) of the next events of a stream, in output tokens.

        With an interval, each event covers exactly that many tokens, even if the engine is further
        ahead.
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
