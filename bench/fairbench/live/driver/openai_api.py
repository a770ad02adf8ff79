"""The two APIs of OpenAI that many servers speak: text in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import msgspec

from fairbench.core import Segment
from fairbench.live.driver.api import TEMPERATURE, Answer, BadEvent, Question, error_text, rendered
from fairbench.live.driver.fragments import words_of
from fairbench.live.openai_shapes import ReportedUsage


class AskCompletions:
    """The prompt as one text."""

    path = "/v1/completions"

    def __init__(self, model: str | None) -> None:
        self._model = model

    def body(self, question: Question) -> bytes:
        text = _text(question.prompt, question.outputs)
        return _body(self._model, question, {"prompt": text})

    def answer(self) -> Answer:
        return OpenAIAnswer()


class AskChat:
    """The prompt as messages: earlier outputs are the assistant's, what is between the user's."""

    path = "/v1/chat/completions"

    def __init__(self, model: str | None) -> None:
        self._model = model

    def body(self, question: Question) -> bytes:
        outputs = question.outputs
        messages = [
            {"role": "assistant" if own else "user", "content": _text(segments, outputs)}
            for own, segments in groupby(question.prompt, key=lambda s: s.key in outputs)
        ]
        return _body(self._model, question, {"messages": messages})

    def answer(self) -> Answer:
        return OpenAIAnswer()


def _text(segments: Iterable[Segment], outputs: Mapping[str, bytes]) -> str:
    return b"".join(rendered(segments, outputs, words_of)).decode()


def _body(model: str | None, question: Question, prompt: dict[str, Any]) -> bytes:
    content = prompt | {
        "max_tokens": question.max_tokens,
        "temperature": TEMPERATURE,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if model is not None:
        content["model"] = model
    if question.min_tokens is not None:
        content["min_tokens"] = question.min_tokens
    return msgspec.json.encode(content)


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    id: Any = None
    choices: list[_Choice] = []
    usage: ReportedUsage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class OpenAIAnswer(Answer):
    """An event with text counts as one token, until the usage at the end says how many there were.

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
        new = sum(map(self._take_choice, event.choices))
        self.output_tokens += new
        if event.usage is not None:
            self._take_usage(event.usage)
        return new

    def _take_choice(self, choice: _Choice) -> int:
        text, delta = choice.text, choice.delta
        if delta is not None:
            text = delta.content or delta.reasoning_content
        if text:
            self._texts.append(text)
        self.finished = self.finished or choice.finish_reason is not None
        return 1 if text else 0

    def _take_usage(self, usage: ReportedUsage) -> None:
        self.input_tokens, self.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        self.output_tokens = usage.completion_tokens or self.output_tokens

    def rendered(self) -> bytes:
        return "".join(self._texts).encode()
