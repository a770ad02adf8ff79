"""Test that every layout of foreign records gives the same requests and the right metrics."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import DataError, UsageError
from fairbench.metrics.records import FINISHED, REFUSED, UNFINISHED, Window
from fairbench.metrics.service import service_of
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench_logs.scoring.records import read_scored
from fairbench_logs.scoring.summary import ASKED, ScoredWindow, scored_summary, scored_window
from tests.scoring.foreign_helpers import (
    REQUESTS,
    aiperf_records,
    bench,
    lines,
    rows,
    write_aiperf,
    write_durations,
    write_parquet,
    write_plain,
    write_vtc,
    write_vtc_columns,
)
from tests.strategies import examples

EVERYTHING = Window(0.0, 10.0)  # cut off when the run ends, after 4 s


def summary_of(scored, window=EVERYTHING, **options):
    service = service_of(scored.requests, scored.last_token_s)
    return scored_summary(scored, service, ScoredWindow(window, ASKED), **options)


@pytest.mark.parametrize(
    ("write", "layout"),
    [
        (write_plain, "lines"),
        (write_durations, "lines"),
        (write_vtc, "vtc"),
        (write_vtc_columns, "vtc-columns"),
        (write_parquet, "fairbench"),
    ],
)
def test_every_layout_is_recognised_and_gives_the_same_requests(tmp_path, write, layout):
    scored = read_scored([write(tmp_path)])
    assert scored.layouts == (layout,)
    assert scored.clients == ("ann", "bob")
    requests = scored.requests
    assert requests.client.tolist() == [0, 1, 0]
    assert requests.arrival_s.tolist() == [0.0, 1.0, 2.0]
    np.testing.assert_array_equal(requests.first_token_s, [1.0, 2.0, np.nan])
    np.testing.assert_array_equal(requests.finish_s, [3.0, 4.0, np.nan])
    assert requests.status.tolist() == [FINISHED, FINISHED, REFUSED]
    assert requests.output_tokens.tolist() == [50, 100, 0]
    assert scored.programs.demand_output_tokens.tolist() == [50, 100, 10]
    assert scored.horizon_s == 4.0


def test_one_file_of_vllm_per_client_is_one_run(tmp_path):
    paths = []
    for client in ("ann", "bob"):
        path = tmp_path / f"{client}.json"
        record = bench([request for request in REQUESTS if request[0] == client])
        path.write_text(json.dumps(record, indent=2))  # on many lines, as some tools save it
        paths.append(path)
    scored = read_scored(paths)
    assert scored.layouts == ("vllm",)
    assert scored.clients == ("ann", "bob")
    assert scored.requests.arrival_s.tolist() == [0.0, 1.0, 2.0]
    np.testing.assert_allclose(scored.requests.finish_s, [3.0, 4.0, np.nan])
    assert scored.requests.status.tolist() == [FINISHED, FINISHED, REFUSED]
    assert scored.programs.program_id.tolist() == [0, 1, 2]  # row 1 of both files


def test_any_list_of_a_run_can_be_mapped(tmp_path):
    """The run has a list of latencies under another name, and a list of other length."""
    record = bench(REQUESTS, e2els=[3.0, 3.0, 0.0], tenants=["ann", "bob", "ann"], rates=[1.0])
    del record["itls"]
    path = lines(tmp_path / "run.json", [record])
    with pytest.raises(
        DataError, match=r"it has .*, e2els, tenants\).* Did you mean latency=e2els"
    ):
        read_scored([path])
    scored = read_scored([path], names={"latency": "e2els", "client": "tenants"})
    assert scored.clients == ("ann", "bob")
    np.testing.assert_allclose(scored.requests.finish_s, [3.0, 4.0, np.nan])


def test_one_folder_of_aiperf_per_client_is_one_run(tmp_path):
    """bob has the same clock as ann. His warm-up does not count, and her second request failed."""
    paths = [write_aiperf(tmp_path, client) for client in ("ann", "bob")]
    scored = read_scored(paths)
    assert scored.layouts == ("aiperf",)
    assert scored.clients == ("ann", "bob")
    requests = scored.requests
    np.testing.assert_allclose(requests.arrival_s, [0.0, 1.0, 2.0])
    np.testing.assert_allclose(requests.first_token_s, [1.0, 2.0, np.nan])
    np.testing.assert_allclose(requests.finish_s, [3.0, 4.0, np.nan])
    assert requests.input_tokens.tolist() == [100, 100, 40]
    assert requests.output_tokens.tolist() == [50, 100, 0]
    assert requests.cached_tokens.tolist() == [0, 100, 0]  # 102 by the server's own count
    assert requests.status.tolist() == [FINISHED, FINISHED, REFUSED]


def test_fields_of_a_request_in_aiperf_can_be_mapped(tmp_path):
    path = write_aiperf(tmp_path, "ann")
    scored = read_scored([path], names={"client": "conversation_id", "program": "worker_id"})
    assert scored.clients == ("talk-0.0", "talk-2.0")


def test_a_non_streamed_answer_of_aiperf_has_its_first_token_with_its_last(tmp_path):
    (record,) = aiperf_records("bob")[1:]
    del record["metrics"]["time_to_first_token"]
    record["metrics"]["request_latency"] = {"value": 3.0, "unit": "sec"}
    requests = read_scored([lines(tmp_path / "a.jsonl", [record])]).requests
    assert (requests.first_token_s[0], requests.finish_s[0]) == (3.0, 3.0)


def test_gaps_of_aiperf_count_if_each_chunk_is_a_token(tmp_path):
    first, _ = aiperf_records("ann")
    tokens = {"value": 3, "unit": "tokens"}
    first["metrics"] |= {"output_sequence_length": tokens, "output_token_count": tokens}
    path = lines(tmp_path / "a.jsonl", [first])
    assert read_scored([path]).gaps_s.tolist() == [0.001, 0.002]
    tokens["value"] = 9
    assert read_scored([lines(path, [first])]).gaps_s is None


def test_sessions_of_aiperf_last_until_their_last_answer(tmp_path):
    """Four users begin together, each in a closed loop of 2 s."""
    records = []
    for turn in range(3):
        for user in range(4):
            (record,) = aiperf_records("bob")[1:]
            begun = 1_759_813_207_000_000_000 + user * 10**6 + turn * 2 * 10**9
            record["metadata"] |= {"request_start_ns": begun, "x_correlation_id": f"s{user}"}
            record["metrics"]["request_latency"] = {"value": 2000.0, "unit": "ms"}
            records.append(record)
    path = lines(tmp_path / "a.jsonl", records)
    scored = read_scored([path], names={"program": "x_correlation_id"})
    found = scored_window(scored.requests, scored.programs, scored.horizon_s, None, None)
    assert found.window.end_s == pytest.approx(6.003)
    got = summary_of(scored, found.window)
    assert got["service_rate_tok_s"] == pytest.approx(12 * 300 / 6.003)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"metadata": {"request_start_ns": "now"}}, "request_start_ns = 'now': must be an integer"),
        ({"metrics": [1]}, "metrics must be a JSON object"),
        (
            {"metrics": {"request_latency": {"value": 1, "unit": "h"}}},
            "the unit of request_latency is 'h'",
        ),
        ({"metrics": {"request_latency": {"value": "one", "unit": "ms"}}}, "must be a number"),
        ({"metadata": {}}, "not a record of aiperf: the field metadata."),
        ({"metadata": None}, "not a record of aiperf: the field metadata."),
    ],
)
def test_a_wrong_line_of_aiperf_is_named(tmp_path, change, complaint):
    first, _ = aiperf_records("ann")
    path = lines(tmp_path / "a.jsonl", [first, {**first, **change}])
    with pytest.raises(DataError, match=complaint):
        read_scored([path])


def test_records_of_aiperf_contain_their_units(tmp_path):
    with pytest.raises(UsageError, match="contain their units; leave --time-unit out"):
        read_scored([write_aiperf(tmp_path, "ann")], unit="ms")
    warm = [record for record in aiperf_records("bob") if "warmup" in str(record)]
    with pytest.raises(DataError, match="holds only records of the warm-up"):
        read_scored([lines(tmp_path / "w.jsonl", warm)])


def test_sglang_stores_no_start_times_so_only_bursts_can_be_read(tmp_path):
    record = bench(REQUESTS[:2])
    del record["start_times"]
    at_once = {"request_rate": float("inf"), "max_concurrency": None}
    path = lines(tmp_path / "sglang.jsonl", [record | at_once])
    scored = read_scored([path])
    assert scored.layouts == ("sglang",)
    assert scored.requests.arrival_s.tolist() == [0.0, 0.0]
    np.testing.assert_allclose(scored.requests.finish_s, [3.0, 3.0])
    for wrong in ({"request_rate": 2.0}, {"max_concurrency": 8}):
        lines(path, [record | at_once | wrong])
        with pytest.raises(DataError, match="no start times"):
            read_scored([path])
        with pytest.raises(DataError, match="no start times"):
            read_trace(TraceParams(str(path)))


def test_the_metrics_of_three_requests_equal_a_hand_computation(tmp_path):
    scored = read_scored([write_plain(tmp_path)], registered=["cat", "ann"])
    assert scored.clients == ("cat", "ann", "bob")
    got = summary_of(scored)
    rates = {one["client"]: one["service_rate_tok_s"] for one in got["clients"]}
    # input + 2 x output
    assert rates == pytest.approx({"cat": 0.0, "ann": 200 / 4, "bob": 300 / 4})
    assert got["jain_index"] == pytest.approx(500**2 / (3 * (200**2 + 300**2)))
    demands = {one["client"]: one["demand_tok_s"] for one in got["clients"]}
    assert demands == pytest.approx(
        {"cat": 0.0, "ann": 260 / 4, "bob": 300 / 4}
    )  # failed requests count as demand
    assert got["jain_index_maxmin"] == pytest.approx(500**2 / (3 * (250**2 + 250**2)))
    assert (got["completed"], got["failed"], got["refused"], got["unfinished"]) == (2, 1, 0, 0)
    assert got["mean_ttft_ms"] == 1000.0
    assert got["mean_e2el_ms"] == 3000.0


def test_missing_metrics_are_null_with_a_reason(tmp_path):
    got = summary_of(read_scored([write_plain(tmp_path)]))
    assert got["max_service_gap"] is None
    assert "max_service_gap" in got["notes"]
    assert got["queue_empty_share"] == 1.0
    assert got["notes"]["queue_empty_share"].startswith("estimated")
    for key in ("jain_index_actual", "cache_hit_rate", "actual_service_tok_s"):
        assert got[key] is None
        assert "cached" in got["notes"][key]
    assert got["clients"][0]["actual_service_tok_s"] is None
    assert "scheduler" in got["notes"]["service_gap_bound"]


def test_cached_tokens_and_admissions_are_used_if_recorded(tmp_path):
    records = rows(REQUESTS[:2], cached_tokens=60)
    for record in records:
        record["admitted"] = record["first_token"] - 0.25
    got = summary_of(read_scored([lines(tmp_path / "r.jsonl", records)]))
    assert got["cache_hit_rate"] == 0.6
    assert got["actual_service_tok_s"] == pytest.approx((40 + 100 + 40 + 200) / 4)
    # Some client waits from 0 to 0.75 s and from 1 to 1.75 s.
    assert got["queue_empty_share"] == pytest.approx(1 - 1.5 / 4)


def test_a_server_without_a_cache_computed_every_token(tmp_path):
    got = summary_of(read_scored([write_vtc(tmp_path)]))
    assert got["cache_hit_rate"] == 0.0
    assert got["actual_service_tok_s"] == got["service_rate_tok_s"] == pytest.approx(500 / 4)


def test_requests_of_one_program_give_one_latency(tmp_path):
    records = rows((("ann", 0.0, 1.0, 2.0, 1, 2), ("ann", 3.0, 4.0, 9.0, 1, 2)), program="p")
    path = lines(tmp_path / "r.jsonl", records)
    got = summary_of(read_scored([path]))
    assert got["num_programs"] == 1
    assert got["clients"][0]["p50_s"] == 9.0
    assert summary_of(read_scored([path]), latency="ttft")["clients"][0]["p50_s"] == 1.0
    lines(path, [*records, *rows((("bob", 0.0, 1.0, 2.0, 1, 2),), program="p")])
    with pytest.raises(DataError, match="several clients"):
        read_scored([path])


def test_one_refused_request_fails_its_program_and_an_unfinished_one_leaves_it_open(tmp_path):
    done, failed = REQUESTS[0], REQUESTS[2]
    records = [
        *rows((done,), program=1, status="finished"),
        *rows((failed,), program=1, status="unfinished"),
        *rows((done,), program=2, status="finished"),
        *rows((failed,), program=2, status="refused"),
        *rows((failed,), program=2, status="unfinished"),
    ]
    programs = read_scored([lines(tmp_path / "r.jsonl", records)]).programs
    assert sorted(programs.status.tolist()) == sorted([UNFINISHED, REFUSED])
    assert np.isnan(programs.finish_s).all()


def test_a_mapped_field_replaces_its_synonyms(tmp_path):
    record = {"who": "ann", "t0": 5_000, "ttft_ms": 250, "took": 1_000, "in": 3, "out": 2}
    names = {"client": "who", "start": "t0", "ttft": "ttft_ms", "latency": "took"}
    names |= {"input_tokens": "in", "output_tokens": "out"}
    path = lines(tmp_path / "r.jsonl", [record])
    requests = read_scored([path], names=names, unit="ms").requests
    assert requests.arrival_s.tolist() == [0.0]
    assert requests.first_token_s.tolist() == pytest.approx([0.25])
    assert requests.finish_s.tolist() == pytest.approx([1.0])


times = st.floats(0.001, 1_000).map(lambda s: round(s, 3))
requests = st.tuples(
    st.sampled_from("abc"), times, times, times, st.integers(0, 500), st.integers(1, 500)
).map(lambda r: (r[0], r[1], r[1] + r[2], r[1] + r[2] + r[3], r[4], r[5]))


@examples(30)
@given(st.lists(requests, min_size=1, max_size=12), st.integers(0, 10**9))
def test_the_start_of_the_clock_makes_no_difference(tmp_path_factory, drawn, began_s):
    folder = tmp_path_factory.mktemp("clock")
    later = [(c, s + began_s, f + began_s, e + began_s, i, o) for c, s, f, e, i, o in drawn]
    one, other = (
        read_scored([lines(folder / name, rows(records))]).requests
        for name, records in (("one.jsonl", drawn), ("other.jsonl", later))
    )
    assert one.client.tolist() == other.client.tolist()
    assert one.arrival_s.min() == 0.0
    for column in ("arrival_s", "first_token_s", "finish_s"):
        np.testing.assert_allclose(getattr(one, column), getattr(other, column), atol=1e-6)


@examples(30)
@given(st.lists(requests, min_size=1, max_size=12))
def test_all_service_belongs_to_some_client(tmp_path_factory, drawn):
    path = lines(tmp_path_factory.mktemp("sum") / "r.jsonl", rows(drawn))
    got = summary_of(read_scored([path]), Window(0.0, 1e6))
    total = sum(1 * r[4] + 2 * r[5] for r in drawn)
    length_s = got["window_end_s"] - got["window_start_s"]
    assert got["service_rate_tok_s"] * length_s == pytest.approx(total)
    each = sum(one["service_rate_tok_s"] for one in got["clients"])
    assert each == pytest.approx(got["service_rate_tok_s"])


BAD = {
    "start is missing": {"start": None},
    "start = 'noon': must be a number": {"start": "noon"},
    "its first token is before its start": {"first_token": -1.0},
    "the end is before the first token": {"end": 1.5},
    "its end is before its start (end = 0.5): if end is a length of time": {"end": 0.5},
    "input_tokens = -3: must be a whole number from 0 to 9007199254740992": {"input_tokens": -3},
    "worker = 9007199254740992: must be a whole number from -1 to 65535": {"worker": 2**53},
    "output_tokens = 1.5: must be a whole number": {"output_tokens": 1.5},
    "a time is infinite": {"end": float("inf")},
    "a time is beyond 10^12 s": {"end": 1e300},
    "unknown status '[1]'": {"status": [1]},
    "end = True: must be a number": {"end": True},
}


@pytest.mark.parametrize("complaint", BAD)
def test_an_impossible_request_is_named(tmp_path, complaint):
    records = rows(REQUESTS[:2])
    for record in records:
        record |= {"status": "finished", "cached_tokens": 0}
    records[1] |= BAD[complaint]
    path = lines(tmp_path / "r.jsonl", records)
    with pytest.raises(DataError) as caught:
        read_scored([path])
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        ("", {}, "no records"),
        ("{oops\n{}", {}, "line 1: not JSON"),
        ("[1]\n[2]\n", {}, "line 2: not JSON"),
        ("[[1]]", {}, "record 1: must be a JSON object"),
        ('{"a": 1}\n', {}, "the layout is unknown. The plain layout needs"),
        ('{"a": 1}\n', {"layout": "vllm"}, "the JSON list 'start_times' (field start) is missing"),
        ('{"a": 1}\n', {"layout": "vlm"}, "unknown layout 'vlm'"),
        ('{"result": {"responses": [1]}}', {"layout": "vtc"}, "must be a JSON object"),
        (
            json.dumps(bench(REQUESTS, ttfts=[1.0])),
            {},
            "'ttfts' (ttft) must be a list as long as the other",
        ),
        (
            json.dumps(bench(REQUESTS, ttfts=7)),
            {"layout": "vllm"},
            ") must be a list as long as the other lists",
        ),
        (json.dumps(bench(REQUESTS, itls=[1, 2, 3])), {}, "request 1: itls must be a list"),
        (
            json.dumps(bench(REQUESTS, input_lens=3)),
            {"layout": "vllm"},
            ") must be a list as long as the other lists",
        ),
        (json.dumps(bench(())), {}, "no records"),
        (json.dumps(bench(REQUESTS)) + "\n" + json.dumps(bench(REQUESTS)), {}, "holds 2 runs"),
        (json.dumps(bench(REQUESTS)), {"line": 2}, "--line 2: must be between 1 and 1"),
        (
            json.dumps(rows()[0]),
            {"line": 1},
            "cannot be given for this file, which holds a single run",
        ),
    ],
)
def test_an_unreadable_file_gets_a_reason(tmp_path, text, options, complaint):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_scored([path], **options)
    assert complaint in str(caught.value)


def test_other_files_get_a_reason_too(tmp_path):
    for name, content, reason in (
        ("r.parquet", b"PAR1", "cannot be read"),
        ("r.jsonl.gz", b"no gzip", "cannot be read"),
        ("r.json", b"\xff", "is not UTF-8 text; save it as UTF-8"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}(, line 1)?: {reason}"):
            read_scored([path])
    with pytest.raises(DataError, match="cannot be read"):
        read_scored([tmp_path / "none.jsonl"])
