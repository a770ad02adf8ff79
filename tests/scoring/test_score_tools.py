"""Test that made-up exports of other benchmarks all give the same requests."""

import copy
import functools
import json
import operator
import random

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError, UsageError
from fairbench.metrics.records import FINISHED, REFUSED, UNFINISHED
from fairbench.metrics.service import service_of
from fairbench_logs.scoring.records import read_scored
from fairbench_logs.scoring.summary import scored_summary, scored_window
from tests.scoring.foreign_helpers import REQUESTS, aiperf_records, bench, lines, rows

CLOCK_S = 1_700_000_000.0


def guidellm_request(row, **more):
    _, start, first, end, read, wrote = row
    made = {"request_id": f"r{start}", "prompt_tokens": read, "output_tokens": wrote}
    made |= {"request_start_time": CLOCK_S + start, "request_end_time": CLOCK_S + (end or 9.0)}
    made |= {"request_latency": end and end - start, "output": "some text"}
    made |= {"time_to_first_token_ms": first and 1000 * (first - start)}
    return made | {"info": {"timings": {"request_start": CLOCK_S + start}}} | more


def guidellm(**totals):
    requests = {"successful": [guidellm_request(row) for row in REQUESTS[:2]]}
    requests |= {"errored": [guidellm_request(REQUESTS[2])], "incomplete": [], "total": None}
    return {"benchmarks": [{"requests": requests, "metrics": {"request_totals": totals}}]}


def older_guidellm():
    """Return the format before 0.4, which has other names for times."""
    content = guidellm()
    for found in content["benchmarks"][0]["requests"].values():
        for row in found or ():
            ttft_ms = row.pop("time_to_first_token_ms")
            row["start_time"] = row.pop("request_start_time")
            row["end_time"] = row.pop("request_end_time")
            row["first_token_time"] = ttft_ms and row["start_time"] + ttft_ms / 1000
            del row["request_latency"], row["info"]
    return content


def guidellm_without_computed_fields(first="first_token_iteration", count="total_tokens"):
    content = guidellm()
    for found in content["benchmarks"][0]["requests"].values():
        for row in found or ():
            start, ttft_ms = row.pop("request_start_time"), row.pop("time_to_first_token_ms")
            times = {"request_start": start, "request_end": row.pop("request_end_time")}
            row["info"] = {"timings": times | {first: ttft_ms and start + ttft_ms / 1000}}
            row["input_metrics"] = {count: row.pop("prompt_tokens")}
            row["output_metrics"] = {count: row.pop("output_tokens")}
            del row["request_latency"]
    return content


def inference_perf(old=False):
    rows = []
    for _, start, first, end, read, wrote in REQUESTS:
        step = first and (end - first) / (wrote - 1)
        times = first and [7_000 + first + step * n for n in range(wrote)]
        answer = {"output_tokens": 0 if end is None else wrote, "output_token_times": times or []}
        info = {"input_tokens": read, "lora_adapter": "sql"}
        if old:
            info |= answer
        else:
            info |= {"request_metrics": {"text": {"input_tokens": read}}}
            info |= {"response_metrics": answer}
        error = {"error_type": "Timeout", "error_msg": "late"} if end is None else None
        row = {"start_time": 7_000 + start, "end_time": 7_000 + (end or 9.0), "info": info}
        rows.append(row | {"request": "{}", "response": "text", "error": error})
    return rows


def genai_perf(usage=True):
    """Return Perf Analyzer's format, in nanoseconds. Each last response marks the end."""
    rows = []
    for _, start, first, end, read, wrote in REQUESTS:
        told = {"usage": {"prompt_tokens": read, "completion_tokens": wrote}} if usage else {}
        chunks = [{"choices": [{"delta": {"content": "a"}}]}] * 2
        outputs = [f"data: {json.dumps(one)}\n\n" for one in (*chunks, {"choices": []} | told)]
        moments = [] if first is None else [first, end, end + 0.5]
        row = {"timestamp": int(5e18 + start * 1e9), "request_inputs": {"payload": "{}"}}
        row["response_timestamps"] = [int(5e18 + one * 1e9) for one in moments]
        row["response_outputs"] = [{"response": one} for one in outputs if moments]
        rows.append(row)
    experiment = {"experiment": {"mode": "concurrency", "value": 4}, "requests": rows}
    return {"service_kind": "openai", "experiments": [experiment], "version": "1"}


def llmperf(start=True):
    return [
        {"error_code": None if end else 500, "error_msg": "", "inter_token_latency_s": 0.1}
        | {"ttft_s": first and first - begun, "end_to_end_latency_s": end and end - begun}
        | {"number_input_tokens": read, "number_output_tokens": wrote if end else 0}
        | ({"start_time": begun} if start else {})
        for _, begun, first, end, read, wrote in REQUESTS
    ]


