"""Test which streams hold an answer, when its tokens arrived, and how many there are."""

import json

import pytest

from fairbench_load.driver import connection as sse_client
from fairbench_load.driver.server_apis import AskChat, AskCompletions, AskGenerate, BadEvent
from fairbench_load.summary import error_counts, first_messages
from tests.load.live_driving import VOCAB, answered_by

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def chat(delta=None, reason=None, **choice):
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": reason, **choice}]}


def completion(text="", reason=None):
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}


def generate(tokens=0, reason=None, **fields):
    meta = {"prompt_tokens": 9, "completion_tokens": tokens, "finish_reason": reason}
    return {"output_ids": list(range(tokens)), "meta_info": meta, **fields}


ROLE, TEXT, STOP = (
    chat({"role": "assistant", "content": ""}),
    chat({"content": "a"}),
    chat({}, "stop"),
)
DONE = b"[DONE]"
APIS = {
    AskChat(None): (TEXT, lambda reason: chat({}, reason)),
    AskCompletions(None): (completion("a"), lambda reason: completion("", reason)),
    AskGenerate(VOCAB): (generate(1), lambda reason: generate(1, reason and {"type": reason})),
}


def data(event):
    return event if isinstance(event, bytes) else json.dumps(event).encode()


def answer_of(events, ask=None):
    """Return the answer in a stream's events, and the number of new tokens in each event."""
    answer = (ask or AskChat(None)).answer()
    return answer, [answer.take_event(data(event)) for event in events]


each_api = pytest.mark.parametrize("ask", APIS, ids=lambda ask: type(ask).__name__)


@each_api
@pytest.mark.parametrize(
    "reason",
    ["insufficient_system_resource", "error", "cancelled", "timeout", "network_error", "unknown"],
)
def test_a_finish_reason_that_is_not_good_is_a_failure(ask, reason):
    text, end = APIS[ask]
    with pytest.raises(BadEvent, match=f"finish reason '{reason}'"):
        answer_of([text, end(reason), DONE], ask)


@each_api
@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "STOP", "eos_token", None])
def test_a_good_finish_reason_or_done_ends_an_answer(ask, reason):
    text, end = APIS[ask]
    answer, _ = answer_of([text, end(reason), DONE], ask)
    assert (answer.finished, answer.fault()) == (True, None)
    if reason is not None:
        assert answer_of([text, end(reason)], ask)[0].fault() is None  # without [DONE]


@each_api
def test_a_stream_without_finish_reason_and_done_is_cut(ask):
    text, end = APIS[ask]
    for events in ([], [text], [text, end(None)], [text, text, b""]):
        assert answer_of(events, ask)[0].fault().startswith("stream cut:")


@pytest.mark.parametrize(
    ("ask", "events"),
    [
        (AskChat(None), [DONE]),
        (AskChat(None), [ROLE, DONE]),
        (AskChat(None), [ROLE, STOP, DONE]),
        (AskChat(None), [ROLE, chat({"content": None}), chat({"tool_calls": []}, "stop"), DONE]),
        (AskChat(None), [STOP, {"choices": [], "usage": {**USAGE, "completion_tokens": 0}}, DONE]),
        (AskChat(None), [{"choices": []}, {"type": "ping"}, DONE]),
        (AskCompletions(None), [completion("", "stop"), DONE]),
        (AskGenerate(VOCAB), [generate(0, {"type": "stop"}), DONE]),
        (AskGenerate(VOCAB), [DONE]),
    ],
)
def test_a_stream_without_output_is_no_answer(ask, events):
    assert answer_of(events, ask)[0].fault() == "no answer: an answer without output"


