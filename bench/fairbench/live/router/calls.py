"""Calls: of what clients send to each API, the few fields that a router has to know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

import msgspec

from fairbench.live.openai_shapes import DEFAULT_NEW_TOKENS, Message
from fairbench.live.router.problem import Problem
from fairbench.live.router.text_tokens import TextTokens

Count = Annotated[int, msgspec.Meta(ge=0)]
B = TypeVar("B")


@dataclass(slots=True)
class Call:
    """A request as a router sees it.

    ``set_fields`` is what the body must say beside what it does, ``hide_usage`` that the client
    did not ask for the stream's usage, which the router did.
    """

    raw: bytes
    ids: array[int]
    max_new_tokens: int
    stream: bool
    user: str | None
    hide_usage: bool = False
    set_fields: dict[str, Any] = field(default_factory=dict)
    replaces: bool = False  # the body may have some of them already

    def body(self) -> bytes:
        """The body for the worker; what the router does not know of it stays as it is."""
        if not self.set_fields:
            return self.raw
        if self.replaces:
            return msgspec.json.encode(msgspec.json.decode(self.raw) | self.set_fields)
        # A prompt of many tokens is long, so it is not encoded again.
        return self.raw.rstrip()[:-1] + b"," + msgspec.json.encode(self.set_fields)[1:]


class Api(ABC):
    """One of the paths that generate. ``read`` raises Problem if the body cannot be routed."""

    path: str

    @abstractmethod
    def read(self, raw: bytes, text: TextTokens) -> Call:
        """A body, with its prompt as token ids."""

    def sign(self, call: Call, client: str) -> None:
        """Put the client into the body, where the worker takes it from there."""


class _Sampling(msgspec.Struct):
    max_new_tokens: Count | None = None
    n: Count = 1


class _Generate(msgspec.Struct):
    input_ids: list[int] | None = None
    text: str | None = None
    sampling_params: _Sampling | None = None
    stream: bool = False
    routing_key: str | msgspec.UnsetType | None = msgspec.UNSET


class GenerateApi(Api):
    """SGLang's ``/generate``, one prompt a request."""

    path = "/generate"
    _decoder = msgspec.json.Decoder(_Generate)

    def read(self, raw: bytes, text: TextTokens) -> Call:
        body = _decoded(self._decoder, raw)
        sampling = body.sampling_params or _Sampling()
        _check_single(sampling.n)
        if body.input_ids is not None:
            ids = _ids(body.input_ids)
        elif body.text is not None:
            ids = text.ids(body.text)
        else:
            raise _bad("neither input_ids nor text is given")
        return Call(
            raw,
            ids,
            _or_default(sampling.max_new_tokens),
            body.stream,
            body.routing_key or None,
            replaces=body.routing_key is not msgspec.UNSET,
        )

    def sign(self, call: Call, client: str) -> None:
        # SGLang reads the header on the OpenAI paths only.
        call.set_fields["routing_key"] = client


class _OpenAI(msgspec.Struct, kw_only=True):
    stream: bool = False
    stream_options: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    max_tokens: Count | None = None
    n: Count | None = None
    user: str | None = None


class _RoutedCompletion(_OpenAI, kw_only=True):
    prompt: str | list[int | str | list[int]]


class _RoutedChat(_OpenAI, kw_only=True):
    messages: list[Message]
    max_completion_tokens: Count | None = None


class CompletionsApi(Api):
    """``/v1/completions``; a list with one prompt in it is taken for that prompt."""

    path = "/v1/completions"
    _decoder = msgspec.json.Decoder(_RoutedCompletion)

    def read(self, raw: bytes, text: TextTokens) -> Call:
        body = _decoded(self._decoder, raw)
        prompt: Any = body.prompt
        listed = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        if listed:
            _check_single(len(prompt))
            prompt = prompt[0]
        ids = text.ids(prompt) if isinstance(prompt, str) else _ids(prompt)
        call = _openai_call(raw, body, ids, body.max_tokens)
        if listed:
            call.set_fields["prompt"] = prompt
            call.replaces = True
        return call


class ChatApi(Api):
    """``/v1/chat/completions``. Its template is the model's own, so the ids are approximate."""

    path = "/v1/chat/completions"
    _decoder = msgspec.json.Decoder(_RoutedChat)

    def read(self, raw: bytes, text: TextTokens) -> Call:
        body = _decoded(self._decoder, raw)
        ids = array("I")
        for message in body.messages:  # each on its own, so that earlier turns stay a prefix
            ids += text.ids(f"{message.role}\n{message.text}")
        return _openai_call(raw, body, ids, body.max_completion_tokens or body.max_tokens)


def _openai_call(raw: bytes, body: _OpenAI, ids: array[int], max_new_tokens: int | None) -> Call:
    _check_single(body.n)
    call = Call(raw, ids, _or_default(max_new_tokens), body.stream, body.user)
    given = body.stream_options
    options = given or {}
    if body.stream and options.get("include_usage") is not True:
        call.hide_usage = True
        call.set_fields["stream_options"] = {**options, "include_usage": True}
        call.replaces = given is not msgspec.UNSET
    return call


def _decoded(decoder: msgspec.json.Decoder[B], raw: bytes) -> B:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(f"the body cannot be read: {error}") from None


def _ids(given: list[Any]) -> array[int]:
    try:
        return array("I", given)
    except (TypeError, OverflowError):
        raise _bad("a prompt of token ids holds nothing but numbers from 0 to 2^32 - 1") from None


def _check_single(prompts: int | None) -> None:
    if prompts is not None and prompts != 1:
        raise _bad(
            "one prompt and one answer (n = 1) a request: workers lose the client of a batch"
        )


def _or_default(max_new_tokens: int | None) -> int:
    return DEFAULT_NEW_TOKENS if max_new_tokens is None else max_new_tokens


def _bad(message: str) -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, message)
