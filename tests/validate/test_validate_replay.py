"""Test measured runs: reading, replay, and calibration."""

import dataclasses
import gzip
import json
from itertools import pairwise

import numpy as np
import pytest

from fairbench.errors import DataError
from fairbench.hardware.catalogue import load_profile, resolve_profile
from fairbench.schedulers.local.fcfs import FCFS
from fairbench_studies.kit.trace import Trace, throughput_tok_s
from fairbench_studies.validation.slora import calibrate
from fairbench_studies.validation.slora.artifact import build_scheduler
from fairbench_studies.validation.slora.forms import ArtifactForm, EarlyArtifactForm
from fairbench_studies.validation.slora.measured import MeasuredRun, load_measured
from fairbench_studies.validation.slora.recorded import recorded
from fairbench_studies.validation.slora.replay import (
    ADDED_PROMPT_TOKENS,
    FITTED_PROFILE,
    FITTED_SCENARIOS,
    PREFILL_OVERHEAD_MS,
    REQUEST_STEP_MS,
    RESPONSE_MS,
    fitted_profile,
    replay,
    replay_run,
    server_limits,
    with_request_step,
)
from tests.shared_data import VTC_RUNS, needs
from tests.slow_params import slow


def record(path="fair_bench/FCFS/all_results_overload.jsonl", **changes):
    columns = {
        "client": [0, 1, 0],
        "prompt_len": [256, 64, 256],
        "output_len": [100, 50, 2],
        "req_time": [0.5, 1.0, 30.0],
        "first_token_latency": [0.2, 0.3, -1],
        "request_latency": [4.2, 2.3, -1],
    }
    return {"path": path, **columns, **changes}


def write(folder, *records, name="runs.jsonl"):
    path = folder / name
    text = "".join(json.dumps(one) + "\n" for one in records)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.gz"])
def test_runs_are_read(tmp_path, name):
    other = record("x/y/LShare/rpm20/all_results_real.jsonl")
    limited, run = load_measured(write(tmp_path, record(), other, name=name))[::-1]
    assert (run.name, run.scheduler, run.scenario) == ("FCFS/overload", "FCFS", "overload")
    assert limited.name == "LShare/rpm20/real"
    assert run.trace.refused == 1
    assert run.trace.prompt_tokens.tolist() == [256, 64, 256]
    assert np.isnan(run.trace.first_token_latency_s).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"path": 3}, "line 1: missing field 'path'"),
        ({"path": "all_results_real.jsonl"}, "must have the form SCHEDULER/FILE"),
        ({"path": "a/VCT/all_results_real.jsonl"}, "line 1: unknown scheduler of a measured run"),
        ({"path": "a/VCT/all_results_real.jsonl"}, "choose from FCFS, LCF, LShare/rpmN, VTC"),
        ({"path": "a/VCT/all_results_real.jsonl"}, "Did you mean 'VTC'?"),
        ({"path": "a/LShare/rpm0/all_results_real.jsonl"}, "'LShare/rpm0'"),
        (
            {"output_len": [1, 2]},
            "line 1: field 'output_len' must have as many values as field 'client'",
        ),
        ({"req_time": ["x", 1, 2]}, "field 'req_time' must be a list of numbers"),
        ({"req_time": [float("nan"), 1, 2]}, "field 'req_time' must be a list of numbers"),
        ({"req_time": 7}, "field 'req_time' must be a list of numbers"),
        ({"recorded": "2024"}, "line 1: unknown date in field 'recorded' '2024'"),
        ({"weights": [1, 0]}, "line 1: field 'weights' must be a list of positive numbers"),
        ({"weights": {"a": 1}}, "line 1: field 'weights' must be a list of positive numbers"),
        ({"weights": [1, 2]}, "line 1: field 'weights': scheduler FCFS does not support weights"),
        ({"client": [0, 0.5, 1]}, "field 'client' must hold whole numbers from 0"),
        ({"output_len": [1, 0, 1]}, "field 'output_len' must hold whole numbers from 1"),
    ],
)
def test_a_bad_record_is_named(tmp_path, changes, complaint):
    with pytest.raises(DataError) as error:
        load_measured(write(tmp_path, record(**changes)))
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_column_is_named(tmp_path):
    broken = record()
    del broken["req_time"]
    with pytest.raises(DataError, match="line 2: missing field 'req_time'"):
        load_measured(write(tmp_path, record(), broken))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"", "no records"), (b"{", "line 1: not JSON"), (b"\xff\n", "is not UTF-8 text")],
)
def test_a_bad_file_is_named(tmp_path, content, complaint):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        load_measured(path)


