"""Test records of live runs: reading, conversion to tables, and summaries."""

import json
import re
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fairbench.errors import DataError
from fairbench.execute.repeats import remarks_on
from fairbench.metrics.optional_entries import LIMIT
from fairbench.metrics.reasons import QUEUE_ESTIMATED
from fairbench.metrics.service import DECODE_STEPS
from fairbench.metrics.totals import statistic_of
from fairbench.report.run_table import summary_text
from fairbench.sim.run import simulate
from fairbench_load.backends.base import Served
from fairbench_load.driver.drive import DriveResult
from fairbench_load.records import (
    Journal,
    LiveRecords,
    ProgramRecord,
    RequestRecord,
    read_records,
    tables_of,
)
from fairbench_load.summary import (
    CACHED_AT_END,
    NO_ADMISSION,
    NO_CACHED,
    SERVED_FILE,
    error_counts,
    gaps_s,
    lateness_ms,
    recover,
    recovered,
    summary_of,
    token_gaps_s,
)
from tests.load.live_driving import driven, small_spec

CLIENTS = ("client-0", "client-1")
SGLANG = Served("sglang", pool_tokens=10_000)

DONE = RequestRecord(
    request_id=1,
    program_id=0,
    client="client-0",
    depth=0,
    worker=0,
    arrival_s=1.0,
    submit_s=1.002,
    held_s=0.0,
    admitted_s=1.5,
    first_token_s=2.0,
    finish_s=4.0,
    input_tokens=100,
    cached_tokens=60,
    output_tokens=5,
    max_new_tokens=5,
    retractions=0,
    status="finished",
    error=None,
    chunk_s=[2.0, 3.0, 4.0],
    chunk_tokens=[1, 2, 2],
)
PROGRAM = ProgramRecord(0, "client-0", 1.0, 4.0, 1, 1, 100, 5, "finished")


def changed(record=DONE, **fields):
    return msgspec.structs.replace(record, **fields)


UNDER_WAY = changed(
    request_id=0,
    client="client-1",
    worker=1,
    finish_s=None,
    output_tokens=3,
    status="unfinished",
    chunk_s=[2.0, 5.0],
    chunk_tokens=[1, 2],
)
WAITING = changed(
    request_id=2,
    admitted_s=None,
    first_token_s=None,
    finish_s=None,
    output_tokens=0,
    cached_tokens=None,
    status="unfinished",
    chunk_s=[],
    chunk_tokens=[],
)
FAILED = changed(WAITING, request_id=3, worker=-1, submit_s=None, status="refused", error="no: x")


def records_of(*requests, programs=(PROGRAM,)):
    return LiveRecords(list(requests), list(programs))


def write(folder, records):
    with Journal(folder) as journal:
        for request in records.requests:
            journal.request(request)
        for program in records.programs:
            journal.program(program)


def test_records_are_read_back_unchanged(tmp_path):
    records = records_of(DONE, UNDER_WAY, WAITING, FAILED)
    write(tmp_path, records)
    assert read_records(tmp_path) == records


@pytest.mark.parametrize("record", [DONE, WAITING, FAILED])
def test_the_time_of_sending_keeps_its_key_in_the_file(tmp_path, record):
    write(tmp_path, records_of(record))
    row = json.loads((tmp_path / "requests.jsonl").read_bytes())
    assert row["sent_s"] == record.submit_s
    assert "submit_s" not in row


def test_an_incomplete_last_line_is_left_out(tmp_path):
    write(tmp_path, records_of(DONE, UNDER_WAY))
    path = tmp_path / "requests.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert read_records(tmp_path).requests == [DONE]


@pytest.mark.parametrize(
    "line", [b"{}", b"{junk", b'{"request_id": "one"}', b'{"client": "\xff"}', b""]
)
def test_a_wrong_line_is_named(tmp_path, line):
    write(tmp_path, records_of(DONE))
    path = tmp_path / "requests.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(DataError, match=r"requests.jsonl, line 2"):
        read_records(tmp_path)


def test_missing_files_and_unknown_clients_are_named(tmp_path):
    with pytest.raises(DataError, match=r"requests.jsonl: cannot be read"):
        read_records(tmp_path)
    write(tmp_path, records_of(changed(client="eve")))
    with pytest.raises(
        DataError,
        match="unknown client 'eve' in the server's records: choose from client-0, client-1",
    ):
        tables_of(read_records(tmp_path), CLIENTS)


