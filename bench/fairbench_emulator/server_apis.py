"""The HTTP APIs of an emulator (SGLang's and OpenAI's): request bodies and answers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from fairbench_emulator import calls
from fairbench_emulator.tokens import Text
from fairbench_load.openai import Media, Message, beside_messages, pieces_of


class _SamplingParams(calls.StopFields, kw_only=True):
    max_new_tokens: calls.Count | None = None


class _GenerateBody(msgspec.Struct):
    text: str | None = None
    input_ids: calls.TokenIds | None = None
    sampling_params: _SamplingParams | None = None
    stream: bool | None = None
    rid: str | None = None
    routing_key: str | None = None


class EmulatedApi(ABC):
    """An HTTP API that the emulator serves."""

    @abstractmethod
    def call(self, raw: bytes, headers: Mapping[str, str], text: Text) -> calls.EmulatedCall:
        """Parse a request body and headers. ``text`` is the tokenizer for text prompts.

        Raises BadRequest if the body is invalid.
        """

    @abstractmethod
    def chunks(self, generation: calls.Generation) -> Iterator[Any]:
        """Yield the events of a stream that are now due, each as a JSON value."""

    @abstractmethod
    def whole(self, generation: calls.Generation) -> Any:
        """Return the complete answer as a JSON value."""

    @abstractmethod
    def error(self, message: str, status: int) -> Any:
        """Return the body of an error answer as a JSON value."""


class EmulatedGenerate(EmulatedApi):
    """SGLang's API ``/generate``, in which each chunk of a stream repeats the output so far."""

    def call(self, raw: bytes, headers: Mapping[str, str], text: Text) -> calls.EmulatedCall:
        body = calls.decoded(raw, _GenerateBody)
        prompt = body.input_ids or body.text
        if prompt is None:
            raise calls.BadRequest("the body must have text or input_ids")
        sampling = body.sampling_params or _SamplingParams()
        return calls.make_call(
            headers,
            calls.prompt_ids(prompt, text),
            sampling.max_new_tokens,
            sampling,
            stream=bool(body.stream),
            rid=body.rid,
            client=body.routing_key,
        )

    def chunks(self, generation: calls.Generation) -> Iterator[Any]:
        for _, produced, done in generation.steps():
            yield self._answer(generation, produced, done=done)

    def whole(self, generation: calls.Generation) -> Any:
        return self._answer(generation, generation.produced, done=generation.done)

    def _answer(self, generation: calls.Generation, produced: int, *, done: bool) -> Any:
        ending = generation.ending
        reason: dict[str, Any] = {"type": calls.STOP, "matched": ending.matched}
        if ending.reason == calls.LENGTH:
            reason = {"type": calls.LENGTH, "length": ending.tokens}
        return {
            "text": generation.text(0, produced),
            "output_ids": generation.ids(produced),
            "meta_info": {
                "id": generation.call.rid,
                "finish_reason": reason if done else None,
                "prompt_tokens": len(generation.call.ids),
                "completion_tokens": produced,
                "cached_tokens": generation.cached_tokens,
                "queue_time": generation.queue_s,
                "num_retractions": generation.sequence.retractions,
            },
        }

    def error(self, message: str, status: int) -> Any:
        error_type = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"message": message, "type": error_type, "code": status}}


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Common(calls.StopFields, kw_only=True):
    model: str | None = None
    max_tokens: calls.Count | None = None
    n: calls.One | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class _Completion(_Common, kw_only=True):
    prompt: str | calls.TokenIds


class _Chat(_Common, kw_only=True):
    messages: list[Message]
    max_completion_tokens: calls.Count | None = None


