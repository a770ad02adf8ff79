"""Calls: the few fields of a request that a router must know, for each API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from fairbench.live.chat_texts import (
    MEDIA_TOKENS,
    SEEN,
    Media,
    Piece,
    beside_messages,
    media_of,
    pieces_of,
)
from fairbench.live.headers import BODY_CLIENT, BODY_CLIENTS
from fairbench.live.json_errors import Problem, bad_request
from fairbench.live.openai_shapes import DEFAULT_NEW_TOKENS
from fairbench.live.router.charges import MOST_RESERVED
from fairbench.live.router.constraints import (
    MOST_BIASES,
    MOST_STOP_IDS,
    check_constraints,
    check_many,
    check_stops,
)
from fairbench.live.router.fields import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    MEDIA,
    SAMPLING,
    Fields,
    Generate,
    OpenAI,
    RoutedChat,
    RoutedCompletion,
    Sampling,
    Shared,
    check_bias,
    check_ids,
    check_template_kwargs,
    passed_on,
    read_fields,
)
from fairbench.live.router.prompts import NO_LIMITS, PromptLimits, TextTokens

COMPLETION_TOKENS = 16  # OpenAI's default, and SGLang's
MOST_PROMPT_LOGPROBS = 8_192  # limit, because an engine keeps as many rows of the vocabulary


@dataclass(slots=True)
class Call:
    """A request as a router sees it.

    ``fields`` are sent to the worker, ``said`` are the body's fields that may name its client.
    ``exact`` means that the worker will count exactly these ``ids`` as the prompt, ``hide_usage``
    that the router, not the client, asked for the stream's usage. ``max_new_tokens`` is None if
    only the model's context limits an answer.
    """

    fields: Fields
    ids: array[int]
    max_new_tokens: int | None
    stream: bool
    said: Mapping[str, str | None]
    exact: bool = False
    hide_usage: bool = False

    def client(self, names: Iterable[str]) -> str | None:
        """Return the first non-empty value among these fields."""
        return next((said for name in names if (said := self.said.get(name))), None)

    @property
    def reserved_output(self) -> int:
        """Return the output tokens to reserve; without a limit, as many as SGLang reserves."""
        return MOST_RESERVED if self.max_new_tokens is None else self.max_new_tokens

    def set(self, name: str, value: Any) -> None:
        self.fields[name] = msgspec.Raw(msgspec.json.encode(value))

    def body(self) -> bytes:
        """Return the body for the worker; long prompts are copied, not encoded again."""
        return msgspec.json.encode(self.fields)


class Api(ABC):
    """An API path that generates tokens; ``passed`` are the fields of a body that are passed on."""

    path: str
    decoder: msgspec.json.Decoder[Any]
    passed: frozenset[str]

    def read(self, raw: bytes, text: TextTokens, limits: PromptLimits = NO_LIMITS) -> Call:
        """Parse a body, with its prompt as token ids. Raises Problem if it cannot be routed."""
        limits.check_body(raw)
        with _readable():
            raw, found = read_fields(raw)
            body = self.decoder.decode(raw)
        return self._call(passed_on(found, self.passed), body, text, limits)

    @abstractmethod
    def _call(self, given: Fields, body: Any, text: TextTokens, limits: PromptLimits) -> Call:
        """Return the call of a body; its fields ``given`` are passed on."""

    def sign(self, call: Call, routing_key: str) -> None:
        """Put the client into the body field from which the worker reads it."""


class GenerateApi(Api):
    """SGLang's ``/generate`` with one prompt per request."""

    path = "/generate"
    decoder = msgspec.json.Decoder(Generate)
    passed = GENERATE
    _sampling = msgspec.json.Decoder(Sampling)

    def _call(self, given: Fields, body: Generate, text: TextTokens, limits: PromptLimits) -> Call:
        if isinstance(body.text, list) or (body.input_ids and isinstance(body.input_ids[0], list)):
            raise _several()
        sampling = self._sampling_of(given, limits)
        if body.input_ids is not None:
            ids = _ids(body.input_ids, limits)
        elif body.text is not None:
            ids = limits.ids_of(text, body.text)
        else:
            raise bad_request("the body must have input_ids or text")
        media = _media_ids(given, limits)
        start = body.logprob_start_len
        if body.return_logprob and start is not None and start >= 0:
            _check_prompt_logprobs(len(ids) - start)
        most = sampling.max_new_tokens
        return Call(
            given,
            media + ids,
            DEFAULT_NEW_TOKENS if most is None else most,
            bool(body.stream),
            {BODY_CLIENT: body.routing_key},
            exact=body.input_ids is not None and not media,
        )

    def _sampling_of(self, given: Fields, limits: PromptLimits) -> Sampling:
        """Return the ``sampling_params``; ``given`` keeps the fields that are passed on."""
        if "sampling_params" not in given:
            return Sampling()
        where = "sampling_params: "
        with _readable(where):
            raw, found = read_fields(bytes(given["sampling_params"]))
            sampling = self._sampling.decode(raw)
        inner = passed_on(found, SAMPLING, where)
        _check_sampling(inner, sampling, limits, where)
        given["sampling_params"] = msgspec.Raw(msgspec.json.encode(inner))
        return sampling

    def sign(self, call: Call, routing_key: str) -> None:
        # SGLang reads the header only on the OpenAI paths.
        call.set("routing_key", routing_key)


