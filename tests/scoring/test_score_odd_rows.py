"""Test odd rows: missing identities, disguised failures, unusual words and units."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError
from fairbench.metrics.records import FINISHED, REFUSED, UNFINISHED
from fairbench_logs.scoring.records import read_scored
from tests.scoring.foreign_helpers import REQUESTS, bench, lines

ROW = {"client": "a", "start": 0.0, "ttft": 0.5, "latency": 2.0}
ROW |= {"input_tokens": 100, "output_tokens": 21}


def rows_of(*changes):
    """Return a row per second with its changes. ``...`` removes a field."""
    made = [ROW | {"start": float(at)} | one for at, one in enumerate(changes)]
    return [{key: one for key, one in row.items() if one is not ...} for row in made]


def scored_rows(path, *changes, **options):
    return read_scored([lines(path / "r.jsonl", rows_of(*changes))], **options)


def summary_of(file, *flags):
    result = CliRunner().invoke(app, ["score", str(file), *flags, "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.parametrize("field", ["session", "program", "conversation_id"])
@pytest.mark.parametrize(
    "nothing", [None, "", "  ", "nan", "None", "NULL", "NA", "N/A", float("nan"), ...]
)
def test_a_row_without_a_program_is_a_separate_program(tmp_path, field, nothing):
    ids = ["s", nothing, "s", nothing, nothing]
    programs = scored_rows(tmp_path, *({field: one} for one in ids)).programs
    assert sorted(programs.requests.tolist()) == [1, 1, 1, 2]


@pytest.mark.parametrize("kind", [pa.string(), pa.float64(), pa.int64()])
def test_a_row_of_parquet_without_a_program_is_a_separate_program(tmp_path, kind):
    ids = [None if one is None else pa.scalar(one).cast(kind) for one in (7, None, 7, None)]
    table = pa.Table.from_pylist(rows_of({}, {}, {}, {}))
    table = table.append_column("session", pa.array([i and i.as_py() for i in ids], kind))
    pq.write_table(table, tmp_path / "r.parquet")
    assert sorted(read_scored([tmp_path / "r.parquet"]).programs.requests.tolist()) == [1, 1, 2]


def test_a_row_of_csv_without_a_program_is_a_separate_program(tmp_path):
    text = "start,client,session,ttft,latency,input_tokens,output_tokens\n"
    text += "".join(
        f"{n},a,{one},1,2,3,4\n" for n, one in enumerate(["7", "", "NaN", "7", "None", "null"])
    )
    (tmp_path / "r.csv").write_text(text)
    assert sorted(read_scored([tmp_path / "r.csv"]).programs.requests.tolist()) == [1, 1, 1, 1, 2]


def test_rows_of_two_files_without_a_program_are_different_programs(tmp_path):
    files = []
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        files.append(lines(tmp_path / name / "r.jsonl", rows_of({"session": None})))
    assert read_scored(files).programs.requests.tolist() == [1, 1]


@pytest.mark.parametrize("layout", ["vllm", "sglang"])
@pytest.mark.parametrize("said", ["", None])
def test_a_failure_without_a_reason_is_a_failure(tmp_path, layout, said):
    record = bench(REQUESTS, errors=[said] * 3, ttfts=[1.0, 1.0, 0.0], completed=2)
    if layout == "sglang":
        del record["start_times"]
        record |= {"request_rate": float("inf"), "max_concurrency": None}
    scored = read_scored([lines(tmp_path / "a.jsonl", [record])])
    assert scored.layouts == (layout,)
    assert scored.requests.status.tolist() == [FINISHED, FINISHED, REFUSED]
    assert scored.failed == 1
    assert scored.remarks == (
        "1 request that ended without any output token, and counts as failed",
    )


@pytest.mark.parametrize(("completed", "said"), [(2, False), (3, True), (None, False)])
def test_a_file_whose_own_totals_differ_is_reported(tmp_path, completed, said):
    file = lines(tmp_path / "a.jsonl", [bench(REQUESTS, completed=completed)])
    notes = summary_of(file)["notes"]
    told = "a.jsonl says that 3 requests completed, but has records of 2"
    assert (notes.get("records") == told) is said


def test_one_token_has_no_gap_and_is_not_a_failure(tmp_path):
    record = bench(REQUESTS[:2], itls=[[], []], output_lens=[1, 1])
    assert read_scored([lines(tmp_path / "a.jsonl", [record])]).failed == 0


def litellm(n, tokens, **more):
    """Return a row of LiteLLM's table of spend."""
    row = {"request_id": f"chatcmpl-{n}", "call_type": "acompletion", "user": "ann"}
    row |= {"startTime": f"2026-05-01T12:00:0{n}Z", "endTime": f"2026-05-01T12:00:0{n + 1}Z"}
    row |= {"completionStartTime": f"2026-05-01T12:00:0{n}.5Z", "prompt_tokens": 10}
    return row | {"completion_tokens": tokens} | more


