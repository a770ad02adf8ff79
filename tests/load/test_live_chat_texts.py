"""Test that router and emulator count everything as prompt that a chat template may see."""

import asyncio
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench_emulator.server_apis import EmulatedChat
from fairbench_emulator.tokens import ApproximateText
from fairbench_load.http_server import Problem
from fairbench_load.openai import MEDIA_TOKENS
from fairbench_serve.calls import ChatApi, CompletionsApi, GenerateApi
from fairbench_serve.prompts import ApproximateTokens, PromptLimits
from tests.serve.live_router import CHAT, cluster, streamed, until

WORDS = 5_000
LONG = "lorem ips " * (WORDS // 2)  # 5,000 words of 25,000 bytes
TOKENS = len(LONG) // 4
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": LONG}}
TOOL = {"type": "function", "function": {"name": "f", "description": LONG, "parameters": {}}}
HELLO = [{"role": "user", "content": "hello"}]


def chat(message=None, **beside):
    """Return a body with a further message and further fields."""
    return {"messages": [*HELLO, {"role": "assistant", **(message or {"content": "hi"})}], **beside}


def parts(*content):
    return chat({"content": list(content)})


PLACES = {
    "content": chat({"content": LONG}),
    "a text": parts({"type": "text", "text": LONG}),
    "tools": chat(tools=[TOOL]),
    "names in a tool's schema": chat(tools=[{"parameters": {"properties": {LONG: {}}}}]),
    "tool calls": chat({"content": None, "tool_calls": [CALL]}),
    "an old function call": chat({"function_call": {"name": "f", "arguments": LONG}}),
    "reasoning": chat({"content": "4", "reasoning_content": LONG}),
    "reasoning in vLLM": chat({"content": "4", "reasoning": LONG}),
    "a thinking block": parts({"type": "thinking", "thinking": LONG, "signature": "s"}),
    "a document": parts({"type": "document", "source": {"type": "text", "data": LONG}}),
    "a title": parts({"type": "document", "title": LONG, "source": {}}),
    "a refusal": parts({"type": "refusal", "refusal": LONG}),
    "a tool's result": parts({"type": "tool_result", "content": [{"type": "text", "text": LONG}]}),
    "text in a part of another type": parts({"type": "image_url", "text": LONG}),
    "a name": chat({"content": "hi", "name": LONG}),
    "tools of a message": chat({"content": "hi", "tools": [TOOL]}),
    "documents of a message": chat({"content": "hi", "documents": [{"text": LONG}]}),
    "an unknown field": chat({"content": "hi", "whatever": {"deep": [{"er": [LONG]}]}}),
    "template arguments": chat(chat_template_kwargs={"date": LONG}),
    "reasoning effort": chat(reasoning_effort=LONG),
}


def counted(body, api=ChatApi):
    return len(api().read(json.dumps(body).encode(), ApproximateTokens()).ids)


def emulated(body):
    return len(EmulatedChat().call(json.dumps(body).encode(), {}, ApproximateText(10**6)).ids)


@pytest.mark.parametrize("place", PLACES)
def test_text_counts_wherever_it_stands(place):
    assert TOKENS <= counted(PLACES[place]) < TOKENS + 100
    assert WORDS <= emulated(PLACES[place]) < WORDS + 100


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{LONG}"}},
        {"type": "image", "source": {"type": "base64", "data": LONG}},
        {"type": "input_audio", "input_audio": {"data": LONG, "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "https://example.com/v"}},
    ],
)
def test_media_count_as_estimated(part):
    for count in (counted, emulated):
        assert MEDIA_TOKENS <= count(parts(part)) < MEDIA_TOKENS + 100
        assert count(parts(part, part)) - count(parts(part)) == MEDIA_TOKENS


def test_media_of_generate_and_a_suffix_count():
    body = {"text": "hi", "sampling_params": {}}
    assert counted({**body, "image_data": "u"}, GenerateApi) == MEDIA_TOKENS + 1
    assert counted({**body, "video_data": ["u", "v"]}, GenerateApi) == 2 * MEDIA_TOKENS + 1
    assert counted({"prompt": "hi", "suffix": LONG}, CompletionsApi) == TOKENS + 1


def test_other_images_are_other_prefixes():
    first, second = (
        ChatApi().read(
            json.dumps(parts({"type": "image_url", "image_url": {"url": url}})).encode(),
            ApproximateTokens(),
        )
        for url in "ab"
    )
    assert first.ids[:3] == second.ids[:3]
    assert first.ids[100:200] != second.ids[100:200]


def test_more_images_than_fit_a_worker_are_refused_before_they_take_memory():
    image = {"type": "image_url", "image_url": {"url": "u"}}
    raw = json.dumps(parts(*[image] * 500)).encode()
    with pytest.raises(Problem, match="more than 400000 tokens"):
        ChatApi().read(raw, ApproximateTokens(), PromptLimits(400_000))


# The server refuses fields that may hold a grammar or a regular expression.
NAMES = st.text(max_size=5).filter(lambda name: not re.search("regex|ebnf|lark", name.lower()))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner),
    max_leaves=9,
)


def texts(value):
    """Return the bytes of all strings in a value."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, dict):
        return sum(map(texts, value.values()))
    return sum(map(texts, value)) if isinstance(value, list) else 0


@given(st.dictionaries(NAMES.filter(lambda name: name != "content"), JSON))
def test_no_text_of_a_message_is_free(fields):
    message = {"role": "user", **{name: fields[name] for name in fields if name != "role"}}
    assert 4 * counted({"messages": [message]}) >= texts(message)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "thinking", "image"]), JSON), max_size=3))
def test_no_text_of_a_part_is_free(content):
    beside = [{name: part[name] for name in part if name != "image"} for part in content]
    assert 4 * counted(parts(*content)) >= texts(beside)


def left_after(event):
    """Return the tokens charged to a client that leaves after this event of 100 bytes."""

    async def run():
        async with cluster(1, held_at=0) as (under_test, [worker]):
            worker.padding = [b"data: " + json.dumps(event).encode() + b"\n\n"]
            body = {**streamed(CHAT), **chat(tools=[TOOL]), "max_tokens": 4_096}
            async with under_test.post(CHAT, body) as answer:
                await answer.content.readany()
            await until(lambda: not under_test.proxy.dispatcher.under_way)
            kinds = ("input", "output")
            names = [f'fairbench_{kind}_tokens_total{{client="default"}}' for kind in kinds]
            return [await under_test.metric(name) for name in names]

    return asyncio.run(run())


@pytest.mark.parametrize(
    "said",
    [
        {"content": "a" * 100},
        {"reasoning": "a" * 50, "content": "a" * 50},
        {"tool_calls": [{"index": 0, "function": {"name": "a" * 20, "arguments": "b" * 80}}]},
    ],
)
def test_a_client_that_leaves_before_the_usage_pays_what_it_sent_and_received(said):
    prompt = counted(chat(tools=[TOOL]))
    finished = {"choices": [{"delta": said, "finish_reason": "stop"}]}
    assert left_after(finished) == [prompt, 25]
    rest = (4_096 - 25) * 0.098  # the reserved memory of an answer that did not finish
    assert left_after({"choices": [{"delta": said}]}) == [prompt, 25 + int(rest)]