class OpenAIApi(EmulatedApi):
    """The common parts of OpenAI's completions API and chat API.

    The JSON field ``object`` is ``object_name`` in a whole answer, and ``chunk_name`` in a chunk.
    """

    object_name: str
    chunk_name: str

    @abstractmethod
    def _delta(self, text: str, *, first: bool) -> dict[str, Any]:
        """Return the JSON field of a streamed choice that contains the new text."""

    @abstractmethod
    def _message(self, text: str) -> dict[str, Any]:
        """Return the JSON field of a choice that contains the whole text."""

    def chunks(self, generation: calls.Generation) -> Iterator[Any]:
        for start, end, done in generation.steps():
            delta = self._delta(generation.text(start, end), first=not start)
            choice = _choice(generation, delta, done=done)
            yield self._answer(self.chunk_name, generation, [choice])
        if generation.done and generation.call.include_usage:
            yield self._answer(self.chunk_name, generation, []) | {"usage": _usage(generation)}

    def whole(self, generation: calls.Generation) -> Any:
        message = self._message(generation.text(0, generation.produced))
        choice = _choice(generation, message, done=generation.done)
        answer = self._answer(self.object_name, generation, [choice])
        return answer | {"usage": _usage(generation)}

    def rendered(self, call: calls.EmulatedCall) -> Any:
        """Return the prompt's token ids in the format that vllm-router 0.1.17 reads."""
        return {"request_id": call.rid, "token_ids": call.ids.tolist(), "model": call.model}

    def error(self, message: str, status: int) -> Any:
        error_type = "BadRequestError" if status < 500 else "InternalServerError"
        return {"object": "error", "message": message, "type": error_type, "code": status}

    def _answer(
        self, name: str, generation: calls.Generation, choices: list[Any]
    ) -> dict[str, Any]:
        return {
            "id": generation.call.rid,
            "object": name,
            "created": int(time.time()),
            "model": generation.call.model,
            "choices": choices,
        }


class EmulatedCompletions(OpenAIApi):
    """The route ``/v1/completions``, with one prompt per request as text or token ids."""

    object_name = chunk_name = "text_completion"

    def call(self, raw: bytes, headers: Mapping[str, str], text: Text) -> calls.EmulatedCall:
        body = calls.decoded(raw, _Completion)
        return _openai_call(body, calls.prompt_ids(body.prompt, text), body.max_tokens, headers)

    def rendered(self, call: calls.EmulatedCall) -> Any:
        # The answer is a list, because a completion request to vLLM may contain several prompts.
        return [super().rendered(call)]

    def _delta(self, text: str, *, first: bool) -> dict[str, Any]:
        return {"text": text}

    def _message(self, text: str) -> dict[str, Any]:
        return {"text": text}


class EmulatedChat(OpenAIApi):
    """The route ``/v1/chat/completions``, whose prompts have all fields that chat templates use."""

    object_name, chunk_name = "chat.completion", "chat.completion.chunk"

    def call(self, raw: bytes, headers: Mapping[str, str], text: Text) -> calls.EmulatedCall:
        body = calls.decoded(raw, _Chat)
        if not body.messages:
            raise calls.BadRequest("messages: must not be empty")
        seen = msgspec.json.decode(raw, type=dict[str, Any])
        turns = [pieces_of(turn, f"\n<{turn['role']}>") for turn in seen["messages"]]
        texts = [one.words() if isinstance(one, Media) else one for one in chain(*turns)]
        prompt = "".join([beside_messages(seen), *texts])
        # The output begins with a space, which is part of the answer and not of the prompt.
        ids = text.encode(f"{prompt}\n<assistant>")
        return _openai_call(body, ids, body.max_completion_tokens or body.max_tokens, headers)

    def _delta(self, text: str, *, first: bool) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": text} if first else {"content": text}}

    def _message(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}


def _openai_call(
    body: _Common, ids: list[int], max_new_tokens: int | None, headers: Mapping[str, str]
) -> calls.EmulatedCall:
    return calls.make_call(
        headers,
        ids,
        max_new_tokens,
        body,
        stream=bool(body.stream),
        include_usage=body.include_usage,
        model=body.model or "",
    )


def _choice(generation: calls.Generation, content: dict[str, Any], *, done: bool) -> dict[str, Any]:
    return {"index": 0, **content, "finish_reason": generation.ending.reason if done else None}


def _usage(generation: calls.Generation) -> dict[str, Any]:
    prompt, produced = len(generation.call.ids), generation.produced
    return {
        "prompt_tokens": prompt,
        "completion_tokens": produced,
        "total_tokens": prompt + produced,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }
