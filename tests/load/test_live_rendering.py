"""Test the conversion of segments to tokens and words, request bodies, and parsing of events."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Segment
from fairbench.errors import UsageError
from fairbench_load.driver.server_apis import (
    ApiCall,
    AskChat,
    AskCompletions,
    AskGenerate,
    BadEvent,
    TokenFragments,
    token_ids,
    words_of,
)
from fairbench_load.driver.target import DriverTarget
from fairbench_load.openai import EventSplitter, data_lines

VOCAB = range(16, 2_048)
keys, lengths = st.text(max_size=20), st.integers(1, 500)


@given(keys, lengths, lengths)
def test_a_shorter_segment_is_a_prefix_of_a_longer_one(key, one, other):
    short, long = sorted((one, other))
    ids = token_ids(Segment(key, long), VOCAB).tolist()
    assert token_ids(Segment(key, short), VOCAB).tolist() == ids[:short]
    assert len(ids) == long
    assert all(token in VOCAB for token in ids)
    words = words_of(Segment(key, long)).split()
    assert words_of(Segment(key, short)).split() == words[:short]
    assert len(words) == long


@given(st.lists(keys, min_size=2, max_size=2, unique=True))
def test_segments_of_different_keys_are_different_streams(pair):
    one, other = (token_ids(Segment(key, 50), VOCAB) for key in pair)
    assert (one != other).sum() > 40
    assert words_of(Segment(pair[0], 50)) != words_of(Segment(pair[1], 50))


def test_tokens_are_the_same_in_every_version_and_on_every_machine():
    assert token_ids(Segment("0/question", 4), VOCAB).tolist() == [1155, 1845, 675, 1601]
    assert words_of(Segment("0/question", 3)) == b" name season art"


@given(st.lists(st.builds(Segment, st.sampled_from("abcdef"), st.integers(1, 60)), max_size=30))
def test_fragments_equal_the_ids_whether_they_are_kept_or_computed_again(segments):
    fragments = TokenFragments(VOCAB, cached_bytes=300)
    for segment in segments:
        ids = json.loads(b"[" + fragments.fragment(segment) + b"]")
        assert ids == token_ids(segment, VOCAB).tolist()
        assert sum(map(len, fragments._kept.values())) <= 300


DOCUMENT, QUESTION, REPLY = Segment("document", 5), Segment("question", 3), Segment("0/turn-0", 2)


def question(prompt, outputs=None, least=7):
    return ApiCall(prompt, outputs or {}, "client-1", 9, least)


def test_a_generate_body_holds_the_ids_of_segments_and_of_real_outputs():
    api = AskGenerate(VOCAB)
    body = json.loads(api.body(question((DOCUMENT, REPLY, QUESTION), {REPLY.key: b"40001,7"})))
    ids = [token_ids(segment, VOCAB).tolist() for segment in (DOCUMENT, QUESTION)]
    assert body["input_ids"] == [*ids[0], 40_001, 7, *ids[1]]
    assert body["sampling_params"] == {"max_new_tokens": 9, "min_new_tokens": 7, "temperature": 1.0}
    assert body["stream"] is True
    assert body["routing_key"] == "client-1"
    assert "ignore_eos" not in body["sampling_params"]


def test_a_completions_body_is_one_text():
    body = json.loads(
        AskCompletions("m").body(question((DOCUMENT, REPLY), {REPLY.key: b" wie geht's"}, None))
    )
    assert body["prompt"] == words_of(DOCUMENT).decode() + " wie geht's"
    assert body["model"] == "m"
    assert body["max_tokens"] == 9
    assert "min_tokens" not in body
    assert body["stream_options"] == {"include_usage": True}


def test_a_chat_body_gives_outputs_to_the_assistant_and_joins_adjacent_messages():
    second = Segment("0/turn-1", 1)
    outputs = {REPLY.key: b" yes", second.key: b" no"}
    prompt = (DOCUMENT, QUESTION, REPLY, second, QUESTION)
    body = json.loads(AskChat(None).body(question(prompt, outputs)))
    asked = words_of(QUESTION).decode()
    assert body["messages"] == [
        {"role": "user", "content": words_of(DOCUMENT).decode() + asked},
        {"role": "assistant", "content": " yes no"},
        {"role": "user", "content": asked},
    ]
    assert "model" not in body
    assert body["min_tokens"] == 7


@given(
    st.lists(st.binary(min_size=1, max_size=20).map(lambda b: b.hex().encode()), max_size=8),
    st.lists(st.integers(1, 9), max_size=60),
)
def test_events_are_read_whole_however_the_bytes_are_divided(payloads, cuts):
    wire = b": hello\n" + b"".join(
        b"event: x\r\ndata: %b\r\n\r\n" % payload for payload in payloads
    )
    splitter, got, at = EventSplitter(1000), [], 0
    for cut in [*cuts, len(wire)]:
        for event, _ in splitter.feed(wire[at : at + cut]):
            got += data_lines(event)
        at += cut
    assert got == payloads


def generate_event(ids, done, reason=None, **meta):
    meta |= {"prompt_tokens": 5, "completion_tokens": done, "cached_tokens": 2}
    return json.dumps({"output_ids": ids, "meta_info": meta | {"finish_reason": reason}}).encode()


@pytest.mark.parametrize("second", [[11, 12, 13], [12, 13]], ids=["cumulative", "incremental"])
def test_the_parts_of_a_generate_answer_add_up(second):
    answer = AskGenerate(VOCAB).answer()
    assert answer.take_event(generate_event([11], 1, queue_time=0.5)) == 1
    assert not answer.finished
    assert answer.take_event(generate_event(second, 3, {"type": "length"}, queue_time=0.9)) == 2
    assert answer.take_event(b"[DONE]") == 0
    assert answer.finished
    assert (answer.input_tokens, answer.cached_tokens, answer.output_tokens) == (5, 2, 3)
    assert answer.queue_s == 0.5  # cached tokens of the first admission
    assert answer.rendered() == b"11,12,13"


def test_openai_answers_without_usage_count_their_texts():
    answer = AskChat(None).answer()
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": " a"}}]},
        {"choices": [{"delta": {"content": " b c"}, "finish_reason": "length"}]},
    ]
    assert [answer.take_event(json.dumps(event).encode()) for event in events] == [0, 1, 1]
    assert answer.output_tokens == 2
    usage = {
        "prompt_tokens": 8,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert answer.take_event(json.dumps({"choices": [], "usage": usage}).encode()) == 0
    assert (answer.input_tokens, answer.cached_tokens, answer.output_tokens) == (8, 4, 3)
    assert answer.rendered() == b" a b c"


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b'{"error": {"message": "no room"}}', "no room"),
        (b'{"error": "no room"}', "no room"),
        (b"{junk", "the event does not match the server's API"),
        (b'{"output_ids": []}', "meta_info"),
        (generate_event([], 0, {"type": "abort", "message": "no room"}), "no room"),
    ],
)
def test_the_error_message_of_a_server_is_kept(payload, said):
    with pytest.raises(BadEvent, match=said):
        AskGenerate(VOCAB).answer().take_event(payload)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"base_url": "localhost:8000"}, "base_url localhost:8000: must start with http://"),
        ({"base_url": "http://h:port"}, "base_url"),
        ({"api": "complete"}, "Did you mean 'completions'"),
        ({"lengths": "exactly"}, "Did you mean 'exact'"),
        ({"max_concurrency": 0}, "max_concurrency = 0: must be at least 1"),
        ({"headers": {"x-key": "a\r\nb: c"}}, "header x-key"),
    ],
)
def test_impossible_targets_are_named(fields, said):
    with pytest.raises(UsageError, match=said):
        DriverTarget(**({"base_url": "http://127.0.0.1:1"} | fields))
