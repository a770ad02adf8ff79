"""Test the peculiar answers of each server, and the other requests that servers get."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from math import inf, nan

import pytest
from pydantic import ValidationError

from fairbench.config.resolve import resolve
from fairbench.core import Segment
from fairbench_load.backends.base import LiveOptions
from fairbench_load.backends.workers import live_backend
from fairbench_load.driver.connection import waiting_s
from fairbench_load.driver.server_apis import (
    ApiCall,
    AskChat,
    AskCompletions,
    AskGenerate,
    BadEvent,
)
from fairbench_load.kinds import Endpoint
from fairbench_load.summary import first_messages
from tests.load.live_driving import SCALE, VOCAB, answered_by

QUESTION = ApiCall((Segment("a", 3),), {}, "ann", 7, 7)


def chat_event(delta=None, finish_reason=None, **more):
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish_reason}
    return json.dumps({"id": "x", "choices": [choice]} | more).encode()


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning"])
def test_thinking_tokens_count_as_output_under_any_name(field):
    answer = AskChat(None).answer()
    assert answer.take_event(chat_event({"role": "assistant"})) == 0
    assert answer.take_event(
        chat_event({field: "Hm", "content": "Hm" if field == "content" else None})
    )
    assert answer.take_event(chat_event({field: "."})) == 1
    assert (answer.output_tokens, answer.rendered()) == (2, b"Hm.")


@pytest.mark.parametrize("reasoning", [{"effort": "low"}, [], "", None, 3])
def test_reasoning_that_is_not_text_does_not_count_as_output(reasoning):
    answer = AskChat(None).answer()
    assert answer.take_event(chat_event({"reasoning": reasoning})) == 0
    assert answer.take_event(chat_event({"reasoning": reasoning, "content": "a"})) == 1


ABORTED = {
    AskChat(None): chat_event(finish_reason="abort"),
    AskCompletions(None): json.dumps(
        {"choices": [{"text": "", "finish_reason": "abort"}]}
    ).encode(),
    AskGenerate(VOCAB): json.dumps({"meta_info": {"finish_reason": "abort"}}).encode(),
}


@pytest.mark.parametrize("ask", ABORTED, ids=lambda ask: type(ask).__name__)
def test_an_answer_that_was_aborted_is_a_failure_in_every_api(ask):
    with pytest.raises(BadEvent, match="aborted: no reason given"):
        ask.answer().take_event(ABORTED[ask])


def test_the_reason_of_an_abort_is_reported():
    meta = {"finish_reason": {"type": "abort", "message": "too long"}}
    for ask in (AskGenerate(VOCAB), AskChat(None)):
        event = chat_event(finish_reason=meta["finish_reason"], meta_info=meta)
        with pytest.raises(BadEvent, match="aborted: too long"):
            ask.answer().take_event(event)


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter"])
def test_other_reasons_end_an_answer(reason):
    answer = AskChat(None).answer()
    answer.take_event(chat_event(finish_reason=reason))
    assert answer.finished


@pytest.mark.parametrize("choices", [None, []])
@pytest.mark.parametrize("count", [12, 12.0])
def test_the_last_chunk_may_lack_choices_and_holds_the_counts(choices, count):
    usage = {"prompt_tokens": count, "completion_tokens": count}
    usage["prompt_tokens_details"] = {"cached_tokens": count}
    answer = AskChat(None).answer()
    answer.take_event(json.dumps({"choices": choices, "usage": usage}).encode())
    found = (answer.input_tokens, answer.output_tokens, answer.cached_tokens)
    assert found == (12, 12, 12)
    assert {type(one) for one in found} == {int}


@pytest.mark.parametrize("count", [12.5, "12", True, [1]])
def test_an_event_with_an_invalid_count_is_an_error(count):
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": count}}).encode()
    with pytest.raises(BadEvent, match="the event does not match the server's API"):
        AskChat(None).answer().take_event(usage)


def test_extra_fields_are_sent_with_every_request():
    extra = {"temperature": None, "min_tokens": None, "chat_template_kwargs": {"thinking": False}}
    for ask in (AskChat("m", extra), AskCompletions("m", extra), AskGenerate(VOCAB, extra)):
        body = json.loads(ask.body(QUESTION))
        assert body["chat_template_kwargs"] == {"thinking": False}
        assert not {"temperature", "min_tokens"} & set(body)
    body = json.loads(AskChat("m", most="max_completion_tokens").body(QUESTION))
    assert (body["max_completion_tokens"], "max_tokens" in body) == (7, False)


def endpoint(**fields):
    return Endpoint(base_url="http://127.0.0.1:1", **fields)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1]", "must be a JSON object"),
        ("{oops", "the extra body must be a JSON object: extra_body: not JSON"),
        ('{"stream": false}', "stream is set by fairbench itself"),
        ('{"max_tokens": 3}', "max_tokens is set by fairbench itself"),
        ('{"max_completion_tokens": 3}', "by --max-tokens-field"),
        ('{"a": NaN}', "NaN is not allowed in JSON"),
    ],
)
def test_impossible_fields_are_named(text, complaint):
    with pytest.raises(ValidationError, match=complaint):
        endpoint(extra_body=text)
    assert endpoint(extra_body='{"a": {"b": 1}}').extra_fields == {"a": {"b": 1}}


def test_the_wait_that_a_server_asks_for_is_read():
    assert [waiting_s(text) for text in (b"3", b" 2.5 ", b"99999")] == [3.0, 2.5, 99_999.0]
    assert {waiting_s(text) for text in (b"", b"soon", b"-4", b"nan", b"1e3", b"\xb2")} == {1.0}
    assert waiting_s(b"9" * 500) == inf
    later = datetime.now(UTC) + timedelta(seconds=30)
    assert 25 < waiting_s(format_datetime(later, usegmt=True).encode()) <= 30
    assert waiting_s(b"Wed, 21 Oct 2015 07:28:00 GMT") == waiting_s(b"0") == 0.1


META = {"prompt_tokens": 9, "completion_tokens": 1, "finish_reason": {"type": "stop"}}
ANSWER = json.dumps({"output_ids": [17], "meta_info": META}).encode()
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: %b\n\n" % ANSWER


def refusal(status, body, *headers):
    lines = [f"HTTP/1.1 {status} No", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


BUSY = refusal(429, '{"error": {"message": "slow down"}}', "Retry-After: 0")


@pytest.mark.parametrize(("choice", "asked", "finished"), [("fail", 2, 0), ("wait", 4, 2)])
def test_a_request_to_a_busy_server_fails_or_is_sent_again(choice, asked, finished):
    records, count = answered_by([BUSY, BUSY], OK, rate_limited=choice)
    assert count == asked
    assert [r.status for r in records.requests].count("finished") == finished
    # A retried request counts as sent at its first attempt, at least 0.1 s before the retry.
    lasted_s = sum(r.finish_s - r.submit_s for r in records.requests if r.finish_s is not None)
    assert lasted_s > 0.19 * SCALE if choice == "wait" else lasted_s == 0


@pytest.mark.parametrize(("asks", "least", "most"), [("0", 4, 12), ("3600", 2, 2)])
def test_the_total_retry_time_is_limited(asks, least, most):
    """The server always refuses. Two requests retry at least 0.1 s apart."""
    busy = refusal(429, "busy", f"Retry-After: {asks}")
    records, count = answered_by([busy] * 99, OK, rate_limited="wait", longest_wait_s=0.5)
    assert least <= count <= most
    assert {(r.status, r.error) for r in records.requests} == {("refused", "HTTP 429: busy")}


def test_a_flag_limits_the_wait_of_a_request_which_is_ten_minutes_by_default():
    for more, longest_s in ({}, 600.0), ({"longest_wait_s": 3}, 3.0):
        fields = {"base_url": "http://127.0.0.1:1", "rate_limited": "wait", **more}
        backend = live_backend(resolve({"backend": fields}))
        assert backend.target("http://127.0.0.1:1", LiveOptions()).longest_wait_s == longest_s


@pytest.mark.parametrize("wrong", [0, -1, inf, nan])
def test_an_impossible_wait_is_named(wrong):
    with pytest.raises(ValidationError, match="longest_wait_s"):
        endpoint(longest_wait_s=wrong)


def test_other_refusals_are_not_retried():
    records, count = answered_by(
        [refusal(503, "busy", "Retry-After: 0")] * 2, OK, rate_limited="wait"
    )
    assert (count, {record.status for record in records.requests}) == (2, {"refused"})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            '{"error": {"message": "max_tokens is too large: 9", "code": 400}}',
            "max_tokens is too large: 9",
        ),
        ('{"object": "error", "message": "no \\"m\\" here"}', 'no "m" here'),
        ('{"detail": "unknown field"}', "unknown field"),
        ("plain   text\n", "plain text"),
        ("", ""),
        ("\u001b[31mred", "\\x1b[31mred"),
    ],
)
def test_the_message_of_a_server_is_reported(body, said):
    records, _ = answered_by([refusal(400, body)] * 2, OK)
    assert first_messages(records.requests) == {"HTTP 400": said}
