"""SGLang's own API, ``/generate``: bodies in, answers out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fairbench.live.emulator.calls import (
    BadRequest,
    Count,
    EmulatedCall,
    TokenIds,
    decoded,
    make_call,
    tokens_of,
)
from fairbench.live.emulator.generation import Generation
from fairbench.live.emulator.text import Text


class _SamplingParams(msgspec.Struct):
    max_new_tokens: Count | None = None


class _Body(msgspec.Struct):
    text: str | None = None
    input_ids: TokenIds | None = None
    sampling_params: _SamplingParams | None = None
    stream: bool | None = None
    rid: str | None = None
    routing_key: str | None = None


class EmulatedGenerate:
    """Every chunk repeats the output so far, as SGLang does unless told otherwise."""

    def call(self, raw: bytes, headers: Mapping[str, str], text: Text) -> EmulatedCall:
        """Raises BadRequest."""
        body = decoded(raw, _Body)
        prompt = body.input_ids or body.text
        if prompt is None:
            raise BadRequest("either text or input_ids is needed")
        return make_call(
            headers,
            tokens_of(prompt, text),
            body.sampling_params.max_new_tokens if body.sampling_params else None,
            stream=bool(body.stream),
            rid=body.rid,
            client=body.routing_key,
        )

    def chunks(self, generation: Generation, _: int) -> Iterator[Any]:
        """The next events of a stream, of whose tokens ``sent`` have gone already."""
        yield self.whole(generation)

    def whole(self, generation: Generation) -> Any:
        """The answer as it stands."""
        produced = generation.produced
        return {
            "text": generation.text(0, produced),
            "output_ids": generation.ids(produced),
            "meta_info": {
                "id": generation.call.rid,
                "finish_reason": _finish_reason(generation),
                "prompt_tokens": len(generation.call.ids),
                "completion_tokens": produced,
                "cached_tokens": generation.cached_tokens,
                "queue_time": generation.queue_s,
                "num_retractions": generation.sequence.retractions,
            },
        }

    def error(self, message: str, status: int) -> Any:
        """What is said instead of an answer."""
        error_type = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"message": message, "type": error_type, "code": status}}


def _finish_reason(generation: Generation) -> Any:
    return {"type": "length", "length": generation.produced} if generation.done else None
