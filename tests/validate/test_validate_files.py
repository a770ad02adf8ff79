"""Test damaged, contradictory and differently ordered files of measured runs."""

import gzip
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError
from fairbench_studies.validation.programs.measured import program_run, read_programs
from fairbench_studies.validation.records import Kind, kind_of
from fairbench_studies.validation.serving.compare import compare_serving
from fairbench_studies.validation.serving.files import read_serving
from fairbench_studies.validation.serving.gateway import gateway_queue
from fairbench_studies.validation.serving.measured import serving_run
from fairbench_studies.validation.serving.profiles import MEASURED, gpu_name
from fairbench_studies.validation.slora.measured import read_measured
from tests.validate.test_validate_programs import CLIENT, SERVER
from tests.validate.test_validate_programs import record as programs
from tests.validate.test_validate_serving import open_record, write
from tests.validate.test_validate_serving import record as closed
from tests.validate.test_validate_tenants import record as tenants

SLORA = {
    "path": "fair_bench/FCFS/all_results_overload.jsonl",
    "client": [0, 1],
    "prompt_len": [256, 256],
    "output_len": [8, 8],
    "req_time": [0.0, 30.0],
    "first_token_latency": [0.2, 0.2],
    "request_latency": [0.6, 0.6],
}


def validate(path, *args):
    return CliRunner().invoke(app, ["validate", str(path), *args])


def with_columns(record, **columns):
    return {**record, "columns": {**record["columns"], **columns}}


@pytest.mark.parametrize("make", [closed, tenants])
@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"client": None}, "field 'client' must hold a name for each request"),
        ({"submit_s": None}, "field 'submit_s' must hold a number for each request"),
        ({"ttft_s": None}, "field 'ttft_s' must hold a number for each answered request"),
        ({"ttft_s": 9.0}, "field 'ttft_s' = 9: must be at most the request's latency_s"),
        ({"prompt_tokens": 0}, "field 'prompt_tokens' must be at least 1 for each answered"),
    ],
)
def test_one_wrong_value_of_a_column_is_named(make, columns, complaint):
    record = make()
    ((name, value),) = columns.items()
    wrong = {name: [value, *record["columns"][name][1:]]}
    with pytest.raises(DataError, match=complaint) as caught:
        serving_run(with_columns(record, **wrong), "f")
    assert str(caught.value).startswith(f"f, run {record['run_id']}: columns: ")


@pytest.mark.parametrize(
    "failed", [{"error": ["HTTP 500"] * 3}, {"latency_s": [None] * 3}, {"output_tokens": [0] * 3}]
)
def test_a_run_without_an_answer_is_refused(failed):
    with pytest.raises(DataError, match="no request was answered"):
        serving_run(with_columns(closed(3), **failed), "f")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"concurrency": 0}, "field 'concurrency' = 0: must be at least 1"),
        ({"connection_limit": 0}, "field 'connection_limit' = 0: must be at least 1"),
        ({"tp": 0}, "field 'tp' = 0: must be at least 1"),
        ({"max_num_seqs": -1}, "field 'max_num_seqs' = -1: must be at least 0"),
        ({"pool_tokens": 10**9}, "field 'pool_tokens' = 1000000000: must be at most 10,000,000"),
    ],
)
def test_a_count_out_of_range_is_named(changes, complaint):
    with pytest.raises(DataError, match=complaint):
        serving_run(closed(**changes), "f")


def test_rows_in_any_order_and_times_from_any_start_give_the_same_run(tmp_path):
    record = tenants()
    order = [*range(1, len(record["columns"]["client"]), 2), *range(0, 40, 2)]
    moved = {name: [values[row] for row in order] for name, values in record["columns"].items()}
    moved["submit_s"] = [1.7e9 + time for time in moved["submit_s"]]
    tables = []
    for one in (record, {**record, "columns": moved}):
        result = validate(write(tmp_path, one))
        assert result.exit_code == 0
        tables.append(result.stdout)
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (closed(), {"columns": {**closed()["columns"], "prompt_tokens": [900_000, 100, 100]}}),
        (closed(), {"columns": {**closed()["columns"], "prompt_tokens": [900_000, 100, 100]},
                    "commit": "a8d3ea8934cb7c4144427c3065c31b6ab2a9af72"}),
        (tenants(), {"columns": {**tenants()["columns"], "prompt_tokens": [900_000] + [9] * 39}}),
    ],
)  # fmt: skip
def test_a_prompt_beyond_the_pool_is_refused_with_the_size_of_the_pool(tmp_path, record, changes):
    result = validate(write(tmp_path, {**record, **changes}))
    assert result.exit_code == 2
    assert f"run {record['run_id']}: 1 of " in result.stderr
    assert "do not fit into the simulated KV pool of" in result.stderr


