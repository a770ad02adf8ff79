"""The two APIs of OpenAI that many servers support: text in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import msgspec

from fairbench.core import Segment
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
from fairbench.live.driver.fragments import words_of
from fairbench.live.openai_shapes import Choice, ReportedUsage


class _AskOpenAI:
    """The common part of both OpenAI APIs.

    ``most`` is the field for the maximum number of tokens to produce; ``extra`` holds other fields.
    """

    def __init__(
        self,
        model: str | None,
        extra: Mapping[str, Any] | None = None,
        most: str = "max_tokens",
    ) -> None:
        self._model = model
        self._extra = extra or {}
        self._most = most

    def answer(self) -> Answer:
        return OpenAIAnswer()

    def _body(self, question: Question, prompt: dict[str, Any]) -> bytes:
        content = prompt | {
            self._most: question.max_tokens,
            "temperature": TEMPERATURE,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._model is not None:
            content["model"] = self._model
        if question.min_tokens is not None:
            content["min_tokens"] = question.min_tokens
        return msgspec.json.encode(with_extra(content, self._extra))


class AskCompletions(_AskOpenAI):
    """The prompt as one text."""

    path = "/v1/completions"

    def body(self, question: Question) -> bytes:
        return self._body(question, {"prompt": _text(question.prompt, question.outputs)})


class AskChat(_AskOpenAI):
    """The prompt as messages: earlier outputs are the assistant's, the text between the user's."""

    path = "/v1/chat/completions"

    def body(self, question: Question) -> bytes:
        outputs = question.outputs
        messages = [
            {"role": "assistant" if own else "user", "content": _text(segments, outputs)}
            for own, segments in groupby(question.prompt, key=lambda s: s.key in outputs)
        ]
        return self._body(question, {"messages": messages})


def _text(segments: Iterable[Segment], outputs: Mapping[str, bytes]) -> str:
    return b"".join(rendered(segments, outputs, words_of)).decode()


class _Event(msgspec.Struct):
    id: Any = None
    choices: list[Choice] | None = None
    usage: ReportedUsage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class OpenAIAnswer(Answer):
    """An answer in which an event with text counts as one token until the final usage.

    (When each token of an event of several came is not known.)
    """

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []

    def _read(self, payload: bytes) -> int:
        event = _decode(payload)
        if event.error is not None:
            raise BadEvent(error_text(event.error))
        self.answer_id = self.answer_id or str(event.id or "")
        new = sum(map(self._take_choice, event.choices or ()))
        self.output_tokens += new
        if event.usage is not None:
            self._take_usage(event.usage)
        return new

    def _take_choice(self, choice: Choice) -> int:
        text, delta = choice.text, choice.delta
        if delta is not None:
            thought = delta.reasoning_content or delta.reasoning
            text = delta.content or (thought if isinstance(thought, str) else None)
        if text:
            self._texts.append(text)
        check_reason(choice.finish_reason)
        self.finished = self.finished or choice.finish_reason is not None
        return 1 if text else 0

    def _take_usage(self, usage: ReportedUsage) -> None:
        self.input_tokens, self.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        self.output_tokens = usage.completion_tokens or self.output_tokens

    def rendered(self) -> bytes:
        return "".join(self._texts).encode()
