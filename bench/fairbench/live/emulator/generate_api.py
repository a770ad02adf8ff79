"""SGLang's own API, ``/generate``: reads bodies and writes answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fairbench.live.emulator.calls import (
    BadRequest,
    Count,
    EmulatedCall,
    StopFields,
    TokenIds,
    decoded,
    make_call,
    tokens_of,
)
from fairbench.live.emulator.generation import LENGTH, STOP, Generation
from fairbench.live.emulator.text import Text


class _SamplingParams(StopFields, kw_only=True):
    max_new_tokens: Count | None = None


class _Body(msgspec.Struct):
    text: str | None = None
    input_ids: TokenIds | None = None
    sampling_params: _SamplingParams | None = None
    stream: bool | None = None
    rid: str | None = None
    routing_key: str | None = None


class EmulatedGenerate:
    """SGLang's generate API, in which every chunk repeats the output so far (the default)."""

    def call(self, raw: bytes, headers: Mapping[str, str], text: Text) -> EmulatedCall:
        """Parse the body ``raw`` and the ``headers``; ``text`` encodes a prompt that is text.

        Raises BadRequest.
        """
        body = decoded(raw, _Body)
        prompt = body.input_ids or body.text
        if prompt is None:
            raise BadRequest("the body must have text or input_ids")
        sampling = body.sampling_params or _SamplingParams()
        return make_call(
            headers,
            tokens_of(prompt, text),
            sampling.max_new_tokens,
            sampling,
            stream=bool(body.stream),
            rid=body.rid,
            client=body.routing_key,
        )

    def chunks(self, generation: Generation) -> Iterator[Any]:
        """Yield the next events of a stream."""
        for _, produced, done in generation.steps():
            yield self._answer(generation, produced, done=done)

    def whole(self, generation: Generation) -> Any:
        """Return the answer so far."""
        return self._answer(generation, generation.produced, done=generation.done)

    def _answer(self, generation: Generation, produced: int, *, done: bool) -> Any:
        return {
            "text": generation.text(0, produced),
            "output_ids": generation.ids(produced),
            "meta_info": {
                "id": generation.call.rid,
                "finish_reason": _finish_reason(generation) if done else None,
                "prompt_tokens": len(generation.call.ids),
                "completion_tokens": produced,
                "cached_tokens": generation.cached_tokens,
                "queue_time": generation.queue_s,
                "num_retractions": generation.sequence.retractions,
            },
        }

    def error(self, message: str, status: int) -> Any:
        """Return the body of an error answer."""
        error_type = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"message": message, "type": error_type, "code": status}}


def _finish_reason(generation: Generation) -> Any:
    ending = generation.ending
    if ending.reason == LENGTH:
        return {"type": LENGTH, "length": ending.tokens}
    return {"type": STOP, "matched": ending.matched}
