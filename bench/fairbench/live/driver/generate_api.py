"""SGLang's own API: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairbench.live.driver.api import (
    TEMPERATURE,
    Answer,
    BadEvent,
    Question,
    check_reason,
    error_text,
    rendered,
    with_extra,
)
from fairbench.live.driver.fragments import TokenFragments, fragment_of


class AskGenerate:
    """Prompts of exact token ids, which are taken from ``vocab``."""

    path = "/generate"

    def __init__(self, vocab: range, extra: Mapping[str, Any] | None = None) -> None:
        self._fragments = TokenFragments(vocab)
        self._extra = extra or {}

    def body(self, question: Question) -> bytes:
        sampling = {"max_new_tokens": question.max_tokens, "temperature": TEMPERATURE}
        if question.min_tokens is not None:
            sampling["min_new_tokens"] = question.min_tokens
        ids = b",".join(rendered(question.prompt, question.outputs, self._fragments.of))
        content = {
            "input_ids": msgspec.Raw(b"[" + ids + b"]"),
            "sampling_params": sampling,
            "stream": True,
            "routing_key": question.client,
        }
        return msgspec.json.encode(with_extra(content, self._extra))

    def answer(self) -> Answer:
        return GenerateAnswer()


class _Meta(msgspec.Struct):
    id: Any = None
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int | None = None
    queue_time: float | None = None
    num_retractions: int = 0
    finish_reason: Any = None


class _Event(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: _Meta | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class GenerateAnswer(Answer):
    """An answer whose events repeat the output so far, or add to it if streaming is incremental."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: list[int] = []

    def _read(self, payload: bytes) -> int:
        event = _decode(payload)
        if event.error is not None:
            raise BadEvent(error_text(event.error))
        meta = event.meta_info
        if meta is None:
            raise BadEvent("an event without meta_info")
        check_reason(meta.finish_reason)
        self.answer_id = self.answer_id or str(meta.id or "")
        if self.queue_s is None:  # later it grows with every retraction
            self.queue_s = meta.queue_time
        self.input_tokens, self.cached_tokens = meta.prompt_tokens, meta.cached_tokens
        new = meta.completion_tokens - self.output_tokens
        self.output_tokens, self.retractions = meta.completion_tokens, meta.num_retractions
        self.finished = meta.finish_reason is not None
        if len(event.output_ids) == meta.completion_tokens:
            self._ids = event.output_ids
        else:
            self._ids += event.output_ids
        return max(0, new)

    def rendered(self) -> bytes:
        return fragment_of(self._ids)