@pytest.mark.parametrize(
    "events",
    [
        [
            ROLE,
            STOP,
            {"choices": [], "usage": {**USAGE, "completion_tokens": 1}},
        ],  # no visible text
        [ROLE, chat({}, "length"), DONE],
        [ROLE, chat({}, "content_filter"), DONE],
    ],
)
def test_an_answer_without_text_may_have_tokens(events):
    assert answer_of(events)[0].fault() is None


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "broke"}},
        {"error": "broke"},
        {"object": "error", "message": "broke"},
        {"detail": "broke"},
        chat(error={"message": "broke"}),
    ],
)
@each_api
def test_an_error_in_the_stream_is_a_failure(ask, event):
    with pytest.raises(BadEvent, match="broke"):
        answer_of([APIS[ask][0], event], ask)


CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "find", "arguments": ""}}
MORE = {"index": 0, "function": {"arguments": '{"city":'}}


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"tool_calls": [CALL]}, "find"),
        ({"content": None, "tool_calls": [MORE]}, '{"city":'),
        ({"function_call": {"name": "find", "arguments": ""}}, "find"),
        ({"reasoning": "hm"}, "hm"),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "hm", "index": 0}]}, "hm"),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]}, "hm"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}]}, "t"),
        ({"refusal": "no"}, "no"),
    ],
)
def test_the_first_output_of_any_kind_is_the_first_token(delta, text):
    answer, tokens = answer_of([ROLE, chat(delta), STOP, DONE])
    assert tokens == [0, 1, 0, 0]
    assert answer.rendered() == text.encode()
    assert answer.fault() is None


PARTS = [ROLE, TEXT, TEXT, TEXT]


@pytest.mark.parametrize(
    "events",
    [
        [*PARTS, STOP, {"choices": [], "usage": USAGE}],
        [*PARTS, {**STOP, "usage": USAGE}],
        [*PARTS, chat({}, "stop", usage=USAGE)],  # Moonshot
        [*PARTS, {**STOP, "x_groq": {"id": "q", "usage": USAGE}}],
        [*PARTS, {**STOP, "usage": None, "metadata": {"model": {"usage": USAGE}}}],
        [*PARTS, chat({"usage": USAGE}, "stop")],
        [*PARTS, {**chat({}, "stop", usage=USAGE), "usage": {}}],
        [*PARTS[:2], {"choices": [], "usage": USAGE}, *PARTS[2:], STOP],  # in the middle
        [{**ROLE, "usage": USAGE}, *PARTS[1:], STOP],
        [*PARTS, STOP, {"usage": {"input_tokens": 11, "output_tokens": 7}}],
        [{**one, "usage": {**USAGE, "completion_tokens": n}} for n, one in enumerate(PARTS)]
        + [{**STOP, "usage": USAGE}],
    ],
)
def test_usage_is_read_wherever_it_stands(events):
    answer, tokens = answer_of([*events, DONE])
    assert (answer.input_tokens, answer.output_tokens, answer.estimated) == (11, 7, False)
    assert sum(tokens) == 3


@pytest.mark.parametrize(
    ("events", "output"),
    [
        ([*PARTS, STOP], 3),
        ([*PARTS, {**STOP, "usage": {"prompt_tokens": 11, "completion_tokens": 0}}], 3),
        ([*PARTS, {**STOP, "usage": {"completion_tokens": 7}}], 7),  # the prompt is not counted
        ([{**ROLE, "usage": {**USAGE, "completion_tokens": 1}}, *PARTS[1:], STOP], 3),
        ([*PARTS, {**STOP, "timing": {"total": 4}}], 3),
    ],
)
def test_counts_that_are_not_reported_are_estimated(events, output):
    answer, _ = answer_of([*events, DONE])
    assert (answer.output_tokens, answer.estimated) == (output, True)


@pytest.mark.parametrize(
    "cached",
    [
        {"prompt_tokens_details": {"cached_tokens": 5}},
        {"input_tokens_details": {"cached_tokens": 5.0}},
        {"cached_tokens": 5},
        {"prompt_cache_hit_tokens": 5, "prompt_cache_miss_tokens": 6},
    ],
)
def test_cached_tokens_are_read_under_any_name(cached):
    assert answer_of([TEXT, {**STOP, "usage": USAGE | cached}])[0].cached_tokens == 5
    assert answer_of([TEXT, {**STOP, "usage": USAGE}])[0].cached_tokens is None