def test_files_that_cannot_be_read_are_named(tmp_path):
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(json.dumps(record()).encode() * 100)[:-20])
    for path in (tmp_path / "absent.jsonl", tmp_path, broken):
        with pytest.raises(DataError, match="cannot be read"):
            load_measured(path)


def test_two_runs_with_one_name_are_refused(tmp_path):
    with pytest.raises(DataError, match="two runs have the name 'FCFS/overload'; rename one"):
        load_measured(write(tmp_path, record(), record()))


def test_every_known_scheduler_is_built_in_the_form_of_the_records():
    limit = build_scheduler("LShare/rpm15")
    assert (limit.name, limit.params.limit, limit.params.window) == ("rpm", 15, "sliding")
    for name, local, error in (
        ("FCFS", "fcfs", None),
        ("LCF", "lcf", None),
        ("VTC", "vtc", None),
        ("VTC_oracle", "vtc-predict", 0),
        ("VTC_pred_50", "vtc-predict", 0.5),
        ("VTC_predict", "vtc-predict", 0),
    ):
        built = build_scheduler(name)
        assert built.name == local
        if local != "fcfs":
            assert isinstance(built, ArtifactForm)
            assert not isinstance(built, EarlyArtifactForm)
            assert built.params.charge == "input"
        if error is not None:
            predictor = "average" if name == "VTC_predict" else "oracle"
            assert (built.params.error, built.params.predictor) == (error, predictor)
            profiled = build_scheduler(f"{name}_profile").params
            assert profiled == dataclasses.replace(built.params, cost="profiled")
    profiled = build_scheduler("VTC_profile")
    assert (profiled.name, profiled.params.predictor) == ("vtc-predict", "none")
    assert profiled.params.cost == "profiled"


@pytest.mark.parametrize(
    ("scheduler", "scenario", "date", "form"),
    [
        ("VTC", "poisson_short_long_2", "2023-12", EarlyArtifactForm),
        ("VTC", "proportional", "2024-04", EarlyArtifactForm),
        ("LCF", "dist_shift", "2024-04", EarlyArtifactForm),
        ("VTC", "overload", "2024-06", ArtifactForm),
        ("VTC", "real", "2024-06", ArtifactForm),
        ("VTC_oracle", "overload-multi", "2024-06", ArtifactForm),
    ],
)
def test_the_date_of_a_run_gives_its_form_of_vtc(tmp_path, scheduler, scenario, date, form):
    one = record(f"fair_bench/{scheduler}/all_results_{scenario}.jsonl")
    (run,) = load_measured(write(tmp_path, one))
    built = run.build_scheduler()
    assert run.recorded == date
    assert isinstance(built, form)
    assert isinstance(built, EarlyArtifactForm) == (form is EarlyArtifactForm)


def test_a_record_may_state_its_date_and_its_weights(tmp_path):
    stated = record("x/VTC/all_results_mine.jsonl", recorded="2023-12", weights=[1, 2.5])
    (run,) = load_measured(write(tmp_path, stated))
    built = run.build_scheduler()
    params = built.params
    assert run.recorded == "2023-12"
    assert isinstance(built, EarlyArtifactForm)
    assert params.weights == {"0": 1.0, "1": 2.5}
    assert recorded("VTC", "mine") == "2024-06"


def test_the_weighted_run_has_the_weights_it_was_launched_with():
    assert build_scheduler("WVTC").params.weights == {"0": 1, "1": 2, "2": 3, "3": 4}
    assert build_scheduler("WVTC", weights={"0": 2.0}).params.weights == {"0": 2}


