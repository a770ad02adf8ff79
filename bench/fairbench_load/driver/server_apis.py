"""The servers' HTTP APIs as the driver uses them: prompts, request bodies and answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import shake_128
from itertools import groupby
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec
import numpy as np

from fairbench.core import Prompt, Segment
from fairbench.metrics.records import Ints
from fairbench_load.openai import (
    DONE,
    MOST_TOKENS,
    NO_OUTPUT,
    Answered,
    AnswerJudgement,
    StreamJudge,
    usage_in,
)

ID_BYTES = 4
CACHED_BYTES = 64 * 2**20

# Each of the 128 words is a single token in common vocabularies if a space precedes the word.
_WORDS = """
 time year people way day man thing woman life child world school state family student group
 country problem hand part place case week company system program question work government number
 night point home water room mother area money story fact month lot right study book eye job word
 business issue side kind head house service friend father power hour game line end member law car
 city community name president team minute idea body information back parent face others level
 office door health person art war history party result change morning reason research girl guy
 moment air teacher force education foot boy age policy process music market sense nation plan
 college interest death experience effect use class control care field development role value
 action season player film paper record
"""
WORDS = tuple(_WORDS.split())


def token_ids(segment: Segment, vocab: range) -> Ints:
    """Return a segment's token ids, which SHAKE-128 computes from the segment's key.

    If two segments have equal keys, the shorter segment is a prefix of the longer segment.
    """
    stream = shake_128(segment.key.encode()).digest(ID_BYTES * segment.length)
    ids: Ints = np.frombuffer(stream, "<u4").astype(np.int64) % len(vocab) + vocab.start
    return ids


class TokenFragments:
    """A cached conversion of prompt segments to JSON lists of token ids.

    The cached conversion of a document of 21,000 tokens saves a millisecond in each later prompt.
    """

    def __init__(self, vocab: range, cached_bytes: int = CACHED_BYTES) -> None:
        self._vocab = vocab
        self._room = cached_bytes
        self._kept: OrderedDict[Segment, bytes] = OrderedDict()

    def fragment(self, segment: Segment) -> bytes:
        """Return a segment's token ids as JSON, such as ``b"17,4,99"`` for three tokens."""
        fragment = self._kept.get(segment)
        if fragment is not None:
            self._kept.move_to_end(segment)
            return fragment
        fragment = fragment_of(token_ids(segment, self._vocab).tolist())
        self._kept[segment] = fragment
        self._room -= len(fragment)
        while self._room < 0:
            self._room += len(self._kept.popitem(last=False)[1])
        return fragment


def fragment_of(ids: list[int]) -> bytes:
    """Return token ids as a JSON list without brackets."""
    return msgspec.json.encode(ids)[1:-1]


def words_of(segment: Segment) -> bytes:
    """Return the text of a segment: one word per token, each after a space.

    For segments with equal keys, the shorter text is a prefix of the longer text.
    """
    stream = shake_128(segment.key.encode()).digest(segment.length)
    return "".join(f" {WORDS[byte % len(WORDS)]}" for byte in stream).encode()


# A temperature above 0 gives equal prompts different answers. With equal answers, later prompts of
# a program would share a cached prefix that the workload does not have.
TEMPERATURE = 1.0
Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
CUT = "stream cut: it ended without a finish reason and [DONE]"


class BadEvent(Exception):
    """An error for a stream that contains an error event, or data that is not an event."""