def test_the_tables_have_the_columns_of_simulated_runs():
    tables = tables_of(records_of(FAILED, DONE, WAITING, UNDER_WAY), CLIENTS)
    requests = tables.requests
    assert requests.request_id.tolist() == [0, 1, 2, 3]
    assert requests.client.tolist() == [1, 0, 0, 0]
    assert requests.status.tolist() == [2, 0, 2, 1]
    assert requests.worker.tolist() == [1, 0, 0, -1]
    np.testing.assert_array_equal(requests.admitted_s, [1.5, 1.5, nan, nan])
    np.testing.assert_array_equal(requests.finish_s, [nan, 4.0, nan, nan])
    assert requests.cached_tokens.tolist() == [60, 60, 0, 0]
    assert requests.extend_tokens.tolist() == [40, 40, 0, 0]
    assert tables.programs.demand_output_tokens.tolist() == [5]
    simulated = simulate(small_spec("chat"))
    saved = tables.columns()
    for live, table in zip(
        (one for one in saved if one is not None),
        (simulated.requests, simulated.programs, simulated.service),
        strict=True,
    ):
        simulated_only = {"gpu_s", "compulsory_tokens"}  # no record states the compulsory tokens
        assert list(live) == [name for name in table if name not in simulated_only]


def test_admission_is_at_the_first_token_if_unknown_and_never_after_it():
    late = changed(request_id=7, admitted_s=2.3)
    unknown = changed(request_id=8, admitted_s=None)
    tables = tables_of(records_of(late, unknown), CLIENTS)
    assert tables.requests.admitted_s.tolist() == [2.0, 2.0]


def test_a_request_is_served_in_two_rows():
    service = tables_of(records_of(DONE, UNDER_WAY, WAITING), CLIENTS).service
    rows = list(
        zip(
            service.worker,
            service.client,
            service.start_s,
            service.end_s,
            service.steps,
            service.input_tokens,
            service.extend_charged_tokens,
            service.extend_tokens,
            service.output_tokens,
            strict=True,
        )
    )
    assert rows == [
        (0, 0, 1.5, 2.0, 1, 100, 40, 40, 1),
        (1, 1, 1.5, 2.0, 1, 100, 40, 40, 1),
        (0, 0, 2.0, 4.0, 4, 0, 0, 0, 4),
        (1, 1, 2.0, 5.0, 2, 0, 0, 0, 2),
    ]


def test_a_long_output_is_decoded_in_few_steps():
    long = changed(output_tokens=1_001, chunk_s=[2.0, 4.0], chunk_tokens=[1, 1_000])
    service = tables_of(records_of(long), CLIENTS).service
    assert service.steps.tolist() == [1, DECODE_STEPS]
    assert service.output_tokens.tolist() == [1, 1_000]


def test_a_single_token_is_decoded_in_no_time():
    one = changed(output_tokens=1, chunk_s=[2.0], chunk_tokens=[1], finish_s=2.0)
    assert len(tables_of(records_of(one), CLIENTS).service) == 1


def test_no_records_give_empty_tables():
    tables = tables_of(records_of(programs=()), CLIENTS)
    assert (len(tables.requests), len(tables.programs), len(tables.service)) == (0, 0, 0)


def test_tokens_that_arrived_together_share_the_gap_before_them():
    assert token_gaps_s([2.0, 3.0, 4.0], [1, 2, 4]).tolist() == [0.5, 0.5, *[0.25] * 4]
    assert token_gaps_s([2.0], [3]).tolist() == []
    assert set(gaps_s([DONE, changed(status="unfinished")]).tolist()) == {0.5}
    assert gaps_s([]).tolist() == []


def test_lateness_counts_only_the_requests_that_were_sent():
    late = lateness_ms([changed(submit_s=1.0 + n / 1000) for n in range(101)] + [FAILED])
    found = [statistic_of(statistic, late) for statistic in ("p50", "p99", "max")]
    assert found == pytest.approx([50.0, 99.0, 100.0])
    assert lateness_ms([FAILED]).tolist() == []


def test_errors_are_counted_by_kind():
    said = ["HTTP 429: slow down", "timeout: silent", "HTTP 429: please", None]
    assert error_counts([changed(error=error) for error in said]) == {"HTTP 429": 2, "timeout": 1}


RESULT = DriveResult(complete=True, end_s=6.0, last_arrival_s=1.0)


def summary(*requests, spec=None, served=SGLANG, result=RESULT):
    records = records_of(*requests)
    return summary_of(
        spec or small_spec("chat", scheduler="dlpm"),
        records,
        tables_of(records, CLIENTS),
        result,
        served,
    )


def test_the_summary_has_every_key_of_a_simulated_run():
    live = summary(DONE, UNDER_WAY)
    simulated = simulate(small_spec("chat", scheduler="dlpm")).summary
    of_limit = {one.key for one in LIMIT} | {"limit_cause"}
    assert simulated.keys() - live.keys() == of_limit & simulated.keys()
    assert live["clients"][0].keys() == simulated["clients"][0].keys()
    assert live.keys() - simulated.keys() == {
        "emulated",
        "backend",
        "served",
        "stall_causes",
        "lateness_p50_ms",
        "lateness_p99_ms",
        "lateness_max_ms",
        "held",
        "errors",
    }
    assert live["simulated"] is False
    assert live["backend"] == "sglang"
    assert live["bound_source"] == simulated["bound_source"]
    assert live["service_gap_bound"] is not None