def genai_bench(users=2):
    rows = [
        {"ttft": first and first - start, "e2e_latency": end and end - start}
        | {"num_input_tokens": read, "num_output_tokens": wrote if end else None}
        | {"error_code": None if end else 429, "error_message": None}
        for _, start, first, end, read, wrote in REQUESTS
    ]
    totals = {"num_concurrency": users, "num_completed_requests": 2}
    return {"aggregated_metrics": totals, "individual_request_metrics": rows}


def written(path, content, name="export.json"):
    file = path / name
    file.write_text(json.dumps(content, indent=1))
    return file


@pytest.mark.parametrize(
    ("tool", "content"),
    [
        ("guidellm", guidellm()),
        ("guidellm", older_guidellm()),
        ("guidellm", guidellm_without_computed_fields()),
        ("guidellm", guidellm_without_computed_fields("first_iteration", "text_tokens")),
        ("inference-perf", inference_perf()),
        ("inference-perf", inference_perf(old=True)),
        ("genai-perf", genai_perf()),
        ("llmperf", llmperf()),
    ],
)
def test_every_export_is_recognised_and_gives_the_same_requests(tmp_path, tool, content):
    scored = read_scored([written(tmp_path, content)])
    assert scored.layouts == (tool,)
    assert scored.clients == ("export",)
    requests = scored.requests
    np.testing.assert_allclose(requests.arrival_s, [0.0, 1.0, 2.0], atol=1e-5)
    np.testing.assert_allclose(requests.first_token_s, [1.0, 2.0, np.nan], atol=1e-5)
    np.testing.assert_allclose(requests.finish_s, [3.0, 4.0, np.nan], atol=1e-5)
    assert requests.status.tolist() == [FINISHED, FINISHED, REFUSED]
    assert requests.input_tokens.tolist() == [100, 100, 40] or tool == "genai-perf"
    assert requests.output_tokens.tolist() == [50, 100, 0]
    assert scored.failed == 1


def test_a_file_per_client_is_one_run(tmp_path):
    files = [written(tmp_path, guidellm(), f"{name}.json") for name in ("ann", "bob")]
    assert read_scored(files).clients == ("ann", "bob")


def test_fields_of_a_request_in_an_export_can_be_mapped(tmp_path):
    scored = read_scored([written(tmp_path, inference_perf())], names={"client": "lora_adapter"})
    assert scored.clients == ("sql",)


def test_requests_cut_off_by_guidellm_are_unfinished(tmp_path):
    content = guidellm()
    late = ("ann", 3.0, 3.5, None, 10, 4)
    content["benchmarks"][0]["requests"]["incomplete"] = [guidellm_request(late)]
    status = read_scored([written(tmp_path, content)]).requests.status.tolist()
    assert status == [FINISHED, FINISHED, REFUSED, UNFINISHED]


def test_a_different_total_in_an_export_is_reported(tmp_path):
    remarks = read_scored([written(tmp_path, guidellm(successful=20))]).remarks
    assert remarks == ("export.json says that 20 requests completed, but has records of 2",)
    assert read_scored([written(tmp_path, guidellm(successful=2))]).remarks == ()


def test_one_of_several_runs_is_chosen_by_its_number(tmp_path):
    content = guidellm()
    content["benchmarks"].append({"requests": {"successful": [guidellm_request(REQUESTS[0])]}})
    file = written(tmp_path, content)
    with pytest.raises(UsageError, match="holds 2 runs: choose one with --line 1 to 2"):
        read_scored([file])
    assert len(read_scored([file], line=1).requests) == 3
    assert len(read_scored([file], line=2).requests) == 1


@pytest.mark.parametrize(("users", "starts"), [(1, [0, 3, 6]), (2, [0, 0, 3]), (5, [0, 0, 0])])
def test_without_starts_a_closed_loop_is_assumed_and_reported(tmp_path, users, starts):
    """Both answers take 3 s. The user that is free first sends the next request."""
    scored = read_scored([written(tmp_path, genai_bench(users))])
    assert scored.layouts == ("genai-bench",)
    assert scored.requests.arrival_s.tolist() == pytest.approx(starts)
    (remark,) = scored.remarks
    assert remark.startswith("genai-bench exports no start times: requests are assumed to be sent")


def test_llmperf_without_start_times_is_one_request_after_the_other(tmp_path):
    scored = read_scored([written(tmp_path, llmperf(start=False))])
    assert scored.requests.arrival_s.tolist() == pytest.approx([0, 3, 6])
    assert "one after the other" in scored.remarks[0]
    latency = scored.requests.finish_s - scored.requests.arrival_s
    assert latency[:2].tolist() == [3.0, 3.0]


def test_genai_perf_without_token_counts_is_estimated_and_reported(tmp_path):
    scored = read_scored([written(tmp_path, genai_perf(usage=False))])
    assert scored.requests.output_tokens.tolist() == [2, 2, 0]
    assert "genai-perf exports no token counts" in scored.remarks[0]


def test_gaps_of_inference_perf_have_percentiles(tmp_path):
    result = CliRunner().invoke(app, ["score", str(written(tmp_path, inference_perf())), "--json"])
    assert json.loads(result.stdout)["median_itl_ms"] == pytest.approx(1000 * 2 / 99, rel=1e-3)