def test_equal_schedulers_with_other_pools_are_distinguished(tmp_path):
    paths = [f"sec6.4/{pool}/VTC-256/all_results_overload-s4.jsonl" for pool in (35000, 65000)]
    runs = load_measured(write(tmp_path, *map(record, paths)))
    assert [run.name for run in runs] == ["35000/VTC-256/overload-s4", "65000/VTC-256/overload-s4"]
    assert {(run.scheduler, run.recorded) for run in runs} == {("VTC", "2023-12")}


def test_a_replay_uses_other_hardware_and_another_pool(tmp_path):
    lengths = {"prompt_len": [1_000] * 3, "output_len": [100] * 3, "req_time": [0.0, 0.0, 0.0]}
    (run,) = load_measured(write(tmp_path, record(**lengths)))
    slow, fast = (
        replay_run(run),
        replay_run(run, load_profile("a100-80gb/llama-2-7b/tp1/vllm-0.14.0")),
    )
    assert (fast.request_latency_s < slow.request_latency_s).all()
    small = replay_run(run, pool_tokens=1_300)  # one request at a time
    assert len(set(small.first_token_latency_s)) == 3
    assert len(set(slow.first_token_latency_s)) == 1


def test_a_lone_request_equals_a_hand_computation(tmp_path):
    """256 tokens were sent as 258. Times are relative to the first arrival."""
    (run,) = load_measured(write(tmp_path, record()))
    assert ADDED_PROMPT_TOKENS == 2
    assert run.recorded == "2023-12"
    profile = fitted_profile("2023-12")
    replayed = replay_run(run)
    # Two tiles of 256 rows are computed. The others end after 4 s, so the request finds the server
    # idle, which checks for arrivals every 10 ms.
    prefill_s = profile.prefill_ps([(0, 258)], 512) / 1e12 + PREFILL_OVERHEAD_MS / 1e3
    least_s = prefill_s + RESPONSE_MS / 1e3
    assert least_s <= replayed.first_token_latency_s[2] <= least_s + 0.01
    step_s = profile.decode_ps(1, 259) / 1e12
    decode_s = replayed.request_latency_s[2] - replayed.first_token_latency_s[2]
    assert decode_s == pytest.approx(step_s, rel=1e-9)
    assert replayed.refused == 0


def test_a_replay_is_deterministic_and_keeps_the_order_of_the_records(tmp_path):
    shuffled = record(
        "a/VTC_pred_50/all_results_overload.jsonl", client=[1, 0, 1], req_time=[9.0, 3.0, 6.0]
    )
    (run,) = load_measured(write(tmp_path, shuffled))
    first, second = replay_run(run), replay_run(run)
    for field in dataclasses.fields(Trace):
        one, other = getattr(first, field.name), getattr(second, field.name)
        assert one.tobytes() == other.tobytes()
    assert first.req_time_s.tolist() == [9.0, 3.0, 6.0]
    # Client 0 arrives at an idle server. The others find it at work.
    prefill_s = load_profile(FITTED_PROFILE).prefill_ps([(0, 66)], 128) / 1e12
    alone_s = prefill_s + (PREFILL_OVERHEAD_MS + RESPONSE_MS) / 1e3
    assert first.first_token_latency_s[1] == pytest.approx(alone_s, rel=1e-9)


def test_a_rate_limit_refuses_in_the_replay_too(tmp_path):
    times = {"req_time": [0.0, 1.0, 2.0], "client": [0, 0, 0]}
    (run,) = load_measured(write(tmp_path, record("a/LShare/rpm2/all_results_x.jsonl", **times)))
    assert replay_run(run).finished.tolist() == [True, True, False]


def test_the_fitted_profile_exists_but_is_never_the_default():
    coefficients = load_profile(FITTED_PROFILE).coefficients_ms
    assert (coefficients["c_T"], coefficients["c_nd"]) == (0.214, REQUEST_STEP_MS["2024-06"])
    for gpu in ("a10g", "a10g-24gb"):
        derived = resolve_profile(gpu, "llama-2-7b")
        assert derived.profile_id == "a10g-24gb/llama-2-7b/tp1/sglang-e2e"
    assert resolve_profile(FITTED_PROFILE, "llama-2-7b").profile_id == FITTED_PROFILE


