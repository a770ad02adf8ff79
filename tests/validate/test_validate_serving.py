"""Test measured serving runs: reading, the load generator, the gateways, the replay."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.core import PS_PER_S, Request, Segment
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.errors import DataError
from fairbench.hardware.catalogue import load_profile, resolve_profile
from fairbench.hardware.engine_params import VLLMParams, vllm_limits
from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.schedulers.gateway.token_bucket import TokenBucket
from fairbench.schedulers.views import WorkerLoad
from fairbench_studies.validation.serving.calibrate import fit
from fairbench_studies.validation.serving.closed_loop import NEXT_REQUEST_MS, ClosedLoop
from fairbench_studies.validation.serving.compare import compare_serving
from fairbench_studies.validation.serving.engines import engine_worker
from fairbench_studies.validation.serving.files import load_serving, read_serving
from fairbench_studies.validation.serving.gateway import GATEWAY_MS, gateway_queue
from fairbench_studies.validation.serving.measured import INFERGRID, serving_run
from fairbench_studies.validation.serving.predict import FACTORS, ROOM_S, grade_of, predict
from fairbench_studies.validation.serving.profiles import MEASURED, VLLM_REQUEST_MS, profile_of
from fairbench_studies.validation.serving.replay import replay
from fairbench_studies.validation.serving.table import serving_text
from tests.shared_data import SERVING_RUNS, VLLM_MIXED_RUNS, needs

PROFILE = load_profile(MEASURED)


def record(n=3, **changes):
    """Return a closed loop of ``n`` prompts of 100 tokens, 10 tokens out, one at a time."""
    columns = {
        "client": ["all"] * n,
        "submit_s": [float(index) for index in range(n)],
        "prompt_tokens": [100] * n,
        "output_tokens": [10] * n,
        "ttft_s": [0.03] * n,
        "latency_s": [0.13] * n,
        "error": [""] * n,
    }
    run = {
        "run_id": "sglang-a100-fixed-c1-run1", "engine": "sglang", "gpu": "a100-sxm4-80gb",
        "model": "llama-3.1-8b", "tp": 1, "arrival": "closed", "concurrency": 1,
        "connection_limit": 100, "columns": columns,
    }  # fmt: skip
    return {**run, **changes}


def open_record(gateway, **columns):
    run = record(len(columns["client"]), arrival="open", gateway=gateway, run_id="x-flood")
    del run["concurrency"]
    return {**run, "columns": {**run["columns"], **columns}}


def write(folder, *records):
    path = folder / "runs.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "tgi"}, "field 'engine' = 'tgi': must be sglang or vllm"),
        ({"arrival": "burst"}, "field 'arrival' = 'burst': must be closed or open"),
        ({"concurrency": "8"}, "field 'concurrency' = '8': must be int"),
        ({"columns": {"client": ["a"]}}, "columns: field 'submit_s' must be a list of values"),
        (
            {"columns": {**record()["columns"], "ttft_s": [1.0]}},
            "columns: field 'ttft_s' must have one value per request",
        ),
        (
            {"columns": {**record()["columns"], "prompt_tokens": [1, -1, 1]}},
            "columns: field 'prompt_tokens' must hold numbers of at least 0",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, changes, message):
    path = write(tmp_path, record(), {**record(run_id="other"), **changes})
    with pytest.raises(DataError) as caught:
        load_serving(path)
    assert str(caught.value) == f"{path}, line 2, run other: {message}"


def test_two_runs_of_a_name_are_refused(tmp_path):
    with pytest.raises(
        DataError, match="line 2: two runs have the name 'sglang-a100-fixed-c1-run1'"
    ):
        load_serving(write(tmp_path, record(), record()))


def test_a_closed_loop_waits_for_connections_and_answers():
    clock, sent = Clock(), []
    loop = ClosedLoop(clock, 5, concurrency=3, connections=2, send=sent.append)
    while clock.next_ps() is not None:
        clock.step()
    assert sent == [0, 1]  # the third request has no connection
    loop.over(0)
    assert sent == [0, 1, 2]
    clock.step()  # the answer made room for a fourth request, which waits for a connection
    assert sent == [0, 1, 2]
    loop.over(1)
    assert sent == [0, 1, 2, 3]
    clock.step()
    assert [at / PS_PER_MS for at in loop.made_ps] == [
        0,
        0,
        0,
        NEXT_REQUEST_MS,
        2 * NEXT_REQUEST_MS,
    ]


def test_a_client_that_counts_prompts_reads_and_sends_nothing_meanwhile():
    clock, sent = Clock(), []
    loop = ClosedLoop(
        clock, 6, concurrency=3, connections=3, send=sent.append, counted=[100, 1_000, 2_000] * 2
    )

    def at(ms, act):
        clock.at(round(ms * PS_PER_MS), ARRIVE, 0, act)

    at(10, lambda: loop.over(0))  # counting takes 0.3 + 0.2 ms
    at(10.1, lambda: loop.over(1))
    at(10.2, lambda: loop.over(2))  # with one connection, from 10.5 ms: 2.3 and 4.3 ms
    while clock.next_ps() is not None:
        clock.step()
    assert sent == [0, 1, 2, 3, 4, 5]
    thread = loop.thread
    assert [made / PS_PER_MS for made in loop.made_ps] == pytest.approx([0, 0, 0, 10.5, 17.1, 17.1])
    assert [read / PS_PER_MS for read in thread.read_ps[:3]] == pytest.approx([10, 10.5, 12.8])
    for ms, read_ms in ((9, 9), (10, 10.5), (10.4, 10.5), (10.5, 17.1), (17, 17.1), (17.1, 17.1)):
        assert thread.reads_at(round(ms * PS_PER_MS)) == round(read_ms * PS_PER_MS)


def test_the_client_of_infergrid_counts_prompts_as_fast_as_its_gaps_between_requests_show():
    columns = {**record()["columns"], "prompt_tokens": [785, 3_089, 12_305]}
    run = serving_run(record(columns=columns, commit=INFERGRID), "here")
    assert run.counts_prompts
    assert not serving_run(record(), "here").counts_prompts
    simulated = replay(run, PROFILE)
    gaps_ms = 1_000 * (np.diff(simulated.submit_s) - simulated.latency_s[:-1])
    # measured after prompts of these lengths: 1.9 and 6.3 ms
    assert gaps_ms == pytest.approx([0.3 + 0.002 * 785, 0.3 + 0.002 * 3_089], abs=1e-6)


def test_a_token_bucket_equals_a_hand_computation():
    bucket = TokenBucket(TokenBucket.Params(rate_per_min=60, burst=2))
    prompt = (Segment("p", 1),)

    def accepts(client, now_s):
        return bucket.accepts(Request(0, client, 0, 0, prompt, 1, 1), now_s)

    # Two tokens come together, then one a second. Half a second gives half a token, and an idle
    # time at most two.
    times_s = [0, 0, 0, 0.5, 1.0, 1.5, 2.0, 10.0, 10.0, 10.0]
    assert [accepts("a", at) for at in times_s] == [
        True, True, False, False, True, False, True, True, True, False
    ]  # fmt: skip
    assert accepts("b", 10.0)


class OneWorker:
    def __init__(self):
        self.sent = []

    def workers(self):
        return range(1)

    def load(self, _):
        return WorkerLoad(len(self.sent), 0)


def test_a_gateway_queues_requests_over_its_limit():
    fleet = OneWorker()
    queue = gateway_queue("fifo, 2 at a time", fleet)
    for number in range(4):
        queue.enter(Request(number, "a", number, 0, (Segment("p", 1),), 1, 1), 0.0)
    queue.release(0.0, lambda request, _: fleet.sent.append(request.request_id))
    assert (fleet.sent, len(queue)) == ([0, 1], 2)
    with pytest.raises(
        DataError, match="'gateway' = 'lifo': must be 'none', 'fifo', 'fifo, N at a"
    ):
        gateway_queue("lifo", fleet)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fifo, 2 at a time", [0, 1]),
        ("fifo at the gateway, 2 at a time", [0, 1]),
        ("drr, 2 at a time", [0, 3]),
        ("deficit round robin at the gateway, 2 at a time", [0, 3]),
        ("DRR", [0, 3, 1, 2]),
    ],
)
def test_infergrids_drr_takes_the_client_with_the_fewest_requests(policy, order):
    # Client a sends three requests, then b one. a's second counts 2, and b's first counts 1.
    fleet = OneWorker()
    queue = gateway_queue(policy, fleet)
    for number, client in enumerate("aaab"):
        queue.enter(Request(number, client, number, 0, (Segment("p", 1),), 1, 1), 0.0)
    queue.release(0.0, lambda request, _: fleet.sent.append(request.request_id))
    assert fleet.sent == order


def test_single_requests_take_the_time_of_the_profile():
    run = serving_run(record(), "here")
    simulated = replay(run, PROFILE)
    front = PROFILE.frontend
    before_ms = front.request_ms + front.token_ms * 100 + front.delay_ms
    ttft_ms = before_ms + PROFILE.prefill_ps([(0, 100)]) / PS_PER_MS
    assert 1_000 * simulated.ttft_s == pytest.approx([ttft_ms] * 3, abs=1e-6)
    decode_ps = sum(PROFILE.decode_ps(1, 101 + step) for step in range(9))
    assert simulated.latency_s - simulated.ttft_s == pytest.approx(decode_ps / PS_PER_S, abs=1e-9)
    gaps_s = np.diff(simulated.submit_s) - simulated.latency_s[:-1]
    assert 1_000 * gaps_s == pytest.approx(NEXT_REQUEST_MS, abs=1e-6)


def test_a_later_run_of_a_set_finds_its_prompts_cached():
    cold = replay(serving_run(record(), "here"), PROFILE)
    warm = replay(serving_run(record(run_id="sglang-a100-fixed-c1-run2"), "here"), PROFILE)
    saved_ps = PROFILE.prefill_ps([(0, 100)]) - PROFILE.prefill_ps([(99, 1)])
    assert cold.ttft_s - warm.ttft_s == pytest.approx(saved_ps / PS_PER_S, abs=1e-9)


def test_a_bucket_refuses_only_the_flood():
    n = 40
    run = serving_run(
        open_record(
            "token bucket 60/min, burst 5",
            client=["flooder"] * (n - 1) + ["quiet_0"],
            submit_s=[0.0] * (n - 1) + [1.0],
            prompt_tokens=[0] * n,
            output_tokens=[10] * n,
        ),
        "here",
    )
    simulated = replay(run, PROFILE)
    assert int(simulated.served.sum()) == 6
    assert simulated.served[-1]
    alone = serving_run(
        open_record(
            "fifo", client=["quiet_0"], submit_s=[0.0], prompt_tokens=[0], output_tokens=[10]
        ),
        "here",
    )
    front, prompt = PROFILE.frontend, 9
    ttft_ms = GATEWAY_MS + front.request_ms + front.token_ms * prompt + front.delay_ms
    ttft_ms += PROFILE.prefill_ps([(0, prompt)]) / PS_PER_MS
    assert 1_000 * replay(alone, PROFILE).ttft_s == pytest.approx([ttft_ms], abs=1e-6)


def test_predictions_do_not_read_the_measurements(tmp_path):
    run, other = record(run_id="sglang-a100-fixed-c1-run2"), record(run_id="other-c1-run2")
    other["columns"] = {
        name: column for name, column in run["columns"].items() if "_s" not in name[-2:]
    } | {"submit_s": run["columns"]["submit_s"]}
    del other["columns"]["error"]
    (one, unread), failed = read_serving(write(tmp_path, run, other), predict=True)
    assert not failed
    found = [predict(each, PROFILE)["metrics"] for each in (one, unread)]
    assert {name: entry["simulated"] for name, entry in found[0].items()} == {
        name: entry["simulated"] for name, entry in found[1].items()
    }
    for entry in found[0].values():
        assert entry["low"] <= entry["simulated"] <= entry["high"]
    tpot = found[0]["tpot_p50_ms"]
    assert tpot["low"] < tpot["high"]


def test_intervals_are_widened_by_the_errors_of_the_grade(tmp_path):
    (run,), _ = read_serving(write(tmp_path, record()), predict=True)
    profiles = {
        "measured": PROFILE,
        "calibrated": replace(PROFILE, profile_id="a100-80gb/m/tp1/file:x", grade="calibrated: x"),
        "derived": replace(PROFILE, profile_id="a100-80gb/m/tp1/roofline", grade="derived: x"),
    }
    for grade, profile in profiles.items():
        found = predict(run, profile)["metrics"]
        assert grade_of(profile) == grade
        for name, factor in FACTORS[grade].items():
            room_s = ROOM_S.get(name, 0.0)
            for key, entry in found.items():
                if key.split("/")[0] == name:
                    assert entry["low"] <= max(0.0, entry["simulated"] / factor - room_s)
                    assert entry["high"] >= entry["simulated"] * factor + room_s
        assert found["refused"] == {"simulated": 0.0, "low": 0.0, "high": 0.0}
    assert grade_of(replace(PROFILE, grade="measured: fitted to a probe")) == "measured"


def test_the_command_writes_files_and_predictions(tmp_path):
    path, out = write(tmp_path, record()), tmp_path / "out"
    result = CliRunner().invoke(app, ["validate", str(path), "--output-dir", str(out), "--json"])
    assert result.exit_code == 0
    run = json.loads(result.stdout)["runs"][0]
    assert run["timing_profile"] == MEASURED
    assert run == json.loads((out / "validation.json").read_text())["runs"][0]
    window = run["windows"][0]
    assert window["clients"][0]["service_rate_tok_s"].keys() == {
        "simulated", "measured", "error_pct"
    }  # fmt: skip
    for _ in range(2):
        result = CliRunner().invoke(app, ["validate", str(path), "--predict", f"{tmp_path}/p.json"])
    assert result.exit_code == 2  # a prediction that could be repeated proves nothing


def test_predictions_name_the_runs_that_cannot_be_replayed_and_hold_the_others(tmp_path):
    path = write(tmp_path, record(run_id="elsewhere", gpu="tpu"), record(run_id="good"),
                 record(run_id="bad", engine="tgi"))  # fmt: skip
    result = CliRunner().invoke(app, ["validate", str(path), "--predict", f"{tmp_path}/p.json"])
    assert result.exit_code == 1
    assert "  ! elsewhere: no timing profile for gpu 'tpu'" in result.stdout
    written = json.loads((tmp_path / "p.json").read_text())
    assert [one["name"] for one in written["predictions"]] == ["good"]
    assert [one["run"] for one in written["not_replayed"]] == ["bad", "elsewhere"]
    assert "not confidence intervals" in written["intervals"]["meaning"]


def test_an_undefined_prediction_is_null(tmp_path):
    path = write(tmp_path, record(columns={**record()["columns"], "output_tokens": [1] * 3}))
    result = CliRunner().invoke(app, ["validate", str(path), "--predict", f"{tmp_path}/p.json"])
    assert result.exit_code == 0
    metrics = json.loads((tmp_path / "p.json").read_text())["predictions"][0]["metrics"]
    assert metrics["tpot_p50_ms"] == {"simulated": None, "low": None, "high": None}
    assert metrics["throughput_tok_s"]["low"] > 0


def test_a_file_of_predictions_that_exists_is_refused_before_any_replay(tmp_path, monkeypatch):
    monkeypatch.setattr("fairbench_studies.validation.serving.predict.predict", None)
    (tmp_path / "p.json").write_text("mine", encoding="utf-8")
    path = write(tmp_path, record())
    result = CliRunner().invoke(app, ["validate", str(path), "--predict", f"{tmp_path}/p.json"])
    assert result.exit_code == 2
    assert (tmp_path / "p.json").read_text() == "mine"


@pytest.mark.parametrize("gpu", ["a10g", "l40s", "a100", "h100", "h200", "b200"])
def test_validate_and_run_use_the_same_limits_of_vllm(gpu):
    profile = resolve_profile(gpu, "llama-3.1-8b")
    run = serving_run(open_record("fifo", **record()["columns"]) | {"engine": "vllm"}, "here")
    served = engine_worker(run, profile, Clock()).limits
    expected = vllm_limits(VLLMParams(), profile)
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        assert getattr(served, name) == getattr(expected, name)
    large = (16_384 if gpu == "b200" else 8_192, 1_024)
    wanted = (2_048, 256) if gpu in ("a10g", "l40s", "a100") else large
    assert (served.max_num_batched_tokens, served.max_num_seqs) == wanted


def test_profiles_of_other_gpus_have_the_measured_frontend():
    h100 = profile_of("h100-sxm5-80gb", "llama-3.1-8b", 1, "vllm")
    assert h100.profile_id == "h100-80gb/llama-3.1-8b/tp1/vllm-0.24.0"
    assert h100.frontend == replace(PROFILE.frontend, request_ms=VLLM_REQUEST_MS)
    a100 = profile_of("a100-sxm4-80gb", "llama-3.1-8b", 1, "vllm")
    assert (a100.profile_id, a100.frontend) == (MEASURED, h100.frontend)
    with pytest.raises(
        DataError, match=r"no timing profile for gpu 'b200'.*choose from b200-180gb/"
    ):
        profile_of("b200", "llama-3.1-8b", 1, "vllm")


@needs(SERVING_RUNS)
def test_tested_runs_come_out_and_the_operator_profile_is_worse():
    operator = load_profile("a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10")
    runs = {run.name: run for run in load_serving(SERVING_RUNS)}
    for name in ("sglang-a100-mixed-c8-run1", "sglang-a100-mixed-c128-run1"):
        run = runs[name]
        measured, other = (
            compare_serving(run, replay(run, profile), "") for profile in (PROFILE, operator)
        )
        assert not run.fitted
        assert measured.throughput.within(2)
        assert measured.tpot_p50_ms.within(8)
        assert measured.ttft[0].p50_s.within(10)
        assert measured.ttft[0].p99_s.within(5)
        assert abs(other.throughput.error_pct) > 10


@needs(SERVING_RUNS)
@pytest.mark.slow
def test_the_fit_gives_the_bundled_profile():
    *_, found = fit(load_serving(SERVING_RUNS))
    for sequences, context in ((1, 1_000), (8, 4_000), (64, 30_000), (100, 400_000)):
        expected = found.profile.decode_ps(sequences, context)
        assert PROFILE.decode_ps(sequences, context) == pytest.approx(expected, rel=0.005)
    for tokens in (1, 400, 8_000):
        expected = found.profile.prefill_ps([(0, tokens)])
        assert PROFILE.prefill_ps([(0, tokens)]) == pytest.approx(expected, rel=0.005)


def test_a_prompt_over_the_limit_of_the_server_spends_a_token_of_the_gateway(tmp_path):
    # There are two tokens. The long prompt takes the first and is refused by the server, and one
    # other prompt gets the second. Without the long prompt, both others would be served.
    columns = {
        "client": ["a"] * 3, "submit_s": [0.0, 0.001, 0.002], "prompt_tokens": [8_192, 100, 100],
        "output_tokens": [0, 10, 10], "ttft_s": [0, 0.1, 0.1], "latency_s": [0, 0.2, 0.2],
        "error": ["HTTP 500", "", ""],
    }  # fmt: skip
    run = open_record("token bucket 60/min, burst 2", **columns)
    (measured,) = load_serving(write(tmp_path, run))
    assert replay(measured, PROFILE).served.tolist() == [False, True, False]
    short = {**columns, "prompt_tokens": [100] * 3}
    (measured,) = load_serving(write(tmp_path, open_record("fifo", **short)))
    assert replay(measured, PROFILE).served.all()


@needs(VLLM_MIXED_RUNS)
@pytest.mark.parametrize("name", ["vllm-a100-mixed-c8-run1", "vllm-a100-mixed-c32-run1"])
def test_long_prompts_in_vllm_take_as_long_as_measured_on_an_a100(name):
    (run,) = (run for run in load_serving(VLLM_MIXED_RUNS) if run.name == name)
    profile = profile_of(run.gpu, run.model, run.tp, run.engine)
    found = compare_serving(run, replay(run, profile), "")
    assert not run.fitted
    assert found.throughput.within(5)
    assert found.tpot_p50_ms.within(5)


def test_a_short_time_to_first_token_is_shown_as_unresolved(tmp_path):
    (run,) = load_serving(write(tmp_path, record()))  # 30 ms
    slow = replace(run, ttft_s=np.full(3, 0.3), latency_s=np.full(3, 0.4))
    for measured, shown in ((run, True), (slow, False)):
        text = serving_text([compare_serving(measured, replay(run, PROFILE), "")])
        (row,) = (line for line in text.splitlines() if line.startswith(run.name))
        assert ("<" in row) == shown