@pytest.mark.parametrize(
    "failure", [{}, {"status": "failure"}, {"prompt_tokens": 0}, {"completionStartTime": None}]
)
def test_failures_of_litellm_have_no_tokens(tmp_path, failure):
    records = [litellm(0, 5), litellm(1, 0, **failure), litellm(2, 7)]
    if "completionStartTime" in failure:
        records[1]["status"] = "failure"
    scored = read_scored([lines(tmp_path / "spend.jsonl", records)])
    assert scored.requests.status.tolist() == [FINISHED, REFUSED, FINISHED]
    assert scored.failed == 1


def test_a_success_without_a_token_fails_unless_its_status_says_refused(tmp_path):
    scored = scored_rows(tmp_path, {"output_tokens": 0, "status": "ok"}, {"output_tokens": 0})
    assert scored.requests.status.tolist() == [FINISHED, REFUSED]


@pytest.mark.parametrize(
    ("words", "state", "failed"),
    [
        (["success", "OK", "200", 200, 200.0, "204", "Completed", True], FINISHED, False),
        (["failure", "error", 500, "503", "timed_out", "Cancelled", False], REFUSED, True),
        (["refused", "429", 403, "rate-limited"], REFUSED, False),
        (["unfinished", "in_progress"], UNFINISHED, False),
    ],
)
def test_words_for_the_end_of_a_request_are_recognised(tmp_path, words, state, failed):
    given = [{"status": word} for word in words]
    if state != FINISHED:
        given = [one | {"ttft": None, "latency": None} for one in given]
    scored = scored_rows(tmp_path, *given)
    assert set(scored.requests.status.tolist()) == {state}
    assert scored.failed == len(words) * failed


def test_a_failure_may_have_meaningless_times(tmp_path):
    odd = {"status": "failure", "output_tokens": 0, "ttft": None, "latency": -3.0}
    text = {"error": "boom", "ttft": "n/a", "latency": "n/a", "input_tokens": None}
    scored = scored_rows(tmp_path, {}, odd, text, {"status": None})
    assert scored.requests.status.tolist() == [FINISHED, REFUSED, REFUSED, FINISHED]
    assert np.isnan(scored.requests.finish_s[1:3]).all()


EPOCH_S = 1_783_814_400


@pytest.mark.parametrize("unit", [None, "s"])
@pytest.mark.parametrize(
    "starts",
    [
        [EPOCH_S * 1000, EPOCH_S * 1000 + 9, EPOCH_S],
        [EPOCH_S, EPOCH_S * 1000],
        [EPOCH_S * 1_000_000, EPOCH_S * 1000],
        [EPOCH_S, 0.0],
        [0.0, EPOCH_S],
        ["2026-07-12T00:00:00Z", 5.0],
        [5.0, "2026-07-12T00:00:00Z"],
    ],
)
def test_starts_in_two_units_are_refused(tmp_path, starts, unit):
    given = [
        {"start": at, "ttft": ..., "ttft_s": 0.5, "latency": ..., "latency_s": 1} for at in starts
    ]
    with pytest.raises(DataError, match=r"line \d: start = .* is (not a|a) date, unlike"):
        scored_rows(tmp_path, *given, unit=unit)


