"""Test usage read from passing answers, however the network cuts them."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench_serve.answers import StreamReader, Usage, usage_of
from tests.serve.live_router import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    PATHS,
    WORDS,
    cluster,
    events,
    streamed,
    until,
    whole,
)

ASKED = {"stream_options": {"include_usage": True}}
TRICKY = 'a "choices": [] {"choices":[]} data: [DONE] \n\n data: x'


def stream_of(path, *, spaced=True, tricky=False):
    """Return the bytes of a stream with usage, and those without the usage event."""
    found = list(events(path, ASKED))
    if tricky:
        found.insert(1, {"choices": [{"text": TRICKY}]})
    separators = None if spaced else (",", ":")
    parts = [b"data: %b\n\n" % json.dumps(e, separators=separators).encode() for e in found]
    parts.append(b"data: [DONE]\n\n")
    hidden = [part for part, e in zip(parts, [*found, None], strict=True) if not only_usage(e)]
    return b"".join(parts), b"".join(hidden)


def only_usage(event):
    return event is not None and event.get("choices") == []


@given(st.data(), st.sampled_from(list(PATHS)), st.booleans(), st.booleans())
def test_any_division_into_chunks_gives_the_same_usage(data, path, spaced, hide):
    whole_stream, hidden = stream_of(path, spaced=spaced, tricky=path != GENERATE)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole_stream)), max_size=8)))
    reader = StreamReader(hide_usage=hide)
    passed = b""
    for start, end in zip([0, *cuts], [*cuts, len(whole_stream)], strict=True):
        passed += reader.feed(whole_stream[start:end])
    passed += reader.rest()
    assert passed == (hidden if hide and path != GENERATE else whole_stream)
    assert reader.usage() == Usage(100, len(WORDS), 32)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_an_interrupted_stream_counts_one_token_per_event(path):
    begun = stream_of(path)[0].split(b"\n\n")[:2]
    reader = StreamReader(hide_usage=True)
    reader.feed(b"\n\n".join(begun) + b"\n\nda")
    assert reader.usage() == Usage(None, 2, None)
    assert reader.rest() == b"da"


def test_an_interrupted_generate_stream_has_its_reported_tokens():
    reader = StreamReader(hide_usage=False)
    reader.feed(b'data: {"text": "", "meta_info": {"completion_tokens": 40}}\n\n')
    assert reader.usage().output_tokens == 40


def test_an_error_is_not_counted_as_a_token():
    reader = StreamReader(hide_usage=False)
    reader.feed(b'data: {"choices": [{}]}\n\ndata: {"error": {}}\n\ndata: [DONE]\n\n')
    assert reader.usage() == Usage(None, 1, None, failed=True)


@pytest.mark.parametrize(
    "event",
    [
        {"text": "x", "meta_info": {"finish_reason": {"type": "length", "length": 1}}},
        {"choices": [{"text": "x", "finish_reason": "stop"}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    ],
)
def test_an_answer_is_finished_by_its_reason(event):
    reader = StreamReader(hide_usage=False)
    reader.feed(b'data: {"choices": [{"text": "x", "finish_reason": null}]}\n\n')
    assert not reader.is_finished
    reader.feed(b"data: %b\n\n" % json.dumps(event).encode())
    assert reader.is_finished
    reader.feed(b'data: {"choices": [], "usage": {}}\n\n')
    assert reader.is_finished or "meta_info" in event


@pytest.mark.parametrize("path", PATHS)
def test_usage_of_whole_answers_is_read(path):
    assert usage_of(json.dumps(whole(path)).encode()) == Usage(100, len(WORDS), 32)


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b'{"usage": null}'])
def test_an_answer_without_usage_has_none(data):
    assert usage_of(data) == Usage()


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, GENERATE])
def test_the_output_so_far_counts_each_event_of_a_stream(path):
    parts = stream_of(path)[0].split(b"\n\n")
    reader = StreamReader(hide_usage=True)
    counted = []
    for part in parts[: len(WORDS)]:
        reader.feed(part + b"\n\n")
        counted.append(reader.output_so_far)
    assert counted == [1, 2, 3]


def test_the_dispatcher_knows_the_output_of_answers_in_progress():
    async def run():
        async with cluster(1) as (under_test, [worker]):
            worker.held_at = 2
            dispatcher = under_test.proxy.dispatcher
            async with under_test.post(GENERATE, streamed(GENERATE)) as answer:
                await until(lambda: [*dispatcher.streamed().values()] == [2])
                worker.released.set()
                await answer.read()
            await until(lambda: dispatcher.streamed() == {})

    asyncio.run(run())