class StreamedAnswer(ABC):
    """The part of an answer that has arrived so far; each event of the stream adds to the answer.

    - Token counts are None if the server does not report token counts.
    - ``estimated`` is True while the server has not reported all tokens of the answer.
    - ``done`` is True after the stream's last event.
    - ``queue_s`` is the time in seconds from the request's arrival to its first admission, on the
      server's clock.
    - ``answer_id`` is the server's id of the answer.
    """

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens = 0
        self.estimated = True
        self.queue_s: float | None = None
        self.retractions = 0
        self.answer_id = ""
        self._judge = StreamJudge()
        self.done = False

    def take_event(self, payload: bytes, event: str = "") -> int:
        """Read the data of an event named ``event``; return the number of new output tokens.

        Raises BadEvent for an event that reports an error or does not match the server's API.
        """
        if payload == DONE:
            self.done = True
        if payload in (DONE, b""):
            return 0
        found = self._judge.judge_event(payload, event)
        if self.done and found.fault is not None:
            return 0  # An error after the end of a complete answer has no effect.
        if found.answer is None:
            raise BadEvent("the event does not match the server's API")
        if found.fault is not None:
            raise BadEvent(found.fault.text)
        self.answer_id = self.answer_id or str(found.answer.id or "")
        try:
            return self._read_event(found, found.answer, payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadEvent(f"the event does not match the server's API: {error}") from None

    @property
    def finished(self) -> bool:
        """Whether the stream has announced a normal end of the answer."""
        return self._judge.ended or self.done

    def fault(self) -> str | None:
        """Return why the stream ended without a complete answer, or None for a complete answer."""
        if not self.finished:
            return CUT
        if self.output_tokens or (self._judge.may_be_empty and self._judge.end_fault() is None):
            return None
        return f"no answer: {NO_OUTPUT.text}"

    @abstractmethod
    def _read_event(self, found: AnswerJudgement, answer: Answered, payload: bytes) -> int:
        """Add an event's content to the answer; return the event's number of new tokens."""

    @abstractmethod
    def rendered(self) -> bytes:
        """Return the output as a segment of the next prompt, in the format of the API."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A call of a program, in a form that all APIs share.

    ``outputs`` maps segment keys to earlier answers, in the format of the API's prompts.
    ``min_new_tokens`` is None if the server does not support a minimum length.
    """

    prompt: Prompt
    outputs: Mapping[str, bytes]
    client: str
    max_new_tokens: int
    min_new_tokens: int | None


class ServerApi(Protocol):
    """The interface of an API: its path, its request bodies, and a parser of its answers."""

    path: str

    def body(self, question: ApiCall) -> bytes: ...
    def answer(self) -> StreamedAnswer: ...


def with_extra(content: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Add fields to a request body; a new field with the value null removes an old field."""
    return {name: value for name, value in {**content, **extra}.items() if value is not None}


def rendered(
    segments: Iterable[Segment], outputs: Mapping[str, bytes], fresh: Callable[[Segment], bytes]
) -> list[bytes]:
    """Return each segment's bytes: an earlier output in ``outputs``, or else ``fresh(segment)``."""
    return [outputs[one.key] if one.key in outputs else fresh(one) for one in segments]


class AskGenerate:
    """SGLang's API ``/generate``, whose prompts are token ids from ``vocab``."""

    path = "/generate"

    def __init__(self, vocab: range, extra: Mapping[str, Any] | None = None) -> None:
        self._fragments = TokenFragments(vocab)
        self._extra = extra or {}

    def body(self, question: ApiCall) -> bytes:
        sampling = {"max_new_tokens": question.max_new_tokens, "temperature": TEMPERATURE}
        if question.min_new_tokens is not None:
            sampling["min_new_tokens"] = question.min_new_tokens
        ids = b",".join(rendered(question.prompt, question.outputs, self._fragments.fragment))
        content = {
            "input_ids": msgspec.Raw(b"[" + ids + b"]"),
            "sampling_params": sampling,
            "stream": True,
            "routing_key": question.client,
        }
        return msgspec.json.encode(with_extra(content, self._extra))

    def answer(self) -> StreamedAnswer:
        return GenerateAnswer()


class _Meta(msgspec.Struct):
    id: Any = None
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    queue_time: Seconds | None = None
    num_retractions: Tokens = 0


class GenerateAnswer(StreamedAnswer):
    """An answer of SGLang's API ``/generate``.

    By default, each event contains all output tokens so far. With SGLang's incremental streaming,
    each event contains only new output tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ids: list[int] = []

    def _read_event(self, found: AnswerJudgement, answer: Answered, payload: bytes) -> int:
        if answer.meta_info is None:
            raise BadEvent("the event has no field meta_info")
        meta = msgspec.convert(answer.meta_info, _Meta)
        ids = msgspec.convert(answer.output_ids or [], list[int])
        self.answer_id = self.answer_id or str(meta.id or "")
        if self.queue_s is None:  # Later queue times include waits after a preemption.
            self.queue_s = meta.queue_time
        self.input_tokens, self.cached_tokens = meta.prompt_tokens, meta.cached_tokens
        self.retractions = meta.num_retractions
        total = meta.completion_tokens
        self.estimated = total is None
        if len(ids) == total:
            self._ids = ids
        else:
            self._ids += ids
        if total is None:
            total = len(self._ids) or self.output_tokens + found.output
        new, self.output_tokens = total - self.output_tokens, total
        return max(0, new)

    def rendered(self) -> bytes:
        return fragment_of(self._ids)


@dataclass(eq=False)
class _AskOpenAI:
    """The common part of OpenAI's completions and chat APIs.

    ``most`` is the name of the field with the maximum number of output tokens. ``extra`` contains
    fields that are added to each request body.
    """

    model: str | None
    extra: Mapping[str, Any] = field(default_factory=dict)
    most: str = "max_tokens"

    def answer(self) -> StreamedAnswer:
        return OpenAIAnswer()

    def _body(self, question: ApiCall, prompt: dict[str, Any]) -> bytes:
        content = prompt | {
            self.most: question.max_new_tokens,
            "temperature": TEMPERATURE,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.model is not None:
            content["model"] = self.model
        if question.min_new_tokens is not None:
            content["min_tokens"] = question.min_new_tokens
        return msgspec.json.encode(with_extra(content, self.extra))


class AskCompletions(_AskOpenAI):
    """The completions API, whose prompt is a single text."""

    path = "/v1/completions"

    def body(self, question: ApiCall) -> bytes:
        return self._body(question, {"prompt": _prompt_text(question.prompt, question.outputs)})


class AskChat(_AskOpenAI):
    """The chat API.

    Earlier outputs become messages of the assistant; all other segments become user messages.
    """

    path = "/v1/chat/completions"

    def body(self, question: ApiCall) -> bytes:
        outputs = question.outputs
        messages = [
            {"role": "assistant" if own else "user", "content": _prompt_text(segments, outputs)}
            for own, segments in groupby(question.prompt, key=lambda s: s.key in outputs)
        ]
        return self._body(question, {"messages": messages})


def _prompt_text(segments: Iterable[Segment], outputs: Mapping[str, bytes]) -> str:
    return b"".join(rendered(segments, outputs, words_of)).decode()


class OpenAIAnswer(StreamedAnswer):
    """A streamed answer of an OpenAI API.

    Output includes text, reasoning and tool calls. Until the server reports the usage, each event
    with output counts as one token.
    """

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []
        self._events = 0
        self._told = 0  # number of output tokens in the stream's latest ``usage`` field

    def _read_event(self, found: AnswerJudgement, answer: Answered, payload: bytes) -> int:
        if found.output:
            self._texts += found.texts
            self._events += 1
            self.output_tokens = max(self._told, self._events)
            self.estimated = self._events > self._told
        usage = usage_in(answer.usage, payload)
        if usage is not None:
            if usage.prompt_tokens is not None:
                self.input_tokens = usage.prompt_tokens
            if usage.cached_tokens is not None:
                self.cached_tokens = usage.cached_tokens
            if usage.completion_tokens:
                self._told = self.output_tokens = usage.completion_tokens
                self.estimated = self.input_tokens is None
        return int(found.output)

    def rendered(self) -> bytes:
        return "".join(self._texts).encode()
