"""Calls: the few fields of a request that a router must know, for each API."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import msgspec

from fairbench.live.chat_texts import (
    MEDIA_TOKENS,
    SEEN,
    Media,
    Piece,
    beside_messages,
    media_of,
    pieces_of,
    turns_of,
)
from fairbench.live.headers import BODY_CLIENT, BODY_CLIENTS
from fairbench.live.json_errors import Problem, bad_request
from fairbench.live.openai_shapes import DEFAULT_NEW_TOKENS
from fairbench_serve.charges import MOST_RESERVED
from fairbench_serve.constraints import (
    MOST_BIASES,
    MOST_STOP_IDS,
    check_constraints,
    check_many,
    check_stops,
)
from fairbench_serve.fields import (
    CHAT,
    COMPLETIONS,
    COUNTED,
    DETOKENIZE,
    GENERATE,
    MEDIA,
    MESSAGES,
    RESPONSES,
    SAMPLING,
    STORED,
    TOKENIZE,
    Detokenize,
    Fields,
    Generate,
    Named,
    OpenAI,
    RoutedChat,
    RoutedCompletion,
    RoutedMessages,
    RoutedResponse,
    Sampling,
    Shared,
    Tokenize,
    check_bias,
    check_ids,
    check_template_kwargs,
    passed_on,
    read_fields,
    refused,
)
from fairbench_serve.prompts import NO_LIMITS, PromptLimits, TextTokens

COMPLETION_TOKENS = 16  # OpenAI's default, and SGLang's
MOST_PROMPT_LOGPROBS = 8_192  # limit, because an engine keeps as many rows of the vocabulary
MOST_ANSWERS = 16  # limit, because limits of clients count a request with n answers once
# Beginnings of the types of tools that the caller runs; without a type, the tool is a function.
# A worker that runs tools itself generates several times, of which the first is reserved.
_OWN_TOOLS = (
    *("function", "custom", "namespace"),
    *("bash_", "computer_", "memory_", "text_editor_"),
)
# Blocks of a message that are texts or media; others may hold definitions of tools.
_BLOCKS = frozenset(
    {"text", "image", "document", "search_result", "thinking", "redacted_thinking"}
    | {"tool_use", "tool_result", "tool_reference"}
)


@dataclass(slots=True)
class Call:
    """A request as a router sees it.

    ``fields`` are sent to the worker, ``said`` are the body's fields that may name its client.
    ``exact`` means that the worker will count exactly these ``ids`` as the prompt, ``hide_usage``
    that the router, not the client, asked for the stream's usage. ``max_new_tokens`` is None if
    only the model's context limits an answer; each of ``answers`` has this limit.
    """

    fields: Fields
    ids: array[int]
    max_new_tokens: int | None
    stream: bool
    said: Mapping[str, str | None]
    exact: bool = False
    hide_usage: bool = False
    answers: int = 1

    def client(self, names: Iterable[str]) -> str | None:
        """Return the first non-empty value among these fields."""
        return next((said for name in names if (said := self.said.get(name))), None)

    @property
    def reserved_output(self) -> int:
        """Return the output tokens to reserve; without a limit, as many as SGLang reserves."""
        each = MOST_RESERVED if self.max_new_tokens is None else self.max_new_tokens
        return each * self.answers

    def set(self, name: str, value: Any) -> None:
        self.fields[name] = msgspec.Raw(msgspec.json.encode(value))

    def body(self) -> bytes:
        """Return the body for the worker; long prompts are copied, not encoded again."""
        return msgspec.json.encode(self.fields)


class Api(ABC):
    """An API path with a body; ``passed`` are the fields of a body that are passed on.

    A path that ``generates`` goes through the queue and is charged; other paths ask any worker.
    """

    path: str
    generates: ClassVar[bool] = True
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
        if sampling.n not in (None, 1):
            raise bad_request(f"sampling_params: n: {LOST}; /v1/completions takes n")
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
        if body.best_of not in (None, 1):
            raise refused("best_of")
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


class ResponsesApi(Api):
    """``/v1/responses``, without the state that a worker would keep between requests."""

    path = "/v1/responses"
    decoder = msgspec.json.Decoder(RoutedResponse)
    passed = RESPONSES

    def _call(
        self, given: Fields, body: RoutedResponse, text: TextTokens, limits: PromptLimits
    ) -> Call:
        if not limits.keeps_clients:
            raise bad_request(f"{self.path}: {LOST}; /v1/chat/completions keeps the client")
        if body.store:
            raise refused("store")
        items = () if isinstance(body.input, str) else body.input
        if any(item.get("type") == "item_reference" for item in items):
            raise bad_request(f"input: type 'item_reference': {STORED}")
        _check_tools(body.tools)
        check_template_kwargs(body.chat_template_kwargs)
        call = _named_call(
            given, body, _chat_ids(given, text, limits), body.max_output_tokens or None, limits
        )
        call.set("store", False)  # workers store by default
        return call


class MessagesApi(Api):
    """``/v1/messages``, Anthropic's API."""

    path = "/v1/messages"
    decoder = msgspec.json.Decoder(RoutedMessages)
    passed = MESSAGES

    def _call(
        self, given: Fields, body: RoutedMessages, text: TextTokens, limits: PromptLimits
    ) -> Call:
        _check_blocks(body)
        _check_tools(body.tools)
        check_template_kwargs(body.chat_template_kwargs)
        check_constraints(given, patterns=limits.patterns)
        check_stops(body.stop_sequences)
        said = {BODY_CLIENT: body.metadata.user_id if body.metadata else None}
        ids = _chat_ids(given, text, limits)
        if self.generates and not body.max_tokens:
            raise bad_request("max_tokens: must be a number of at least 1")
        return Call(given, ids, body.max_tokens or 0, bool(body.stream), said)


