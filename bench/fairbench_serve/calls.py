"""Request bodies of all APIs, from which the router reads the data that it needs for routing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import msgspec

from fairbench_load import openai
from fairbench_load.headers import BODY_CLIENT, BODY_CLIENTS
from fairbench_load.http_server import bad_request
from fairbench_serve import fields as shapes
from fairbench_serve.answers import MOST_RESERVED
from fairbench_serve.fields import Fields, encoded
from fairbench_serve.prompts import NO_LIMITS, PromptLimits, TextTokens

# default limit on output tokens in the completions API of OpenAI and SGLang
COMPLETION_TOKENS = 16
# maximum number of prompt tokens with log-probabilities, because the worker computes a row of
# logits for each such token
MOST_PROMPT_LOGPROBS = 8_192
SEVERAL = "a request must have one prompt, because workers do not keep the client of a batch"
# limit on ``n``, the answers per request; limits on concurrent requests ignore ``n``
MOST_ANSWERS = 16
# Tools that the client runs have no type or a type with one of these prefixes. Tools of all other
# types run at the worker and add outputs for which the router has reserved no tokens.
_OWN_TOOLS = (
    *("function", "custom", "namespace"),
    *("bash_", "computer_", "memory_", "text_editor_"),
)
# types of message blocks with text or media; blocks of other types may define tools
_BLOCKS = frozenset(
    {"text", "image", "document", "search_result", "thinking", "redacted_thinking"}
    | {"tool_use", "tool_result", "tool_reference"}
)


@dataclass(slots=True)
class Call:
    """The parts of a request that the router reads.

    - ``fields`` are the fields of the body that the worker receives.
    - ``ids`` are the prompt's token ids; ``exact`` is True if they are the worker's own token ids.
    - ``max_new_tokens`` limits the output tokens of each answer; None means that only the model's
      context limits the output. ``answers`` is the number of answers that the request asks for.
    - ``said`` holds the values of body fields that may name the client.
    - ``hide_usage`` is True if only the router, not the client, asked for the usage of a stream.
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
        """Return the first non-empty value among the body fields ``names``, or None."""
        return next((said for name in names if (said := self.said.get(name))), None)

    @property
    def reserved_output(self) -> int:
        """Return the number of output tokens to reserve for all answers of the request.

        If the request does not limit its output, SGLang's maximum is reserved for each answer.
        """
        each = MOST_RESERVED if self.max_new_tokens is None else self.max_new_tokens
        return each * self.answers

    def set(self, name: str, value: Any) -> None:
        self.fields[name] = encoded(value)

    def body(self) -> bytes:
        """Return the JSON body for the worker; unchanged fields are copied, not encoded again."""
        return msgspec.json.encode(self.fields)


