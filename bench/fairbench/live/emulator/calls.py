"""Calls: what an HTTP request asks of the engine, in a form independent of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar
from uuid import uuid4

import msgspec
import numpy as np

from fairbench.live.emulator.text import Text
from fairbench.live.emulator.token_streams import Ids
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

MAX_ID = 2**31 - 1

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]
TokenIds = Annotated[list[TokenId], msgspec.Meta(min_length=1)]
One = Annotated[int, msgspec.Meta(ge=1, le=1)]  # of several choices a scheduler knows nothing
B = TypeVar("B", bound=msgspec.Struct)


class StopFields(msgspec.Struct, kw_only=True):
    """Fields of every API's body, or of its ``sampling_params``, on the end and pace of output."""

    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    no_stop_trim: bool | None = None
    stream_interval: Count | None = None


@dataclass(frozen=True, slots=True)
class Stops:
    """The texts and tokens that end an output early. ``keep`` leaves the match in the text."""

    texts: Sequence[str] = ()
    tokens: frozenset[int] = frozenset()
    keep: bool = False


NO_STOPS = Stops()


class BadRequest(Exception):
    """Raised for a request that is not valid. The message is one line for the client."""


@dataclass(frozen=True, slots=True)
class EmulatedCall:
    """A request. ``output_tokens`` is the true length, which the scheduler never sees.

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
    """Build the call from a decoded body and its headers. Raises BadRequest.

    Args:
        headers: Headers of the request.
        ids: Token ids of the prompt, at least one.
        max_new_tokens: Most output tokens, or None for the default.
        fields: Fields on the end and the pace of the output.
        stream: Whether the answer is streamed.
        rid: Request id, or None for a new id.
        client: Name of the client, or None for the name in the headers.
        include_usage: Whether a stream ends with the token counts.
        model: Name of the model in the answer.
    """
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