@pytest.mark.parametrize("starts", [[EPOCH_S, EPOCH_S + 86400], [0.0, 99e6], [0.0, 0.001, 5e5]])
def test_starts_in_one_unit_are_read(tmp_path, starts):
    given = [{"start": at} for at in starts]
    found = scored_rows(tmp_path, *given).requests.arrival_s
    assert found.tolist() == pytest.approx([at - starts[0] for at in starts])


@pytest.mark.parametrize(
    "other",
    [
        {"latency": ..., "end": 3.0},
        {"latency": ..., "latency_ms": 2000},
        {"latency": ..., "duration": 2.0},
        {"ttft": ..., "first_token": 1.5},
        {"ttft": ..., "ttft_ms": 500, "latency": ..., "e2e_latency_ms": 2000},
        {"start": ..., "timestamp": 1.0},
        {"client": ..., "user_id": "a"},
        {"input_tokens": ..., "prompt_tokens": 100},
    ],
)
def test_equal_rows_in_other_forms_give_equal_numbers(tmp_path, other):
    scored = scored_rows(tmp_path, {}, other, {})
    requests = scored.requests
    assert requests.status.tolist() == [FINISHED] * 3
    assert requests.finish_s.tolist() == [2.0, 3.0, 4.0]
    assert requests.first_token_s.tolist() == [0.5, 1.5, 2.5]
    assert requests.input_tokens.tolist() == [100] * 3


def test_a_row_with_an_unknown_end_has_not_failed(tmp_path):
    other = {"latency": ..., "took_altogether": 2.0}
    with pytest.raises(DataError) as caught:
        scored_rows(tmp_path, {}, other)
    said = str(caught.value)
    assert "r.jsonl, line 2: has no latency, unlike other requests (this request has" in said
    for failure in ({"error": "late"}, {"status": "failed"}, {"output_tokens": 0}):
        assert scored_rows(tmp_path, {}, other | failure).failed == 1
    assert scored_rows(tmp_path, {}, {"latency": None}).failed == 1


def test_a_row_with_an_unknown_end_is_named_by_its_line_behind_a_repeated_row(tmp_path):
    same = {"request_id": "first", "start": 0.0}
    other = {"request_id": "second", "latency": ..., "took_altogether": 2.0}
    with pytest.raises(DataError, match=r"r.jsonl, line 3: has no latency"):
        scored_rows(tmp_path, same, same, other)


def test_a_file_may_begin_with_a_failure(tmp_path):
    failed = {"ttft": ..., "latency": ..., "output_tokens": ..., "error": "refused"}
    scored = scored_rows(tmp_path, failed, {}, {})
    assert scored.requests.status.tolist() == [REFUSED, FINISHED, FINISHED]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"ttft": -0.5}, "line 2: ttft = -0.5: must be at least 0"),
        ({"latency": -7}, "line 2: latency = -7: must be at least 0"),
        ({"input_tokens": None}, "line 2: input_tokens is missing"),
        ({"worker": [1]}, "line 2: worker = [1]: must be a number"),
    ],
)
def test_impossible_values_are_named(tmp_path, change, complaint):
    with pytest.raises(DataError) as caught:
        scored_rows(tmp_path, {"worker": 0}, change)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("ttft", [None, "", "undefined"])
def test_an_answer_without_a_first_token_came_in_one_piece(tmp_path, ttft):
    scored = scored_rows(tmp_path, {}, {"ttft": ttft}, {"ttft": ttft})
    waits = scored.requests.first_token_s - scored.requests.arrival_s
    assert waits[1:].tolist() == (scored.last_token_s - scored.requests.arrival_s)[1:].tolist()
    assert waits[0] < waits[1]
    assert scored.remarks == (
        "2 requests, each of which ended without a time of the first token, and counts as "
        "answered in one piece",
    )


def test_a_missing_value_counts_as_minus_one(tmp_path):
    scored = scored_rows(tmp_path, {}, {"ttft": -1, "latency": -1})
    assert scored.requests.status.tolist() == [FINISHED, REFUSED]


