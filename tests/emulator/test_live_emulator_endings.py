"""Test the end of an emulated answer, and its division into chunks."""

import asyncio
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench_emulator.calls import LENGTH, STOP, Ending, Generation, Stops, ending_of
from fairbench_load.headers import OUTPUT_TOKENS
from tests.emulator.live_emulator import events, running

WORDS = {1: " ab", 2: " bc", 3: " ca"}


class Spelled:
    """A tokenizer whose tokens have three letters each, including blanks."""

    def decode(self, ids):
        return "".join(WORDS[one] for one in ids)


def brute_force(ids, most, stops):
    """Find the end as SGLang does, token by token: length, stop tokens, stop texts in order."""
    for count in range(1, len(ids) + 1):
        said = Spelled().decode(ids[:count])
        if count >= most:
            return Ending(count, LENGTH)
        if ids[count - 1] in stops.tokens:
            shown = None if stops.keep else len(Spelled().decode(ids[: count - 1]))
            return Ending(count, STOP, ids[count - 1], shown)
        for text in stops.texts:
            if text in said:
                return Ending(count, STOP, text, None if stops.keep else said.index(text))
    return Ending(len(ids), STOP)


TEXTS = st.lists(st.sampled_from(["b", " ", "c b", "a a", "ab bc", "zz", "bc ca ab"]), max_size=3)


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=9),
    st.integers(0, 3),
    TEXTS,
    st.frozensets(st.integers(2, 4), max_size=2),
    st.booleans(),
)
def test_an_output_ends_at_the_token_that_a_search_token_by_token_finds(
    ids, room, texts, tokens, keep
):
    stops = Stops(tuple(texts), tokens, keep)
    expected = brute_force(ids, len(ids) + room, stops)
    ending = ending_of(ids, len(ids) + room, stops, Spelled())
    assert ending == expected
    # An answer that is cut there must end in the same way.
    assert ending_of(ids[: ending.tokens], len(ids) + room, stops, Spelled()) == expected


def run(test, **config):
    async def main():
        async with running(asyncio.get_running_loop(), **config) as (emulator, session):
            return await test(emulator, session)

    return asyncio.run(main())


async def completion(session, headers=None, **body):
    body = {"model": "m", "prompt": "once", "max_tokens": 30, **body}
    async with session.post("/v1/completions", json=body, headers=headers or {}) as answer:
        assert answer.status == 200, await answer.text()
        return await (events(answer) if body.get("stream") else answer.json())


def test_a_stop_string_ends_the_answer_before_it_and_counts_as_output():
    async def test(emulator, session):
        answer = await completion(session, stop=["zzzz", " "], user="ann")
        kept = await completion(session, stop=" ", no_stop_trim=True)
        free = await completion(session)
        produced = emulator.totals.clients["default"].output_tokens
        return [(one["choices"][0], one["usage"]["completion_tokens"]) for one in (
            answer, kept, free)], produced  # fmt: skip

    ((stopped, one), (kept, also_one), (free, thirty)), produced = run(test)
    assert (stopped["text"], stopped["finish_reason"], one) == ("", "stop", 1)
    assert (len(kept["text"]), kept["finish_reason"], also_one) == (5, "stop", 1)
    assert (free["finish_reason"], thirty) == ("length", 30)
    assert produced == 32


@pytest.mark.parametrize("interval", [1, 16])
def test_a_stream_stops_as_the_whole_answer_would(interval):
    """Two emulators draw the same text, so the second gives the whole text."""

    async def whole(_, session):
        return (await completion(session))["choices"][0]["text"]

    said = run(whole)
    stop = said[11:18]  # across two words, of five letters each with the blank
    end = said.index(stop)

    async def test(_, session):
        return await completion(
            session, stop=[stop], stream=True, stream_options={"include_usage": True}
        )

    *chunks, usage = run(test, stream_interval=interval)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == said[:end]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"]["completion_tokens"] == -(-(end + len(stop)) // 5)


def test_generate_reports_its_stop_reason():
    async def test(emulator, session):
        async def reason(headers=None, **sampling):
            body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 9, **sampling}}
            async with session.post("/generate", json=body, headers=headers or {}) as answer:
                found = await answer.json()
            return found["meta_info"]["finish_reason"], found["meta_info"]["completion_tokens"]

        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 9}}
        async with session.post("/generate", json=body) as answer:
            ids = (await answer.json())["output_ids"]
        every = [await reason(stop_token_ids=emulator.text.output_ids.tolist())]
        return ids, [
            await reason(),
            await reason({OUTPUT_TOKENS: "4"}),
            await reason(stop=" "),
            *every,
        ]

    ids, (full, own, text, (token, one)) = run(test)
    assert len(ids) == 9
    assert full == ({"type": "length", "length": 9}, 9)
    assert own == ({"type": "stop", "matched": None}, 4)
    assert text == ({"type": "stop", "matched": " "}, 1)
    assert (token["type"], one) == ("stop", 1)
    assert isinstance(token["matched"], int)


@pytest.mark.parametrize("time_scale", [1.0, 200.0])
def test_one_token_per_event_only_on_request(time_scale):
    """The events stay separate even if time passes so fast that several tokens are ready."""

    async def test(_, session):
        asked, plain = await asyncio.gather(
            completion(session, stream=True, stream_interval=1), completion(session, stream=True)
        )
        body = {"text": "a", "stream": True}
        body["sampling_params"] = {"max_new_tokens": 8, "stream_interval": 3}
        async with session.post("/generate", json=body) as answer:
            return asked, plain, await events(answer)

    asked, plain, threes = run(test, time_scale=time_scale)
    assert [len(chunk["choices"][0]["text"].split()) for chunk in asked] == [1] * 30
    assert [chunk["choices"][0]["finish_reason"] for chunk in asked] == [None] * 29 + ["length"]
    assert len(plain) <= 4
    assert sum(len(chunk["choices"][0]["text"].split()) for chunk in plain) == 30
    assert [chunk["meta_info"]["completion_tokens"] for chunk in threes] == [1, 4, 7, 8]
    assert [chunk["meta_info"]["finish_reason"] is None for chunk in threes] == [1, 1, 1, 0]


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=9),
    TEXTS,
    st.lists(st.integers(1, 3), min_size=9, max_size=9),
)
def test_the_parts_of_an_answer_are_its_text_up_to_the_stop(ids, texts, lengths):
    ending = ending_of(ids, 99, Stops(tuple(texts)), Spelled())
    answer = Generation(None, None, ids[: ending.tokens], ending, Spelled())
    ends = [0, *(min(one, ending.tokens) for one in accumulate(lengths))]
    parts = [answer.text(start, end) for start, end in pairwise(ends)]
    whole = Spelled().decode(ids[: ending.tokens])
    assert "".join(parts) == (whole if ending.visible is None else whole[: ending.visible])


def test_a_stop_text_of_several_tokens_is_not_shown_by_the_last_of_them():
    ids = [1, 2, 3]  # " ab bc ca"
    ending = ending_of(ids, 99, Stops(("b bc c",)), Spelled())
    assert ending == Ending(3, STOP, "b bc c", 2)
    answer = Generation(None, None, ids, ending, Spelled())
    assert [answer.text(at, at + 1) for at in range(3)] == [" a", "", ""]