@pytest.mark.parametrize("content", [guidellm(), inference_perf(), llmperf()])
def test_exports_contain_their_units(tmp_path, content):
    with pytest.raises(UsageError, match="contain their units; leave --time-unit out"):
        read_scored([written(tmp_path, content)], unit="ms")


VALUES = (None, "", [], {}, -1, 0, 1.5, "x", "nan", True, 2**63, float("inf"), [1, "x"], {"a": 1})
EXPORTS = {
    "guidellm": guidellm(successful=2),
    "inference-perf": inference_perf(),
    "genai-perf": genai_perf(),
    "llmperf": llmperf(),
    "genai-bench": genai_bench(),
    "vllm": bench(REQUESTS, latencies=[3.0, 3.0, 0.0], completed=2),
    "aiperf": [*aiperf_records("ann"), *aiperf_records("bob")],
    "lines": rows(worker=1, id=3, cached_tokens=1, gaps=[0.1], error=None),
}


def places(value, before=()):
    """Return the paths of all values in JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield (*before, key)
        if isinstance(one, dict | list):
            yield from places(one, (*before, key))


TRIES = 60


@pytest.mark.parametrize("name", EXPORTS)
def test_any_error_in_a_file_is_one_line_or_scored(tmp_path, name):
    """Up to two values of each file are changed at random. No other error may be raised."""
    rng, scored = random.Random(name), 0
    for _ in range(TRIES):
        content = json.loads(json.dumps(EXPORTS[name]))
        for _ in range(rng.randint(1, 2)):
            *before, last = rng.choice(list(places(content)))
            holder = functools.reduce(operator.getitem, before, content)
            if rng.random() < 0.2 and isinstance(holder, dict):
                del holder[last]
            else:
                holder[last] = copy.deepcopy(rng.choice(VALUES))
        try:
            found = read_scored([written(tmp_path, content)])
        except UsageError:
            continue
        scored += 1
        window = scored_window(found.requests, found.programs, found.horizon_s, None, None)
        service = service_of(found.requests, found.last_token_s)
        json.dumps(scored_summary(found, service, window), allow_nan=False)
    assert 0.1 * TRIES < scored < 0.95 * TRIES


ODD = [
    {"benchmarks": [{"requests": {"successful": []}}]},
    {"benchmarks": [{"requests": {"successful": [1, "x", None]}}]},
    {"benchmarks": [{"requests": {"successful": [{}]}}]},
    [{"start_time": "x", "end_time": [], "request": 1, "info": [1]}],
    {"experiments": [{"requests": [{"timestamp": {}, "response_timestamps": 5}]}]},
    {"experiments": [{"requests": [{"response_timestamps": [1], "response_outputs": [7]}]}]},
    {"individual_request_metrics": [{"e2e_latency": "x", "ttft": []}], "aggregated_metrics": 3},
    [{"number_input_tokens": {}, "number_output_tokens": 1, "error_code": None}],
]


@pytest.mark.parametrize("content", ODD)
def test_a_damaged_export_is_one_line(tmp_path, content):
    with pytest.raises(DataError, match=r"^[^\n]*export\.json"):
        read_scored([written(tmp_path, content)])


@pytest.mark.parametrize("layout", ["vllm", "sglang"])
@pytest.mark.parametrize("ttft", ["none", "whole"])
def test_an_unstreamed_answer_ends_after_its_latency(tmp_path, layout, ttft):
    latencies = [3.0, 3.0, 0.0]
    record = bench(REQUESTS, itls=[[]] * 3, latencies=latencies, request_rate="inf")
    record["ttfts"] = latencies if ttft == "whole" else [0.0] * 3
    starts = record["start_times"]
    if layout == "sglang":
        del record["start_times"]
    scored = read_scored([lines(tmp_path / "a.jsonl", [record])])
    assert scored.layouts == (layout,)
    begun = np.array(starts) - starts[0] if layout == "vllm" else np.zeros(3)
    ends = np.add(begun, [3.0, 3.0, np.nan])
    np.testing.assert_allclose(scored.requests.finish_s, ends)
    np.testing.assert_allclose(scored.requests.first_token_s, ends)


def test_gaps_count_if_there_are_any(tmp_path):
    record = bench(REQUESTS[:2], latencies=[3.0, 3.0])
    record["itls"][1] = []
    record["ttfts"][1] = 3.0
    requests = read_scored([lines(tmp_path / "a.jsonl", [record])]).requests
    np.testing.assert_allclose(requests.first_token_s, [1.0, 4.0])
    np.testing.assert_allclose(requests.finish_s, [3.0, 4.0])


@pytest.mark.parametrize("rate", ["inf", float("inf"), "Infinity"])
def test_a_rate_of_infinity_needs_no_start_times(tmp_path, rate):
    record = bench(REQUESTS[:2], request_rate=rate)
    del record["start_times"]
    found = read_scored([lines(tmp_path / "a.jsonl", [record])]).requests.arrival_s
    assert found.tolist() == [0.0, 0.0]