def test_a_duration_that_is_mapped_to_the_end_is_recognised(tmp_path):
    given = [{"latency": ..., "total_ms": 2000.0, "start": 100.0 + n} for n in range(3)]
    with pytest.raises(
        DataError, match=r"\(end = 2000\): if total_ms is .* --map latency=total_ms"
    ):
        scored_rows(tmp_path, *given, names={"end": "total_ms"})
    dated = [one | {"start": EPOCH_S + n} for n, one in enumerate(given)]
    with pytest.raises(DataError, match="--map latency=total_ms"):
        scored_rows(tmp_path, *dated, names={"end": "total_ms"})
    right = scored_rows(tmp_path, *given, names={"latency": "total_ms"})
    assert right.requests.finish_s.tolist() == [2.0, 3.0, 4.0]


def test_odd_rows_are_corrected_and_counted_in_one_note(tmp_path):
    over = {"cached_tokens": 130, "request_id": "x"}
    failed = {"error": "boom", "input_tokens": None, "output_tokens": None, "request_id": "y"}
    given = [{"cached_tokens": 50, "request_id": "x"}, over, over, failed]
    summary = summary_of(lines(tmp_path / "r.jsonl", rows_of(*given)))
    assert summary["cache_hit_rate"] == pytest.approx(250 / 300)
    assert (summary["completed"], summary["failed"]) == (3, 1)
    assert summary["notes"]["records"] == (
        "2 requests, each of which had more cached than input tokens, so all input tokens"
        " count as cached;"
        " 1 request that failed without a count of input tokens, which counts as 0;"
        " 2 requests, each of which has the id of an earlier request,"
        " and counts as a separate request"
    )


def test_a_file_without_odd_rows_has_no_such_note(tmp_path):
    file = lines(tmp_path / "r.jsonl", rows_of({"id": 1}, {"id": 2}, {"id": None}, {"id": None}))
    assert "records" not in summary_of(file)["notes"]


def test_workers_may_have_names(tmp_path):
    urls = ["http://h1:8000", "http://h2:8000", "http://h1:8000"]
    requests = scored_rows(tmp_path, *({"worker": url} for url in urls)).requests
    assert requests.worker.tolist() == [0, 1, 0]


def test_numbers_may_be_texts(tmp_path):
    texts = {key: str(value) for key, value in ROW.items()}
    scored = scored_rows(tmp_path, {}, texts | {"start": "1.0", "worker": "0"})
    assert scored.requests.finish_s.tolist() == [2.0, 3.0]
    assert scored.requests.input_tokens.tolist() == [100, 100]


@pytest.mark.parametrize("word", ["nan", "NULL", "None", "NaN", "NA", "n/a", ""])
def test_words_for_missing_values_are_read_as_missing(tmp_path, word):
    nothing = {"ttft": word, "latency": word, "cached_tokens": word, "status": word}
    scored = scored_rows(tmp_path, {"cached_tokens": 3}, nothing | {"error": word})
    assert scored.requests.status.tolist() == [FINISHED, REFUSED]


@pytest.mark.parametrize("flags", [[], ["--map", "client=org_unit"]])
def test_a_client_may_be_called_nan(tmp_path, flags):
    column = "org_unit" if flags else "client"
    text = f"start,{column},ttft,latency,input_tokens,output_tokens\n"
    text += "".join(f"{n},{name},1,2,3,4\n" for n, name in enumerate(["NaN", "None", "007", "b"]))
    (tmp_path / "r.csv").write_text(text)
    clients = summary_of(tmp_path / "r.csv", *flags)["clients"]
    assert [one["client"] for one in clients] == ["NaN", "None", "007", "b"]


@pytest.mark.parametrize("nothing", [None, float("nan"), " ", "undefined", "(null)"])
def test_requests_that_name_no_client_are_of_one_client(tmp_path, nothing):
    scored = scored_rows(tmp_path, {}, {"client": nothing}, {"client": nothing})
    assert scored.clients[1:] == ("all",)
    assert scored.requests.client.tolist() == [0, 1, 1]
    assert scored.remarks == (
        "2 requests, each of which names no client, and counts as one of the client 'all'",
    )