def test_a_run_without_answers_after_the_warm_up_is_refused(tmp_path):
    failing = {**tenants()["columns"], "error": [""] * 10 + ["HTTP 500"] * 30}
    result = validate(write(tmp_path, tenants(), tenants("failing", columns=failing)))
    assert result.exit_code == 1
    assert "  ! failing: no request that was sent after the warm-up of 10 s" in result.stdout


@pytest.mark.parametrize(("seconds", "counted"), [(0.0, 40), (19.9, 40), (20.0, 20), (39.0, 30)])
def test_a_short_open_loop_counts_as_a_whole(tmp_path, seconds, counted):
    # 20 of 40 requests at equal intervals remain without the first 10 of 20 s.
    sent_s = np.linspace(0, seconds, 40).tolist()
    record = tenants(columns={**tenants()["columns"], "submit_s": sent_s})
    assert int(serving_run(record, "f").steady.sum()) == counted
    result = validate(write(tmp_path, record))
    assert result.exit_code == 0
    assert "Not replayed" not in result.stdout


def test_answers_of_one_token_have_no_time_per_token(tmp_path):
    run = with_columns(closed(), output_tokens=[1] * 3, latency_s=[0.03] * 3)
    result = validate(write(tmp_path, run))
    assert result.exit_code == 0
    assert re.search(r"\bnan\b", result.stdout) is None
    assert "time per output token" not in result.stdout  # there is no target


@pytest.mark.parametrize(
    "said", [{"tenants": []}, {"tenants": {"a": 5}}, {"tenants": {"a": {"ttft_percentiles": [1]}}},
             {"tenants": {"a": {"ttft_percentiles": {"p50_us": None, "p99_us": "fast"}}}}],
)  # fmt: skip
def test_a_prediction_of_another_form_is_left_out(tmp_path, said):
    result = validate(write(tmp_path, tenants(blis=said)))
    assert result.exit_code == 0
    assert re.search(r"\bnan\b", result.stdout) is None


def test_a_file_is_recognised_by_its_first_complete_run(tmp_path):
    broken = {"run_id": "broken", "path": "results/fixed/c1.csv", "engine": "sglang"}
    path = write(tmp_path, broken, closed())
    assert kind_of(path) is Kind.SERVING
    result = validate(path)
    assert result.exit_code == 1
    assert f"  ! broken: {path}, line 1: missing field 'columns'" in result.stdout
    assert kind_of(write(tmp_path, {"run_id": "broken"}, programs())) is Kind.PROGRAMS
    assert kind_of(write(tmp_path, {"path": "x"}, SLORA)) is Kind.SLORA


@pytest.mark.parametrize("content", ["{}", "5", '["a"]', '{"runs": []}'])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(DataError, match="holds no measured runs: a run has the fields 'run_id'"):
        kind_of(path)


@pytest.mark.parametrize("indent", [None, 1])
def test_serving_runs_may_be_one_list_on_several_lines(tmp_path, indent):
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([closed(), closed(run_id="two")], indent=indent))
    assert [run.name for run in read_serving(path)[0]] == [closed()["run_id"], "two"]


def test_a_truncated_gzip_file_is_named(tmp_path):
    path = tmp_path / "runs.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(closed(200)).encode())[:-20])
    with pytest.raises(DataError, match="damaged gzip file"):
        kind_of(path)


def test_a_second_run_with_the_same_name_is_a_line(tmp_path):
    for read, record in ((read_serving, closed()), (read_programs, programs()),
                         (read_measured, SLORA)):  # fmt: skip
        runs, failed = read(write(tmp_path, record, record))
        assert len(runs) == 1
        assert [one.reason for one in failed] == ["an earlier run has this name; rename one"]


def test_a_run_is_marked_as_fitted_only_with_the_profile_that_was_fitted(tmp_path):
    path = write(tmp_path, closed(200))
    assert "sglang-a100-fixed-c1-run1*" in validate(path).stdout
    assert (
        "run1*" not in validate(path, "--profile", "h100-80gb/llama-3.1-8b/tp1/vllm-0.24.0").stdout
    )
    other = {**SLORA, "path": "fair_bench/sec6.3/FCFS/all_results_overload.jsonl"}
    assert "FCFS/overload*" in validate(write(tmp_path, SLORA)).stdout
    assert "FCFS/overload*" not in validate(write(tmp_path, other)).stdout