class CompletionsApi(Api):
    """``/v1/completions``; a list with a single prompt counts as this prompt."""

    path = "/v1/completions"
    decoder = msgspec.json.Decoder(RoutedCompletion)
    passed = COMPLETIONS

    def _call(
        self, given: Fields, body: RoutedCompletion, text: TextTokens, limits: PromptLimits
    ) -> Call:
        _check_single(body.best_of)
        prompt: Any = body.prompt
        listed = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        if listed:
            _check_single(len(prompt))
            prompt = prompt[0]
        exact = not isinstance(prompt, str)
        ids = _ids(prompt, limits) if exact else limits.ids_of(text, prompt)
        if body.suffix:
            ids += limits.ids_of(text, body.suffix)
        if body.echo and body.logprobs is not None:
            _check_prompt_logprobs(len(ids))
        most = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        call = _openai_call(given, body, ids, most, limits)
        call.exact = exact and not body.suffix
        if listed:
            call.set("prompt", prompt)
        return call


class ChatApi(Api):
    """``/v1/chat/completions``. The template is the model's own, so token ids are approximate."""

    path = "/v1/chat/completions"
    decoder = msgspec.json.Decoder(RoutedChat)
    passed = CHAT

    def _call(
        self, given: Fields, body: RoutedChat, text: TextTokens, limits: PromptLimits
    ) -> Call:
        check_template_kwargs(body.chat_template_kwargs)
        ids = _chat_ids(given, text, limits)
        # engines differ in which of the two they read first; SGLang takes 0 for no limit
        most = max(body.max_completion_tokens or 0, body.max_tokens or 0) or None
        is_long = body.ignore_eos or body.logit_bias or (body.min_tokens or 0) > MOST_RESERVED
        if most is None and is_long:
            most = limits.most_tokens  # such an answer may not end earlier by itself
        return _openai_call(given, body, ids, most, limits)


def _chat_ids(given: Fields, text: TextTokens, limits: PromptLimits) -> array[int]:
    """Return the token ids of everything that a chat template may see.

    Each message is counted separately, so that earlier turns stay a prefix.
    """
    with _readable():
        read = {name: msgspec.json.decode(given[name]) for name in SEEN if name in given}
        turns = [pieces_of(turn, f"{turn['role']}\n") for turn in read.get("messages", ())]
        pieces: list[Piece] = [beside_messages(read), *chain.from_iterable(turns)]
    _check_media(limits, sum(isinstance(piece, Media) for piece in pieces))
    ids = array("I")
    for piece in pieces:
        if piece:
            ids += piece.ids() if isinstance(piece, Media) else limits.ids_of(text, piece)
    return ids


def _media_ids(given: Fields, limits: PromptLimits) -> array[int]:
    """Return the token ids of the images, sounds and videos of ``/generate``."""
    with _readable():
        found = [msgspec.json.decode(given[name]) for name in MEDIA if name in given]
    media = [one for each in found for one in (each if isinstance(each, list) else [each])]
    _check_media(limits, len(media))
    return array("I", chain.from_iterable(media_of(one).ids() for one in media))


def _check_media(limits: PromptLimits, media: int) -> None:
    limits.check_tokens(media * MEDIA_TOKENS)


def _openai_call(
    given: Fields, body: OpenAI, ids: array[int], max_new_tokens: int | None, limits: PromptLimits
) -> Call:
    _check_sampling(given, body, limits)
    said = {name: getattr(body, name) for name in BODY_CLIENTS}
    call = Call(given, ids, max_new_tokens, bool(body.stream), said)
    options = body.stream_options or {}
    if body.stream and options.get("include_usage") is not True:
        call.hide_usage = True
        call.set("stream_options", {**options, "include_usage": True})
    return call


@contextmanager
def _readable(where: str = "") -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body cannot be read: {where}{error}") from None


def _ids(given: list[Any], limits: PromptLimits) -> array[int]:
    if not given:
        raise bad_request("the prompt is empty")
    try:
        ids = array("I", given)
    except (TypeError, OverflowError):
        raise bad_request("token ids must be numbers from 0 to 2^32 - 1") from None
    limits.check_tokens(len(ids))
    check_ids(given, limits.vocab_size, "prompt")
    return ids


def _check_sampling(given: Fields, body: Shared, limits: PromptLimits, where: str = "") -> None:
    """Raise Problem for parameters that would crash an engine or slow every step."""
    _check_single(body.n)
    check_constraints(given, patterns=limits.patterns, where=where)
    check_stops(body.stop)
    check_many("stop_token_ids", body.stop_token_ids, MOST_STOP_IDS)
    check_many("logit_bias", body.logit_bias, MOST_BIASES)
    check_ids(body.stop_token_ids or [], limits.vocab_size, "stop_token_ids")
    check_bias(body.logit_bias, limits.vocab_size)


def _check_prompt_logprobs(tokens: int) -> None:
    if tokens > MOST_PROMPT_LOGPROBS:
        raise bad_request(
            "log-probabilities can be requested for at most the last "
            f"{MOST_PROMPT_LOGPROBS} tokens of a prompt"
        )


def _check_single(prompts: int | None) -> None:
    if prompts is not None and prompts != 1:
        raise _several()


def _several() -> Problem:
    return bad_request(
        "a request must have one prompt and one answer (n = 1), because workers do not "
        "keep the client of a batch"
    )