def test_a_final_usage_may_count_fewer_tokens_than_events():
    answer, _ = answer_of(
        [*PARTS, STOP, {"choices": [], "usage": {**USAGE, "completion_tokens": 2}}]
    )
    assert (answer.output_tokens, answer.estimated) == (2, False)


@pytest.mark.parametrize("place", ["usage", "x_groq"])
@pytest.mark.parametrize("count", [-1, -2.0, "7", 1.5, False, 2**60, 1e300])
def test_an_impossible_count_is_a_failure_wherever_it_stands(place, count):
    usage = {"prompt_tokens": 3, "completion_tokens": count}
    with pytest.raises(BadEvent, match="the event does not match the server's API"):
        answer_of([TEXT, {**STOP, place: usage if place == "usage" else {"usage": usage}}])


def test_a_usage_that_is_nested_too_deeply_is_a_failure():
    deep = b'{"choices": [], "more": ' + b"[" * 5_000 + b"]" * 5_000 + b', "a_tokens": 1}'
    with pytest.raises(BadEvent, match="the event does not match the server's API"):
        answer_of([TEXT, deep])


@pytest.mark.parametrize("tokens", [-1, "3", 2.5, 2**60])
def test_an_impossible_count_of_sglang_is_a_failure(tokens):
    meta = {"prompt_tokens": 3, "completion_tokens": tokens, "finish_reason": None}
    with pytest.raises(BadEvent, match="the event does not match the server's API"):
        answer_of([{"output_ids": [], "meta_info": meta}], AskGenerate(VOCAB))


@pytest.mark.parametrize("queue_s", [1e300, -1e300, "1", [1]])
def test_an_impossible_queue_time_is_a_failure_and_not_an_unreadable_record(queue_s):
    meta = {"prompt_tokens": 3, "completion_tokens": 1, "queue_time": queue_s}
    with pytest.raises(BadEvent, match="the event does not match the server's API"):
        answer_of([{"output_ids": [5], "meta_info": meta}], AskGenerate(VOCAB))


@each_api
@pytest.mark.parametrize("late", [b'{"error": {"message": "late"}}', b"bye", DONE])
def test_nothing_after_the_last_event_makes_a_whole_answer_fail(ask, late):
    output, ended = APIS[ask]
    answer, _ = answer_of([output, ended("stop"), DONE, late], ask)
    assert answer.fault() is None


@pytest.mark.parametrize("half", ["\\ud83d", "\\uDE00", "a\\ud83d\\ud83d", "\\\\\\ude00"])
def test_half_a_pair_of_utf16_is_output(half):
    event = b'{"choices": [{"index": 0, "delta": {"content": "%b"}}]}' % half.encode()
    answer, tokens = answer_of([event, STOP, DONE])
    assert (tokens[0], answer.fault()) == (1, None)
    assert "\ufffd" in answer.rendered().decode()


def test_sglang_counts_ids_where_it_reports_no_count():
    events = [{"output_ids": [n], "meta_info": {"id": "x"}} for n in (5, 6)]
    events.append({"output_ids": [], "meta_info": {"finish_reason": {"type": "length"}}})
    answer, tokens = answer_of([*events, DONE], AskGenerate(VOCAB))
    assert (tokens, answer.output_tokens, answer.estimated) == ([1, 1, 0, 0], 2, True)
    assert answer.rendered() == b"5,6"


# over HTTP

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def stream(*events, head=HEAD):
    return head + b"".join(b"data: %b\n\n" % data(event) for event in events)


GOOD = stream(TEXT, {**STOP, "usage": USAGE}, DONE)


def errors_of(reply):
    records, _ = answered_by([], reply, api="chat")
    return error_counts(records.requests), first_messages(records.requests)