@dataclass(frozen=True, slots=True)
class BodyReader:
    """A parsed request body, with the tokenizer and the limits for its prompt.

    - ``given`` holds the fields that the worker receives, as raw JSON.
    - ``body`` holds the fields of the body that the router reads.
    """

    given: Fields
    body: Any
    text: TextTokens
    limits: PromptLimits

    def text_ids(self, text: str) -> array[int]:
        return self.limits.ids_of(self.text, text)

    def listed_ids(self, ids: list[Any]) -> array[int]:
        """Return the token ids in a list; raise Problem if the list is invalid."""
        if not ids:
            raise bad_request("the prompt must not be empty")
        try:
            found = array("I", ids)
        except (TypeError, OverflowError):
            raise bad_request("token ids must be numbers from 0 to 2^32 - 1") from None
        self.limits.check_tokens(len(found))
        shapes.check_ids(ids, self.limits.vocab_size, "prompt")
        return found

    def chat_ids(self) -> array[int]:
        """Return the token ids of all fields that a chat template may use.

        Messages are tokenized separately, so that a longer conversation begins with the same token
        ids.
        """
        shapes.check_template_kwargs(self.body.chat_template_kwargs)
        with _readable():
            read = {n: msgspec.json.decode(self.given[n]) for n in openai.SEEN if n in self.given}
            turns = [
                openai.pieces_of(turn, f"{turn.get('role', '')}\n")
                for turn in openai.turns_of(read)
            ]
            pieces: list[openai.Piece] = [openai.beside_messages(read), *chain.from_iterable(turns)]
        media = sum(isinstance(piece, openai.Media) for piece in pieces)
        self.limits.check_tokens(media * openai.MEDIA_TOKENS)
        ids = array("I")
        for piece in pieces:
            if piece:
                ids += piece.ids() if isinstance(piece, openai.Media) else self.text_ids(piece)
        return ids

    def media_ids(self) -> array[int]:
        """Return placeholder token ids for images, sounds and videos in a body of ``/generate``."""
        with _readable():
            found = [msgspec.json.decode(self.given[n]) for n in shapes.MEDIA if n in self.given]
        media = [one for each in found for one in (each if isinstance(each, list) else [each])]
        self.limits.check_tokens(len(media) * openai.MEDIA_TOKENS)
        return array("I", chain.from_iterable(openai.media_of(one).ids() for one in media))

    def check_sampling(self, fields: Fields, sampling: shapes.Shared, where: str = "") -> None:
        """Raise Problem for sampling parameters that would crash or slow an engine."""
        vocab_size = self.limits.vocab_size
        shapes.check_constraints(fields, patterns=self.limits.patterns, where=where)
        shapes.check_stops(sampling.stop)
        shapes.check_many("stop_token_ids", sampling.stop_token_ids, shapes.MOST_STOP_IDS)
        shapes.check_many("logit_bias", sampling.logit_bias, shapes.MOST_BIASES)
        shapes.check_ids(sampling.stop_token_ids or [], vocab_size, "stop_token_ids")
        shapes.check_bias(sampling.logit_bias, vocab_size)

    def named_call(self, ids: array[int], max_new_tokens: int | None) -> Call:
        """Return the ``Call`` of an OpenAI request, with the fields that may name the client."""
        given, body = self.given, self.body
        outputs = body.structured_outputs or {}
        if isinstance(outputs.get("json"), str):
            # Engines disagree on which value of a repeated JSON key counts, so engines get the
            # parsed schema instead of the client's text.
            with _readable("structured_outputs: json: "):
                schema = msgspec.json.decode(outputs["json"])
            given["structured_outputs"] = encoded({**outputs, "json": schema})
        self.check_sampling(given, body)
        said = {name: getattr(body, name) for name in BODY_CLIENTS}
        return Call(given, ids, max_new_tokens, bool(body.stream), said)

    def openai_call(self, ids: array[int], max_new_tokens: int | None) -> Call:
        """Return the ``Call`` of a completion or chat request; its stream always reports usage."""
        body, call = self.body, self.named_call(ids, max_new_tokens)
        call.answers = 1 if body.n is None else body.n
        if not 1 <= call.answers <= MOST_ANSWERS:
            raise bad_request(f"n: must be from 1 to {MOST_ANSWERS}")
        options = body.stream_options or {}
        if body.stream and options.get("include_usage") is not True:
            call.hide_usage = True
            call.set("stream_options", {**options, "include_usage": True})
        return call


class Api(ABC):
    """An API path that accepts request bodies.

    ``passed`` names the body fields that workers receive. If ``generates`` is True, requests are
    queued and charged; otherwise, they go to any worker at once.
    """

    path: str
    generates: ClassVar[bool] = True
    decoder: msgspec.json.Decoder[Any]
    passed: frozenset[str]

    def read(self, raw: bytes, text: TextTokens, limits: PromptLimits = NO_LIMITS) -> Call:
        """Parse the body of a request into a ``Call``; raise Problem if it cannot be routed."""
        limits.check_body(raw)
        with _readable():
            raw, found = shapes.read_fields(raw)
            body = self.decoder.decode(raw)
        return self.call_of(BodyReader(shapes.passed_on(found, self.passed), body, text, limits))

    @abstractmethod
    def call_of(self, reader: BodyReader) -> Call:
        """Return the ``Call`` of a parsed body; raise Problem if the request cannot be routed."""

    def sign(self, call: Call, routing_key: str) -> None:
        """Write the client's routing key into the body, if the worker reads it from the body."""