def test_names_cannot_write_escapes_or_commands(tmp_path):
    bad = "\x1b[31m\n::error title=x::y"
    run = {**tenants(bad), "columns": {**tenants()["columns"], "client": [bad] * 40}}
    output = validate(write(tmp_path, run)).stdout
    assert "\x1b" not in output
    assert "\n::error" not in output


def test_a_policy_of_sglang_is_refused_for_vllm(tmp_path):
    result = validate(write(tmp_path, tenants(), tenants("two", policy="lpm_mdrr")))
    assert "  ! two: field 'policy' = 'lpm_mdrr': must be fcfs or default for vllm" in result.stdout


def test_vllm_does_not_use_a_pool_that_the_times_contradict(tmp_path):
    slow = {**tenants()["columns"], "latency_s": [20.0] * 40}
    result = validate(write(tmp_path, tenants(columns=slow, pool_tokens=2_000)))
    assert "pool of 2,000 tokens not used" in result.stdout
    assert "the default pool of vllm" in " ".join(result.stdout.split())


@pytest.mark.parametrize("gateway", ["fifo, 0 at a time", "token bucket 0/min, burst 0", "wfq"])
def test_a_gateway_that_refuses_every_request_is_refused(gateway):
    with pytest.raises(DataError, match=f"field 'gateway' = '{gateway}': must be 'none', 'fifo'"):
        gateway_queue(gateway, None)


def test_a_gateway_that_refuses_every_client_serves_no_token():
    run = serving_run(open_record("fifo", client=["a"], output_tokens=[10], submit_s=[0.0],
                                  prompt_tokens=[100], ttft_s=[0.1], latency_s=[0.2],
                                  error=[""]), "f")  # fmt: skip
    nothing = serving_run(open_record("fifo", client=["a"], output_tokens=[10], submit_s=[0.0],
                                      prompt_tokens=[100], ttft_s=[0.1], latency_s=[0.2],
                                      error=[""]), "f")  # fmt: skip
    nothing.latency_s[:] = nothing.ttft_s[:] = float("nan")
    run.submit_s[:] = nothing.submit_s[:] = 20.0
    assert compare_serving(run, nothing, MEASURED).throughput.simulated == 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("h100-sxm5-80gb", "h100-80gb"),
        ("A100-PCIE-80GB", "a100-pcie-80gb"),  # a GPU with another clock
        ("l40s-48gb", "l40s-48gb"),
    ],
)
def test_gpus_are_recognised_by_other_names(text, name):
    assert gpu_name(text) == name


@pytest.mark.parametrize(
    ("client", "complaint"),
    [
        (
            CLIENT.replace("4 2 ", "0 2 "),
            "option --branches: its values must be whole numbers of at least 1",
        ),
        (CLIENT.replace("4 2 ", "1.5 2 "), "option --branches: its values must be whole numbers"),
        (
            CLIENT.replace("3 programs", "2 programs"),
            "'user0' has 3 latencies, but only 2 programs",
        ),
        (CLIENT.replace("1,000 tokens", "10 tokens"), "'average N tokens', with N at least 34"),
        (CLIENT.replace("1,000 tokens", ", tokens"), "'average N tokens', with N at least 34"),
        (f"{CLIENT} --dp 0", "option --dp: its values must be whole numbers of at least 1"),
    ],
)
def test_an_impossible_client_is_named(client, complaint):
    with pytest.raises(DataError, match=complaint):
        program_run(programs(client=client), "f")


def test_users_are_in_the_order_of_their_numbers():
    client = CLIENT.replace("2 4", "2 " * 12).replace(
        "4 2 ", " ".join(map(str, range(1, 13))) + " "
    )
    latencies = {f"user{number}": [float(number + 1)] for number in range(12)}
    run = program_run(programs(client=client, program_latencies_s=latencies), "f")
    assert run.branches == tuple(range(1, 13))
    assert list(run.latencies_s) == [f"user{number}" for number in range(12)]


def test_a_server_without_a_pool_is_refused():
    server = SERVER.replace("--max-total 20000", "--max-total 0")
    with pytest.raises(
        DataError, match="option --max-total-tokens: its values must be whole numbers"
    ):
        program_run(programs(server=server), "f")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"request_latency": [-1, -1]}, "no request was answered"),
        ({"first_token_latency": [-5, 0.2]}, "'first_token_latency' = -5: must be at least 0 and"),
        ({"first_token_latency": [0.9, 0.2]}, "request's request_latency, 0.6"),
    ],
)
def test_times_of_s_lora_that_contradict_each_other_are_named(tmp_path, changes, complaint):
    with pytest.raises(DataError, match=complaint):
        read_measured(write(tmp_path, {**SLORA, **changes}))