def test_the_summary_counts_the_clients_observations():
    live = summary(DONE, UNDER_WAY, FAILED)
    assert (live["completed"], live["unfinished"]) == (1, 1)
    assert (live["failed"], live["refused"]) == (1, 0)
    assert live["errors"] == {"no": 1}
    turned_away = summary(DONE, changed(FAILED, error="HTTP 429: slow down"))
    assert (turned_away["failed"], turned_away["refused"]) == (0, 1)
    assert live["notes"]["errors"] == "1 x no"
    assert live["mean_itl_ms"] == live["p99_itl_ms"] == 500.0
    assert "p99_itl_ms" not in live["notes"]
    # 100 + 2 x 5 and 100 + 2 x 3 tokens in the 6 s of the run
    assert live["service_rate_tok_s"] == pytest.approx((110 + 106) / 6)
    assert live["actual_service_tok_s"] == pytest.approx((50 + 46) / 6)
    assert live["cache_hit_rate"] == pytest.approx(0.6)
    assert live["queue_empty_share"] == pytest.approx(1 - 0.5 / 6)


def test_values_that_the_server_hides_are_null_with_a_reason():
    live = summary(changed(admitted_s=None), UNDER_WAY)
    assert live["max_service_gap"] is None
    assert live["notes"]["max_service_gap"] == NO_ADMISSION
    assert live["queue_empty_share"] is not None  # although it is estimated
    assert live["notes"]["queue_empty_share"] == QUEUE_ESTIMATED
    assert live["cache_hit_rate"] is not None
    live = summary(DONE, changed(cached_tokens=None))
    assert live["cache_hit_rate"] is live["jain_index_actual"] is None
    assert live["clients"][0]["actual_service_tok_s"] is None
    assert live["notes"]["clients.client-0.cache_hit_rate"] == NO_CACHED
    cut_short = summary(DONE, changed(UNDER_WAY, cached_tokens=None))
    assert cut_short["cache_hit_rate"] is None
    assert cut_short["notes"]["cache_hit_rate"] == CACHED_AT_END
    assert live["jain_index"] is not None
    assert live["queue_empty_share"] is not None


def test_a_few_answers_that_did_not_end_are_left_out_of_the_cache_hit_rate():
    ended = [changed(request_id=number) for number in range(99)]
    live = summary(*ended, changed(UNDER_WAY, request_id=99, cached_tokens=None))
    assert live["cache_hit_rate"] == pytest.approx(0.6)
    assert live["actual_service_tok_s"] == pytest.approx((99 * 50 + 6) / 6)
    assert live["clients"][0]["actual_service_tok_s"] is not None
    assert live["notes"]["cache"].startswith("1 of 100 answers did not end")
    assert "cache_hit_rate" not in live["notes"]


def test_a_late_run_is_flagged():
    late = changed(submit_s=1.011)
    assert "11 ms late" in summary(late)["notes"]["lateness"]
    assert "lateness" not in summary(DONE)["notes"]
    assert "which prompts share a prefix" in summary(DONE)["notes"]["limit"]
    at_once = small_spec("chat", request_rate=inf, num_programs=2)
    assert "lateness" not in summary(late, spec=at_once)["notes"]


def test_an_emulated_server_has_the_limit_of_its_timing_profile():
    done = changed(compulsory_tokens=40)
    profile = "a100-80gb/llama-3.1-8b/tp1/measured-sglang"
    served = Served("emulator", emulated=True, timing_profile=profile)
    live = summary(done, served=served)
    assert "limit" not in live["notes"]
    assert 0 < live["least_gpu_s"] <= live["victim_least_p95_s"]
    # The program arrives at 1 s, and ends at 4 s.
    assert live["least_makespan_s"] == pytest.approx(1.0 + live["victim_least_p95_s"])
    assert live["limit_ratio"] == pytest.approx(live["least_makespan_s"] / 4.0)
    unknown = summary(done, served=replace(served, timing_profile="measured elsewhere"))
    assert "limit_ratio" not in unknown
    assert "no timing profile describes the replicas" in unknown["notes"]["limit"]


def test_an_unmanaged_endpoint_has_no_bound():
    served = replace(SGLANG, unbounded=("the scheduler is the server's own"))
    assert summary(DONE, served=served)["notes"]["bound_source"] == (
        "the scheduler is the server's own"
    )
    unknown = replace(SGLANG, pool_tokens=None)
    assert "KV pool" in summary(DONE, served=unknown)["notes"]["service_gap_bound"]