class GenerateApi(Api):
    """SGLang's path ``/generate``, with one prompt per request."""

    path = "/generate"
    decoder = msgspec.json.Decoder(shapes.Generate)
    passed = shapes.GENERATE
    _sampling = msgspec.json.Decoder(shapes.Sampling)

    def call_of(self, reader: BodyReader) -> Call:
        given, body = reader.given, reader.body
        if isinstance(body.text, list) or (body.input_ids and isinstance(body.input_ids[0], list)):
            raise bad_request(SEVERAL)
        sampling = self._sampling_of(reader)
        if sampling.n not in (None, 1):
            raise bad_request(
                "sampling_params: n: must be 1; use /v1/completions for several outputs"
            )
        if body.input_ids is not None:
            ids = reader.listed_ids(body.input_ids)
        elif body.text is not None:
            ids = reader.text_ids(body.text)
        else:
            raise bad_request("the body must have input_ids or text")
        media = reader.media_ids()
        start = body.logprob_start_len
        if body.return_logprob and start is not None and start >= 0:
            _check_prompt_logprobs(len(ids) - start)
        most = sampling.max_new_tokens
        return Call(
            given,
            media + ids,
            openai.DEFAULT_NEW_TOKENS if most is None else most,
            bool(body.stream),
            {BODY_CLIENT: body.routing_key},
            exact=body.input_ids is not None and not media,
        )

    def _sampling_of(self, reader: BodyReader) -> shapes.Sampling:
        """Return ``sampling_params`` of a body, and remove parameters that workers must not get."""
        name, where = "sampling_params", "sampling_params: "
        if name not in reader.given:
            return shapes.Sampling()
        with _readable(where):
            raw, found = shapes.read_fields(bytes(reader.given[name]))
            sampling = self._sampling.decode(raw)
        inner = shapes.passed_on(found, shapes.SAMPLING, where)
        reader.check_sampling(inner, sampling, where)
        reader.given[name] = encoded(inner)
        return sampling

    def sign(self, call: Call, routing_key: str) -> None:
        # The routing key is in the body, because SGLang's path /generate ignores the header for it.
        call.set("routing_key", routing_key)


class CompletionsApi(Api):
    """The path ``/v1/completions``; a list with a single prompt is accepted."""

    path = "/v1/completions"
    decoder = msgspec.json.Decoder(shapes.RoutedCompletion)
    passed = shapes.COMPLETIONS

    def call_of(self, reader: BodyReader) -> Call:
        body = reader.body
        if body.best_of not in (None, 1):
            raise shapes.refused_field("best_of")
        prompt: Any = body.prompt
        listed = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        if listed:
            if len(prompt) != 1:
                raise bad_request(SEVERAL)
            prompt = prompt[0]
        exact = not isinstance(prompt, str)
        ids = reader.listed_ids(prompt) if exact else reader.text_ids(prompt)
        if body.suffix:
            ids += reader.text_ids(body.suffix)
        if body.echo and body.logprobs is not None:
            _check_prompt_logprobs(len(ids))
        most = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        call = reader.openai_call(ids, most)
        call.exact = exact and not body.suffix
        if listed:
            call.set("prompt", prompt)
        return call


class ChatApi(Api):
    """The path ``/v1/chat/completions``; without a chat template, token ids are approximate."""

    path = "/v1/chat/completions"
    decoder = msgspec.json.Decoder(shapes.RoutedChat)
    passed = shapes.CHAT

    def call_of(self, reader: BodyReader) -> Call:
        body, ids = reader.body, reader.chat_ids()
        # If both fields limit the output, the larger one counts, because engines prefer different
        # fields. ``or None`` is needed because a limit of 0 means unlimited output in SGLang.
        most = max(body.max_completion_tokens or 0, body.max_tokens or 0) or None
        is_long = body.ignore_eos or body.logit_bias or (body.min_tokens or 0) > MOST_RESERVED
        if most is None and is_long:
            # With ``ignore_eos`` or a similar field, an answer may fill the model's whole context.
            most = reader.limits.most_tokens
        return reader.openai_call(ids, most)