def test_gaps_between_tokens_have_percentiles(tmp_path):
    """The gaps are 10, 20 and 90 ms. Those of the failed request do not count."""
    record = bench(REQUESTS, itls=[[0.01, 0.02], [0.09], [7.0]], output_lens=[3, 2, 1])
    summary = summary_of(lines(tmp_path / "a.jsonl", [record]))
    assert summary["median_itl_ms"] == pytest.approx(20)
    assert summary["mean_itl_ms"] == pytest.approx(40)
    assert summary["p99_itl_ms"] == pytest.approx(90 - 0.02 * 70)
    assert not [key for key in summary["notes"] if key.endswith("itl_ms")]


def test_gaps_beside_an_end_time_have_percentiles_too(tmp_path):
    given = [{"itls": [0.05, 0.15]}, {"itls": None}, {"itls": [0.1]}]
    summary = summary_of(lines(tmp_path / "r.jsonl", rows_of(*given)))
    assert summary["median_itl_ms"] == pytest.approx(100)
    assert summary["mean_e2el_ms"] == pytest.approx(2000)


def test_another_column_may_name_the_client(tmp_path):
    records = [litellm(0, 5), litellm(1, 6, user="", end_user="bob"), litellm(2, 7, user=None)]
    records[2]["team_id"] = "blue"
    records[0] |= {"team_id": None, "end_user": ""}
    scored = read_scored([lines(tmp_path / "spend.jsonl", records)])
    assert scored.clients == ("ann", "bob", "blue")


@pytest.mark.parametrize("name", ["itl_ms", "itls_ms", "inter_token_latencies_ms"])
def test_gaps_of_a_row_are_read_in_the_unit_of_its_latency(tmp_path, name):
    rows = rows_of({name: [100, 150, 50]}, {name: [100, 100, 100]})
    found = summary_of(lines(tmp_path / "r.jsonl", rows))
    assert (found["mean_itl_ms"], found["p50_itl_ms"]) == (pytest.approx(100), pytest.approx(100))
    assert found["p99_itl_ms"] == pytest.approx(147.5)
    assert found["p50_e2el_ms"] == pytest.approx(2000)


def test_a_mean_gap_is_not_a_list_of_gaps(tmp_path):
    found = summary_of(lines(tmp_path / "r.jsonl", rows_of({"itl_ms": 90.0})))
    assert found["p50_itl_ms"] is None
    assert found["p50_e2el_ms"] == pytest.approx(2000)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("HTTP 200", FINISHED),
        ("200 OK", FINISHED),
        ("HTTP/1.1 429 Too Many Requests", REFUSED),
        ("http 404", REFUSED),
    ],
)
def test_a_status_line_of_http_is_read_as_a_status(tmp_path, status, state):
    assert scored_rows(tmp_path, {"status": status}).requests.status.tolist() == [state]


@pytest.mark.parametrize("tokens", ["1,000", "1000", " 1,000 ", "1,000.0"])
def test_thousands_may_have_commas(tmp_path, tokens):
    scored = scored_rows(tmp_path, {"input_tokens": tokens})
    assert scored.requests.input_tokens.tolist() == [1000]


@pytest.mark.parametrize("tokens", ["1,00", "1,0000", ",100", "1,000,"])
def test_other_commas_make_no_number(tmp_path, tokens):
    with pytest.raises(DataError, match="input_tokens"):
        scored_rows(tmp_path, {"input_tokens": tokens})


def test_gaps_between_tokens_show_that_an_uncounted_answer_had_output(tmp_path):
    given = [{"output_tokens": 0}, {"output_tokens": 0, "itls": [0.05, 0.15]}]
    scored = scored_rows(tmp_path, *given)
    assert scored.requests.status.tolist() == [REFUSED, FINISHED]
    assert scored.remarks == (
        "1 request that ended without any output token, and counts as failed",
    )