def test_the_calibration_finds_the_constants_of_made_up_servers(monkeypatch):
    """A minibatch takes 14 ms. A running request costs 0.1 ms a step in 2023, 0.04 ms in 2024."""
    monkeypatch.setattr(calibrate, "OVERHEADS_MS", (10.0, 14.0, 18.0))
    monkeypatch.setattr(calibrate, "STEPS_MS", (0.04, 0.07, 0.1))
    n = 60
    lengths, arrivals = np.full(n, 256), np.concatenate([[0.0], 20 + np.arange(n - 1) / 3])
    asked = Trace(np.arange(n) % 2, lengths, lengths, arrivals, arrivals, arrivals)
    runs = [
        MeasuredRun("FCFS", "overload", replay(
            asked, FCFS(FCFS.Params()), with_request_step(load_profile(FITTED_PROFILE), step_ms),
            server_limits(14.0),
        ), date)
        for date, step_ms in (("2023-12", 0.1), ("2024-06", 0.04))
    ]  # fmt: skip
    chosen = calibrate.best(runs, list(calibrate.candidates(calibrate.fitted_runs(runs))))
    assert chosen.request_step_ms == {"2023-12": 0.1, "2024-06": 0.04}
    assert (chosen.prefill_overhead_ms, chosen.response_ms) == (14.0, RESPONSE_MS)
    assert chosen.error == 0


def test_only_the_named_scenarios_are_fitted_to():
    run = MeasuredRun("FCFS", "real", None)
    with pytest.raises(
        DataError, match="the fit needs a run of the scenarios overload and proportional"
    ):
        calibrate.fitted_runs([run])


@needs(VTC_RUNS)
@pytest.mark.slow  # the fast suite has every target of them (tests/cli/test_cli_validate.py)
def test_throughput_and_refusals_of_the_ten_runs_that_were_not_fitted():
    runs = load_measured(VTC_RUNS)
    held_out = [run for run in runs if run.scenario not in FITTED_SCENARIOS]
    assert (len(runs), len(held_out)) == (16, 10)
    for run in held_out:
        simulated = replay_run(run)
        assert throughput_tok_s(simulated) == pytest.approx(throughput_tok_s(run.trace), rel=0.05)
        assert simulated.refused == pytest.approx(run.trace.refused, rel=0.05)


def minibatches(trace):
    """Return (first token in s, requests) of the minibatches from 200 to 350 s."""
    first_s = np.sort(trace.req_time_s + trace.first_token_latency_s)
    first_s = first_s[(first_s > 200) & (first_s < 350)]
    groups = np.split(first_s, np.flatnonzero(np.diff(first_s) > 0.06) + 1)
    return [(float(group[0]), len(group)) for group in groups[1:-1]]


@needs(VTC_RUNS)
@pytest.mark.parametrize(
    ("name", "cycle"),
    [
        ("VTC/overload", (1, 1, 7, 11)),
        *slow(("FCFS/overload", (1, 1, 7, 11)), ("VTC/proportional", (8, 11))),
    ],
)
def test_minibatches_form_as_they_did_on_the_server(name, cycle):
    """Under overload, the server enters a cycle of minibatches, and so does the simulator.

    Without the adapters' share of the pool, all three would settle at 1, 8 and 11.
    """
    (run,) = [run for run in load_measured(VTC_RUNS) if run.name == name]
    for trace in (run.trace, replay_run(run)):
        sizes = [size for _, size in minibatches(trace)]
        cycles = [sorted(sizes[at : at + len(cycle)]) for at in range(0, len(sizes), len(cycle))]
        assert len(cycles) > 12
        assert all(one == list(cycle) for one in cycles if len(one) == len(cycle))


@needs(VTC_RUNS)
def test_the_last_request_of_a_cycle_waits_for_room_as_long_as_on_the_server():
    """The request fits when the others have progressed this far.

    If the prompt were one token shorter, it would fit a third earlier.
    """
    (run,) = [run for run in load_measured(VTC_RUNS) if run.name == "FCFS/overload"]
    waits_s = []
    for trace in (run.trace, replay_run(run)):
        after_seven = [
            then_s - at_s for (at_s, size), (then_s, _) in pairwise(minibatches(trace)) if size == 7
        ]
        waits_s.append(float(np.median(after_seven)))
    assert waits_s[1] == pytest.approx(waits_s[0], rel=0.05)