class ResponsesApi(Api):
    """OpenAI's API at ``/v1/responses``; workers must not store responses."""

    path = "/v1/responses"
    decoder = msgspec.json.Decoder(shapes.RoutedResponse)
    passed = shapes.RESPONSES

    def call_of(self, reader: BodyReader) -> Call:
        body = reader.body
        if body.store:
            raise shapes.refused_field("store")
        items = () if isinstance(body.input, str) else body.input
        if any(item.get("type") == "item_reference" for item in items):
            raise bad_request(f"input: type 'item_reference': {shapes.STORED}")
        _check_tools(body.tools)
        call = reader.named_call(reader.chat_ids(), body.max_output_tokens or None)
        call.set("store", False)  # by default, a worker stores the response
        return call


class MessagesApi(Api):
    """The path ``/v1/messages`` of Anthropic's API."""

    path = "/v1/messages"
    decoder = msgspec.json.Decoder(shapes.RoutedMessages)
    passed = shapes.MESSAGES

    def call_of(self, reader: BodyReader) -> Call:
        given, body = reader.given, reader.body
        contents = [body.system, *(turn.content for turn in body.messages)]
        for block in chain.from_iterable(one for one in contents if isinstance(one, list)):
            if block.get("type") not in _BLOCKS:
                kind = str(block.get("type"))[:64]
                raise bad_request(
                    f"messages: blocks of type {kind!r} are not supported; leave them out"
                )
        _check_tools(body.tools)
        shapes.check_constraints(given, patterns=reader.limits.patterns)
        shapes.check_stops(body.stop_sequences)
        said = {BODY_CLIENT: body.metadata.user_id if body.metadata else None}
        ids = reader.chat_ids()
        if self.generates and not body.max_tokens:
            raise bad_request("max_tokens: must be a number of at least 1")
        return Call(given, ids, body.max_tokens or 0, bool(body.stream), said)


class CountTokensApi(MessagesApi):
    """The API at ``/v1/messages/count_tokens``, which counts tokens but generates none."""

    path = "/v1/messages/count_tokens"
    generates = False
    passed = shapes.COUNTED


class TokenizeApi(Api):
    """The path ``/tokenize``, for a text or for messages."""

    path = "/tokenize"
    generates = False
    decoder = msgspec.json.Decoder(shapes.Tokenize)
    passed = shapes.TOKENIZE

    def call_of(self, reader: BodyReader) -> Call:
        shapes.check_constraints(reader.given, patterns=reader.limits.patterns)
        ids = reader.text_ids(reader.body.prompt or "") + reader.chat_ids()
        return Call(reader.given, ids, 0, False, {})


class DetokenizeApi(Api):
    """The path ``/detokenize``, for one list of token ids."""

    path = "/detokenize"
    generates = False
    decoder = msgspec.json.Decoder(shapes.Detokenize)
    passed = shapes.DETOKENIZE

    def call_of(self, reader: BodyReader) -> Call:
        return Call(reader.given, reader.listed_ids(reader.body.tokens), 0, False, {})


APIS: tuple[Api, ...] = (
    *(GenerateApi(), CompletionsApi(), ChatApi(), ResponsesApi(), MessagesApi()),
    *(CountTokensApi(), TokenizeApi(), DetokenizeApi()),
)


@contextmanager
def _readable(where: str = "") -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body cannot be read: {where}{error}") from None


def _check_prompt_logprobs(tokens: int) -> None:
    if tokens > MOST_PROMPT_LOGPROBS:
        raise bad_request(
            "log-probabilities can be requested only for the last "
            f"{MOST_PROMPT_LOGPROBS} tokens of a prompt"
        )


def _check_tools(tools: list[dict[str, Any]] | None) -> None:
    """Raise Problem for a tool that the worker would run itself."""
    waiting: list[Any] = list(tools or ())
    for tool in waiting:
        kind = str(tool.get("type") or "function")
        inner = tool.get("tools")  # a tool of type "namespace" contains further tools
        waiting += (
            [one for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []
        )
        if not kind.startswith(_OWN_TOOLS):
            raise bad_request(
                f"tools: type {kind[:64]!r}: leave out this type of tool; the router does not "
                "forward tools that the worker runs"
            )
