"""Test that a failure never counts as a success, whatever the name of its column."""

import json

import pytest

from fairbench.metrics.records import REFUSED
from fairbench_logs.scoring.records import read_scored

ROW = {"client": "a", "ttft": 0.1, "latency": 1.0, "input_tokens": 9, "output_tokens": 5}


def scored(tmp_path, column, good, bad, **more):
    """Score ten requests. The fourth has the value ``bad`` in the column, all others ``good``."""
    rows = [{**ROW, "start": at, column: bad if at == 3 else good} for at in range(10)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return read_scored([tmp_path / "log.jsonl"], **more)


def as_csv(tmp_path, column, good, bad):
    lines = [f"a,{at},0.1,1,9,5,{bad if at == 3 else good}" for at in range(10)]
    header = f"client,start,ttft,latency,input_tokens,output_tokens,{column}"
    (tmp_path / "log.csv").write_text("\n".join([header, *lines]))
    return read_scored([tmp_path / "log.csv"])


def ended(scored):
    """Return the failed requests, and those that were refused."""
    refused = int((scored.requests.status == REFUSED).sum())
    return scored.failed, refused - scored.failed


FAILURES = [
    *(("success", True, False), ("success", 1, 0), ("is_success", "yes", "no")),
    *(("Succeeded", "True", "False"), ("ok", "true", "false"), ("status", True, False)),
    *(("status_code", 200, 500), ("http_status", "200 OK", "503 Service Unavailable")),
    *(("statusCode", 200.0, 502.0), ("response_code", "HTTP/1.1 200 OK", "504")),
    *(("error_message", None, "out of memory"), ("errorMsg", "", "boom"), ("exception", "-", "E")),
    *(("error_code", 0, 7), ("failure_reason", "none", "cut off"), ("error_type", "n/a", "IO")),
    *(("failed", False, True), ("is_error", 0, 1), ("aborted", "false", "true")),
    *(("finish_reason", "stop", "abort"), ("stop_reason", "end_turn", "error")),
    *(("status", "done", "disconnected"), ("status", "Passed", "KILLED")),
    *(("error", {}, {"code": 500}), ("error", [], ["boom"]), ("error", "-", "boom")),
    *(
        ("was_cancelled", False, True),
        ("outcome", "success", "failed"),
        ("result", "ok", "timeout"),
    ),
    *(("state", "FINISHED", "FAILED"), ("response_status_code", 200, 503), ("code", 200, 503)),
    *(("http.response.status_code", 200, 503), ("status_code", 200, 0), ("status", "200", "-1")),
    *(("grpc_status", 0, 14), ("rpc.grpc.status_code", "OK", "UNAVAILABLE"), ("success", "t", "f")),
    *(("response", {"status": 200}, {"status": 500}), ("meta", {"ok": True}, {"ok": False})),
    *(("response", {"error": None}, {"error": "boom"}), ("cancelled", "f", "t")),
    *(("result", {"finish_reason": {"type": "stop"}}, {"finish_reason": {"type": "abort"}}),),
    *(("error", "[]", "['boom']"), ("error", "0.0", "1.0"), ("error", "no error", "boom")),
    *(("error", "ok", "boom"), ("error_code", 200, 500), ("failed", "n", "y")),
    ("error_code", 0, 110),  # a timeout, as Linux numbers it
    *(("error.type", None, "TimeoutError"), ("exception.type", None, "TimeoutError")),
    *(("code", 200, 0), ("code", "200", "-1")),
]


@pytest.mark.parametrize(("column", "good", "bad"), FAILURES)
def test_a_failure_counts_in_any_column(tmp_path, column, good, bad):
    assert ended(scored(tmp_path, column, good, bad)) == (1, 0)


@pytest.mark.parametrize(
    ("column", "good", "bad"),
    [row for row in FAILURES if not isinstance(row[1], list | dict | type(None))],
)
def test_a_failure_given_as_text_counts(tmp_path, column, good, bad):
    assert ended(as_csv(tmp_path, column, good, bad)) == (1, 0)


@pytest.mark.parametrize(
    ("column", "good", "bad"),
    [("status_code", 200, 429), ("http_status", 200, "403"), ("grpc_code", "OK", 8)],
)
def test_a_status_marks_refused_requests(tmp_path, column, good, bad):
    assert ended(scored(tmp_path, column, good, bad)) == (0, 1)


@pytest.mark.parametrize(
    ("column", "good", "other"),
    [
        ("finish_reason", "stop", "length"),
        ("finish_reason", "tool_calls", None),
        ("status_code", 0, 7),  # not a code of HTTP
        ("response_status", "green", "red"),
        ("timeout", 30, 60),  # a limit
        ("failures", 0, 3),
        ("exceptions", "", "some"),
        ("code", 0, 503),  # a column without a code of success
        ("state", "CA", "OK"),
        *(("result", "approved", "rejected"), ("outcome", {}, "failed")),  # no word of success
        ("result", "true", "false"),  # an answer
        ("result", "17", "404"),
        ("response", {"status": "completed"}, {"status": "incomplete"}),  # cut at the limit
        ("tool", {"status_code": 200}, {"status_code": 500}),
        ("response", {"state": "done"}, {"state": "failed"}),
    ],
)
def test_other_values_are_not_failures(tmp_path, column, good, other):
    assert ended(scored(tmp_path, column, good, other)) == (0, 0)


def test_the_status_of_a_row_comes_first(tmp_path):
    rows = [
        {**ROW, "start": 0, "status": "ok", "status_code": 500},
        {**ROW, "start": 1, "status": "", "status_code": 500},
        {**ROW, "start": 2, "status": None, "success": True},
        {**ROW, "start": 3, "status": None, "success": True, "exception": "boom"},
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert ended(read_scored([tmp_path / "log.jsonl"])) == (2, 0)


def test_a_user_may_map_another_column(tmp_path):
    for column in ("status", "error"):
        found = scored(tmp_path, "success", True, False, names={column: "absent"})
        assert ended(found) == (0, 0)
    odd = scored(tmp_path, "response_status", "green", "red", names={"status": "response_status"})
    assert ended(odd) == (0, 0)
    assert odd.remarks == (
        "9 requests, each of which has the unknown status 'green', and is judged by the other "
        "fields",
        "1 request that has the unknown status 'red', and is judged by the other fields",
    )


def test_an_aborted_request_of_sglang_failed(tmp_path):
    meta = {"prompt_tokens": 9, "completion_tokens": 5, "e2e_latency": 1.0, "ttft": 0.1}
    lines = [
        {
            "event": "request.finished",
            "rid": f"{at}",
            "timestamp": at + 1.0,
            "out": {"meta_info": one},
        }
        for at in range(10)
        for one in [meta | {"finish_reason": {"type": "abort" if at == 3 else "stop"}}]
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert ended(read_scored([tmp_path / "log.jsonl"])) == (1, 0)