@pytest.mark.parametrize(
    "interim",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nx-fairbench-worker: 9\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n",
    ],
)
def test_interim_responses_are_read_over(interim):
    records, asked = answered_by([], interim + GOOD, api="chat")
    assert {(r.status, r.error, r.worker) for r in records.requests} == {("finished", None, 0)}
    assert asked == 2


@pytest.mark.parametrize("number", [b"9" * 30, b"-1", b"1e3", "²".encode(), b"0x1"])
def test_an_impossible_worker_in_a_header_is_unknown(number):
    """A number of 30 digits made the records of the whole run unreadable."""
    reply = HEAD.replace(b"\r\n\r\n", b"\r\nX-Fairbench-Worker: " + number + b"\r\n\r\n")
    records, _ = answered_by([], reply + stream(TEXT, STOP, DONE, head=b""), api="chat")
    assert {(r.status, r.worker) for r in records.requests} == {("finished", -1)}


@pytest.mark.parametrize("stays_open", [False, True])
def test_an_answer_is_whole_at_its_last_event(stays_open, monkeypatch):
    """The driver does not wait for the end of the connection until a stream counts as silent."""
    monkeypatch.setattr(sse_client, "END_S", 0.01)
    records, _ = answered_by([], GOOD, api="chat", stays_open=stays_open, idle_timeout_s=1e6)
    assert {(r.status, r.error, len(r.chunk_s)) for r in records.requests} == {
        ("finished", None, 1)
    }


def test_a_mark_of_the_byte_order_hides_no_output():
    reply = HEAD + b"\xef\xbb\xbf" + stream(TEXT, STOP, DONE, head=b"")
    records, _ = answered_by([], reply, api="chat")
    assert {(r.status, r.output_tokens) for r in records.requests} == {("finished", 1)}


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (stream(TEXT), "stream cut", None),
        (HEAD, "stream cut", None),
        (HEAD + b"data: " + data(STOP)[:-9], "stream cut", None),
        (stream(ROLE, STOP, DONE), "no answer", "an answer without output"),
        (HEAD + b'{"error": {"message": "overloaded"}}', "no answer", "overloaded"),
        (HEAD + b"<html>busy</html>\n", "no answer", "<html>busy</html>"),
        (stream(TEXT) + b"event: error\ndata: {}\n\ndata: [DONE]\n\n", "stream error", "error"),
        (
            stream(TEXT, chat({}, "insufficient_system_resource"), DONE),
            "stream error",
            "finish reason 'insufficient_system_resource'",
        ),
        (
            HEAD.replace(b"\r\n\r\n", b"\r\nContent-Length: 999\r\n\r\n") + stream(TEXT, head=b""),
            "disconnected",
            None,
        ),
    ],
)
def test_the_reason_of_a_failure_is_named(reply, kind, said):
    assert errors_of(reply) == ({kind: 2}, {kind: said} if said else {})


@pytest.mark.parametrize(
    "reply",
    [GOOD, GOOD[:-1], GOOD[:-2], stream(TEXT, STOP)[:-2]],
)
def test_a_whole_answer_may_lack_its_last_line_end(reply):

    records, _ = answered_by([], reply, api="chat")
    assert {(r.status, r.error) for r in records.requests} == {("finished", None)}


def test_an_event_without_end_is_an_error(monkeypatch):
    monkeypatch.setattr(sse_client, "MAX_EVENT_BYTES", 1000)
    kinds, said = errors_of(HEAD + b"data: " + b"x" * 5000)
    assert kinds == {"stream error": 2}
    assert said == {"stream error": "an event has more than 1000 bytes"}


def test_lines_of_data_without_a_blank_line_between_them_are_read_one_by_one():
    """Some servers forget the blank line, so each line is an event."""
    reply = HEAD + b"".join(b"data: %b\n" % data(one) for one in (TEXT, STOP, DONE)) + b"\n"
    records, _ = answered_by([], reply, api="chat")
    assert {(r.status, r.output_tokens) for r in records.requests} == {("finished", 1)}