def test_a_killed_run_ends_with_its_last_record():
    other = ProgramRecord(1, "client-1", 5.0, None, 2, 2, 100, 5, "refused")
    records = records_of(DONE, WAITING, programs=(PROGRAM, other))
    assert recovered(records) == DriveResult(False, 5.0, 5.0)
    assert recovered(records_of(programs=())) == DriveResult(False, 0.0, 0.0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `backend`"),
        (b'{"backend": "sglang", "pool_tokens": "9"}', "Expected `int | null`, got `str`"),
        (b'{"backend": "\xff"}', "not UTF-8"),
        (b"", "line 1: not JSON"),
    ],
)
def test_a_killed_run_reports_its_servers_as_damaged(tmp_path, content, complaint):
    (tmp_path / SERVED_FILE).write_bytes(content)
    with pytest.raises(DataError, match=rf"{re.escape(SERVED_FILE)}(, line 1)?: ") as caught:
        recover(small_spec("chat"), tmp_path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_driven_run_can_be_summarised_for_every_workload():
    for workload in ("tot", "long-qa"):
        spec = small_spec(workload, scheduler="vtc")
        records, _, result = driven(spec, queue_time_s=0.1)
        tables = tables_of(records, [plan.client for plan in spec.client_plans()])
        live = summary_of(spec, records, tables, result, SGLANG)
        assert live["completed"] == len(records.requests) == live["num_requests"]
        total = sum(r.input_tokens + 2 * r.output_tokens for r in records.requests)
        length_s = live["window_end_s"] - live["window_start_s"]
        assert live["service_rate_tok_s"] * length_s == pytest.approx(total)
        assert live["time_to_100pct_s"] <= live["duration"]


def printed(live):
    return " ".join(summary_text(live, path=Path("run")).split())


def test_estimated_counts_are_marked_in_summary_note_and_table():
    under_way = changed(UNDER_WAY, estimated=True)
    live = summary(changed(estimated=True), changed(request_id=2), under_way)
    assert live["estimated"] == 1  # usage comes at the end of an answer
    assert "the tokens of 1 of 2 answers" in live["notes"]["estimated"]
    assert "1 have estimated token counts" in printed(live)
    assert "estimated" not in summary(DONE).keys() | summary(DONE)["notes"].keys()


def test_estimated_counts_are_marked_in_the_table_of_requests():
    table = tables_of(records_of(DONE, changed(request_id=2, estimated=True)), CLIENTS)
    assert table.columns().requests["estimated"].tolist() == [0, 1]
    assert "estimated" not in tables_of(records_of(DONE), CLIENTS).columns().requests


@pytest.mark.parametrize(
    ("fields", "short"),
    [
        ({"min_new_tokens": 6}, True),
        ({"min_new_tokens": 5}, False),
        ({"min_new_tokens": None}, False),
        ({"min_new_tokens": 9, "estimated": True}, False),  # an event may hold several tokens
        ({"min_new_tokens": 9, "status": "refused", "error": "no"}, False),
    ],
)
def test_an_ignored_minimum_length_is_one_note(fields, short):
    live = summary(changed(**fields), changed(request_id=2, **fields))
    assert ("2 of 2 answers are shorter" in live["notes"].get("lengths", "")) == short
    assert sum("shorter" in text for text in live["notes"].values()) == short


def test_the_wait_for_a_slot_is_printed():
    waits_s = [0.0, 1.0, 2.0, 3.0, 4.0]
    live = summary(*(changed(request_id=n, held_s=wait_s) for n, wait_s in enumerate(waits_s)))
    assert (live["held"], live["held_p50_s"], live["held_max_s"]) == (4, 2.0, 4.0)
    assert live["held_p99_s"] == pytest.approx(3.96)
    assert "4 requests waited for a slot of --max-concurrency: P50 2.00 s" in printed(live)
    assert "slots" not in printed(summary(DONE))


def test_records_of_earlier_versions_are_read(tmp_path):
    with Journal(tmp_path) as journal:
        journal.request(DONE)
    path = tmp_path / "requests.jsonl"
    row = json.loads(path.read_text())
    del row["estimated"], row["min_new_tokens"]
    path.write_text(json.dumps(row) + "\n")
    assert read_records(tmp_path).requests == [DONE]


def test_every_run_of_a_repetition_says_what_is_estimated():
    live = summary(changed(estimated=True, min_new_tokens=9), changed(request_id=2), FAILED)
    assert [text.partition(": ")[0] for text in remarks_on(live)] == ["seed 0", "seed 0"]
    assert [text for text in remarks_on(live, "chat, ") if "the tokens of 1 of 2" in text]