class CountTokensApi(MessagesApi):
    """``/v1/messages/count_tokens``: a message that is only counted."""

    path = "/v1/messages/count_tokens"
    generates = False
    passed = COUNTED


class TokenizeApi(Api):
    """``/tokenize``, of a text or of messages."""

    path = "/tokenize"
    generates = False
    decoder = msgspec.json.Decoder(Tokenize)
    passed = TOKENIZE

    def _call(self, given: Fields, body: Tokenize, text: TextTokens, limits: PromptLimits) -> Call:
        check_template_kwargs(body.chat_template_kwargs)
        check_constraints(given, patterns=limits.patterns)
        ids = limits.ids_of(text, body.prompt or "") + _chat_ids(given, text, limits)
        return Call(given, ids, 0, False, {})


class DetokenizeApi(Api):
    """``/detokenize``, of one list of token ids."""

    path = "/detokenize"
    generates = False
    decoder = msgspec.json.Decoder(Detokenize)
    passed = DETOKENIZE

    def _call(
        self, given: Fields, body: Detokenize, text: TextTokens, limits: PromptLimits
    ) -> Call:
        return Call(given, _ids(body.tokens, limits), 0, False, {})


APIS: tuple[Api, ...] = (
    *(GenerateApi(), CompletionsApi(), ChatApi(), ResponsesApi(), MessagesApi()),
    *(CountTokensApi(), TokenizeApi(), DetokenizeApi()),
)


def _chat_ids(given: Fields, text: TextTokens, limits: PromptLimits) -> array[int]:
    """Return the token ids of everything that a chat template may see.

    Each message is counted separately, so that earlier turns stay a prefix.
    """
    with _readable():
        read = {name: msgspec.json.decode(given[name]) for name in SEEN if name in given}
        turns = [pieces_of(turn, f"{turn.get('role', '')}\n") for turn in turns_of(read)]
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
    call = _named_call(given, body, ids, max_new_tokens, limits)
    call.answers = _answers(body.n, limits)
    options = body.stream_options or {}
    if body.stream and options.get("include_usage") is not True:
        call.hide_usage = True
        call.set("stream_options", {**options, "include_usage": True})
    return call


def _named_call(
    given: Fields, body: Named, ids: array[int], max_new_tokens: int | None, limits: PromptLimits
) -> Call:
    """Return the call of a body of OpenAI's with the fields that may name its client."""
    outputs = body.structured_outputs or {}
    if isinstance(outputs.get("json"), str):
        _decode_schema(given, outputs)
    _check_sampling(given, body, limits)
    said = {name: getattr(body, name) for name in BODY_CLIENTS}
    return Call(given, ids, max_new_tokens, bool(body.stream), said)


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


def _decode_schema(given: Fields, outputs: Mapping[str, Any]) -> None:
    """Replace a schema in a text by its table: engines differ in which of two equal keys counts."""
    with _readable("structured_outputs: json: "):
        schema = msgspec.json.decode(outputs["json"])
    given["structured_outputs"] = msgspec.Raw(msgspec.json.encode({**outputs, "json": schema}))


def _check_single(prompts: int) -> None:
    if prompts != 1:
        raise _several()


LOST = "the workers' engine does not tell its scheduler the client of such a request"


def _answers(n: int | None, limits: PromptLimits) -> int:
    """Return the number of answers that a body asks for. Raises Problem if they are not fair."""
    answers = 1 if n is None else n
    if not 1 <= answers <= MOST_ANSWERS:
        raise bad_request(f"n: must be from 1 to {MOST_ANSWERS}")
    if answers > 1 and not limits.keeps_clients:
        raise bad_request(f"n: {LOST}; send n requests")
    return answers


def _check_tools(tools: list[dict[str, Any]] | None) -> None:
    """Raise Problem for a tool that the worker would run."""
    waiting: list[Any] = list(tools or ())
    for tool in waiting:
        kind = str(tool.get("type") or "function")
        inner = tool.get("tools")  # of a namespace
        waiting += (
            [one for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []
        )
        if not kind.startswith(_OWN_TOOLS):
            raise bad_request(
                f"tools: type {kind[:64]!r}: a tool that the worker runs is not passed on, because "
                "the router cannot reserve the answers that follow"
            )


def _check_blocks(body: RoutedMessages) -> None:
    """Raise Problem for a block of a message that is neither a text nor media."""
    contents = [body.system, *(turn.content for turn in body.messages)]
    for block in chain.from_iterable(one for one in contents if isinstance(one, list)):
        if block.get("type") not in _BLOCKS:
            said = str(block.get("type"))[:64]
            raise bad_request(f"messages: type {said!r} is not a block that is passed on")


def _several() -> Problem:
    return bad_request(
        "a request must have one prompt, because workers do not keep the client of a batch"
    )
