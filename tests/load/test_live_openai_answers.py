"""Test which replies hold an answer, and the reasons why others do not."""

import json

import pytest

from fairbench_load.openai import (
    NO_OUTPUT,
    Fault,
    StreamJudge,
    answered,
    choice_texts,
    whole_fault,
)

REFUSED = Fault("m", 400)  # the server refuses the request
STOPPED = {"finish_reason": "stop"}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def of(choice, **fields):
    return {"choices": [choice], **fields}


GOOD = [
    of({"text": "x"}),
    of({"text": " ", "finish_reason": "length"}),
    of({"text": "", **STOPPED}),
    of({"text": "", **STOPPED}, usage={"completion_tokens": 1}),
    of({"text": "", "finish_reason": "length"}, usage={"completion_tokens": 0}),
    of({"message": {"role": "assistant", "content": "x"}, "finish_reason": "eos_token"}),
    of({"message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "tool_calls"}),
    of({"message": {"content": None, "refusal": "no"}, **STOPPED}),
    of({"message": {"content": None, "reasoning": "thus"}, "finish_reason": "length"}),
    of({"message": {"content": [{"type": "text", "text": "x"}]}, **STOPPED}),
    of({"message": {"content": ""}, "finish_reason": "content_filter"}),
    of({"message": {"content": "x"}, **STOPPED}, error=None),
    {"text": "x", "meta_info": {"finish_reason": {"type": "stop", "matched": 2}}},
    {"text": "", "output_ids": [7], "meta_info": {"completion_tokens": 1}},
    {"text": "", "meta_info": {"completion_tokens": 0, "finish_reason": {"type": "length"}}},
    of({"text": "", "finish_reason": "MAX_TOKENS"}, usage={"completion_tokens": 0}),
    of({"message": {"content": None, "thinking": "thus"}, "finish_reason": "length"}),
]
BAD = [
    *({"error": error} for error in ("busy", {"message": "busy"}, {"message": "m", "code": 400})),
    {"object": "error", "message": "busy", "code": 503},
    {"object": "error"},
    {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
    {"detail": "Not Found"},
    {"message": "no Route matched"},
    {"status": "ok"},
    *({"choices": choices} for choices in (None, [], [{}], [{"message": None}], "x", [7])),
    of({**STOPPED}),
    of({"message": {"role": "assistant"}}),
    of({"message": {"content": ""}}),
    of({"message": {"content": [{"type": "text", "text": ""}]}}),
    of({"message": {"tool_calls": [{"id": "c", "type": "function", "index": 0}]}}),
    of({"message": {"content": ""}, **STOPPED}, usage={"completion_tokens": 0}),
    *(
        of({"message": {"content": ""}, **STOPPED}, usage=usage)
        for usage in ({"completion_tokens": 0.0}, {"output_tokens": 0})
    ),
    *(
        of({"message": {"content": "", "tool_calls": calls}, "finish_reason": reason})
        for calls, reason in (([], "tool_calls"), (None, "function_call"), ([{}], "tool_use"))
    ),
    of({"message": {"content": "half"}, "error": {"message": "overloaded"}}),
    *(
        of({"message": {"content": "half"}, "finish_reason": reason})
        for reason in ("abort", "error", "insufficient_system_resource", "cancelled", 7)
    ),
    {"meta_info": {"finish_reason": {"type": "stop"}}},
    {"text": "", "meta_info": {"completion_tokens": 3, "finish_reason": {"type": "abort"}}},
    {"usage": {"completion_tokens": 3}},
    *([], None, "x", 7),
]
BYTES = [b"", b"<html>", b'{"choices": [{"text": "x"', b"\xff\xfe", b"[" * 100_000, b"ok"]


@pytest.mark.parametrize("answer", GOOD, ids=json.dumps)
def test_answers_with_output_or_a_good_end_are_answers(answer):
    assert whole_fault(json.dumps(answer).encode()) is None


@pytest.mark.parametrize("answer", [*(json.dumps(one).encode() for one in BAD), *BYTES])
def test_answers_without_an_answer_are_faults(answer):
    assert whole_fault(answer) is not None


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ({"error": {"message": "m", "code": 400}}, Fault("m", 400)),
        ({"object": "error", "message": "m", "code": 503}, Fault("m", 503)),
        ({"error": {"message": "m", "code": "invalid_api_key"}}, Fault("m")),
        ({"error": "m", "code": 7}, Fault("m")),
        ({"error": {"message": "m", "code": "413"}}, Fault("m", 413)),
        ({"error": {"message": "m", "code": "0413"}}, Fault("m")),
        ({"error": {"message": "m", "code": 400.0}}, Fault("m", 400)),
        ({"error": {"message": "m", "type": "invalid_request_error", "code": None}}, REFUSED),
        ({"error": {"message": "m", "code": "context_length_exceeded"}}, REFUSED),
        ({"error": {"message": "m", "type": "server_error"}, "status": 503}, Fault("m", 503)),
        ({"object": "error", "message": "m", "type": "BadRequestError"}, REFUSED),
        ({"error": "m", "error_type": "validation"}, REFUSED),
        ({"detail": "m", "status_code": 422}, Fault("m", 422)),
        (
            {"meta_info": {"finish_reason": {"type": "abort", "err_type": "BadRequestError"}}},
            Fault("aborted: no reason given", 400),
        ),
        (of({"text": "x", "finish_reason": "cancelled"}), Fault("finish reason 'cancelled'")),
        (
            {"meta_info": {"finish_reason": {"type": "abort", "message": "m", "status_code": 504}}},
            Fault("aborted: m", 504),
        ),
        ({"choices": []}, NO_OUTPUT),
    ],
)
def test_a_fault_says_what_the_server_says(answer, fault):
    assert whole_fault(json.dumps(answer).encode()) == fault


def delta(content, **fields):
    return of({"delta": {"content": content}, **fields})


ROLE = of({"delta": {"role": "assistant", "content": ""}})


@pytest.mark.parametrize(
    ("events", "outputs", "fault"),
    [
        ([ROLE, delta("a"), delta("", **STOPPED)], [False, True, False], None),
        ([ROLE, delta(""), delta(None)], [False] * 3, NO_OUTPUT),
        ([ROLE, delta("", **STOPPED)], [False] * 2, None),
        (
            [ROLE, delta("", **STOPPED), {"choices": [], "usage": {"completion_tokens": 0}}],
            [False] * 3,
            NO_OUTPUT,
        ),
        (
            [{**ROLE, "usage": {"completion_tokens": 0}}, {**delta("a"), **STOPPED}],
            [False, True],
            None,
        ),
        ([of({"delta": {"tool_calls": [CALL]}})], [True], None),
        ([of({"delta": {"reasoning_details": [{"type": "x", "text": "a"}]}})], [True], None),
        (
            [{"text": "a", "meta_info": {"completion_tokens": n}} for n in (0, 1, 1, 2)],
            [False, True, False, True],
            None,
        ),
        ([ROLE, delta("", finish_reason="tool_calls")], [False] * 2, NO_OUTPUT),
        ([of({"delta": {"thinking": "thus"}}), delta("", **STOPPED)], [True, False], None),
        ([{"type": "ping"}], [False], NO_OUTPUT),
        ([], [], NO_OUTPUT),
    ],
)
def test_only_new_output_of_a_stream_counts_as_output(events, outputs, fault):
    judge = StreamJudge()
    found = [judge.judge_event(json.dumps(event).encode()) for event in events]
    assert [one.output for one in found] == outputs
    assert [one.fault for one in found] == [None] * len(events)
    assert judge.end_fault() == fault


@pytest.mark.parametrize("data", [b"{}", b'{"message": "busy"}', b'{"text": "busy"}'])
def test_an_event_named_error_is_a_fault(data):
    assert StreamJudge().judge_event(data, "error").fault is not None


def test_texts_of_deeply_nested_output_are_found():
    depth = 900
    content = "[" * depth + '"x"' + "]" * depth
    answer = answered(b'{"choices": [{"message": {"content": %b}}]}' % content.encode())
    assert list(choice_texts(answer.choices[0])) == ["x"]
