"""Test multi-tenant runs sent straight to an engine, and files with unreplayable runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.engine.clock import Clock
from fairbench.errors import DataError
from fairbench.hardware.catalogue import canonical_model, load_profile, model_names
from fairbench_studies.validation.serving.closed_loop import observed_limit
from fairbench_studies.validation.serving.engines import (
    SYNC_HOST_MS,
    believable_pool,
    engine_worker,
    most_decoding_tokens,
    with_doubts,
)
from fairbench_studies.validation.serving.files import load_serving
from fairbench_studies.validation.serving.measured import FITTED, serving_run
from fairbench_studies.validation.serving.profiles import FORK_HOST_MS, profile_of, with_host_cost
from fairbench_studies.validation.serving.prompts import requests_of
from fairbench_studies.validation.serving.replay import replay
from fairbench_studies.validation.serving.unanswered import rows_of, with_unanswered
from fairbench_studies.validation.slora.replay import FITTED_RUNS
from fairbench_studies.validation.tenants.compare import compare_tenants, groups
from fairbench_studies.validation.tenants.table import tenants_text
from tests.shared_data import SHARED, needs

RESIDENCY = SHARED / "data/residency_runs.jsonl.gz"
TWENTY_USERS = SHARED / "data/delta_fair_runs.jsonl.gz"
APPENDIX = Path(__file__).parents[2] / "docs/appendix/validation.md"
N = 40
ALL = np.ones(N, dtype=bool)


def record(run_id="mine", **changes):
    """Return forty requests of two tenants, one a second, the first four at once."""
    columns = {
        "client": ["a", "b"] * (N // 2),
        "submit_s": [float(i) for i in range(N)],
        "prompt_tokens": [500, 1_000] * (N // 2),
        "output_tokens": [20] * N,
        "ttft_s": [0.05, 0.15] * (N // 2),
        "latency_s": [0.4] * N,
        "error": [""] * N,
    }
    return {
        "run_id": run_id, "engine": "vllm", "gpu": "h100-sxm5-80gb", "model": "qwen3-14b", "tp": 1,
        "arrival": "open", "gateway": "none", "pool_tokens": 50_000, "columns": columns, **changes,
    }  # fmt: skip


def run_of(**changes):
    return serving_run(record(**changes), "f")


def test_prompts_are_as_long_as_the_server_counted():
    assert [one.input_tokens for one in requests_of(run_of())][:2] == [500, 1_000]


def test_a_pool_that_the_times_contradict_is_not_used():
    # Requests of 500 and 1,000 tokens, 0.4 s each, never overlap, so at most 1,000 tokens are in
    # use.
    assert most_decoding_tokens(run_of()) == 1_000
    assert believable_pool(run_of()) == 50_000
    assert believable_pool(run_of(pool_tokens=999)) == 0
    slow = {**record()["columns"], "latency_s": [3.5] * N}
    # Each lasts from 0.05 or 0.15 s to 3.5 s after its arrival: four at a time, two of each length.
    assert most_decoding_tokens(run_of(columns=slow)) == 3_000


def test_a_pool_that_a_run_with_the_same_settings_contradicts_is_not_used():
    slow = {**record()["columns"], "latency_s": [3.5] * N}  # 3,000 tokens at a time
    runs = with_doubts(
        [
            run_of(run_id="light", pool_tokens=2_000),
            run_of(run_id="heavy", pool_tokens=2_000, columns=slow),
            run_of(run_id="another pool", pool_tokens=2_500),
            run_of(run_id="another policy", pool_tokens=2_000, policy="fcfs"),
        ]
    )
    assert [believable_pool(run) for run in runs] == [0, 0, 2_500, 2_000]


def test_a_client_with_a_constant_number_in_flight_is_at_its_limit():
    # Three requests at 0, 1 and 2 s last 4 s each. After that, each is sent when another ends.
    submit_s = np.array([0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 9.0, 10.0])
    assert observed_limit(submit_s, np.full(9, 4.0)) == (3, 2)
    # If they last 2 s each, at most two are in flight, with pauses.
    assert observed_limit(submit_s, np.full(9, 2.0)) is None
    # A burst at the end reaches the maximum once, too late to show a limit.
    late_s = np.array([0.0, 5.0, 9.0, 9.1, 9.2])
    assert observed_limit(late_s, np.full(5, 1.0)) is None
    assert observed_limit(submit_s, np.full(9, np.nan)) is None


def test_a_replay_keeps_the_limit_of_a_client_and_follows_its_own_answers():
    profile = load_profile("h100-80gb/qwen3-14b/tp1/measured-vllm")
    sent_s = [0.0, 0.0] + [8.0 * (1 + i // 2) for i in range(N - 2)]  # two at a time, 8 s each
    columns = record()["columns"] | {"submit_s": sent_s, "latency_s": [8.0] * N}
    found = replay(run_of(columns=columns), profile)
    assert found.latency_s.max() < 1  # a lone request takes far less than the measured 8 s
    assert found.submit_s[-1] < N
    ends_s = found.submit_s + found.latency_s
    for number in range(2, N):
        assert (ends_s[:number] > found.submit_s[number]).sum() <= 1


@pytest.mark.parametrize(
    ("version", "first_steps"), [("0.13.0", 1), ("0.14.1", 2), ("0.23.0", 2), ("", 2)]
)
def test_vllm_schedules_a_step_ahead_from_0_14(version, first_steps):
    """A request that arrives during another's first step joins the next step, or the one after."""
    profile = load_profile("h100-80gb/qwen3-14b/tp1/vllm-0.24.0")
    columns = {
        "client": ["a", "b"], "submit_s": [0.0, 0.001], "prompt_tokens": [4_000, 10],
        "output_tokens": [40, 1], "ttft_s": [1.0, 1.0], "latency_s": [2.0, 1.0], "error": ["", ""],
    }  # fmt: skip
    found = replay(run_of(columns=columns, engine_version=version), profile)
    arrived_s = found.submit_s + found.ttft_s
    step_s = profile.decode_ps(1, 4_000) / 1e12
    own_s = profile.step_ps([(0, 10)], 1, 4_000) / 1e12
    waited_s = arrived_s[1] - arrived_s[0]
    host_s = SYNC_HOST_MS / 1e3 if first_steps == 1 else 0.0  # not hidden by the next step
    assert waited_s == pytest.approx(own_s + host_s + (first_steps - 1) * step_s, rel=0.1)


def test_latencies_and_shares_of_each_tenant():
    run = run_of()
    replayed = replay(run, load_profile("h100-80gb/qwen3-14b/tp1/measured-vllm"))
    found = compare_tenants(run, replayed, ALL, "p")
    assert [one.name for one in found.tenants] == ["a", "b"]
    assert found.tenants[1].p50_s.measured == 0.15
    # No request waits, so service equals the load, (500 + 40) to (1,000 + 40), on both sides.
    assert found.share_off[0] < 0.01
    same = compare_tenants(run, run, ALL, "p")
    assert (same.misses, same.share_off, same.jain_off) == ([], (0, 0), 0)


def turns(missing=(), idle_until=0, n=60):
    """Return requests of four numbered users in rotation, every 0.5 s. user-4 starts later."""
    sent = [turn for turn in range(n) if turn % 4 != 3 or turn >= idle_until]
    kept = [turn for turn in sent if turn not in missing]
    columns = {
        "client": [f"user-{turn % 4 + 1}" for turn in kept],
        "kind": ["bad" if turn % 4 == 3 else "good" for turn in kept],
        "submit_s": [0.5 * turn + 0.01 * (turn % 3) for turn in kept],
        "prompt_tokens": [900 if turn % 4 == 3 else 100 for turn in kept],
        "output_tokens": [30 if turn % 4 == 3 else 10 for turn in kept],
        "ttft_s": [0.1] * len(kept), "latency_s": [0.3] * len(kept), "error": [""] * len(kept),
    }  # fmt: skip
    return run_of(columns=columns, gpu="a100-sxm4-80gb", model="llama-3.1-8b", engine="sglang")


def test_a_turn_without_a_request_is_missing_in_the_record():
    run = turns(missing={20, 31, 35, 39}, idle_until=24)  # user-4 begins with turn 27
    sent, recorded = with_unanswered(run)
    assert (len(sent), int(recorded.sum())) == (len(run) + 4, len(run))
    added = np.flatnonzero(~recorded)
    assert [sent.client[i] for i in added] == ["user-1", "user-4", "user-4", "user-4"]
    assert [sent.kind[i] for i in added] == ["good", "bad", "bad", "bad"]
    assert sent.prompt_tokens[added].tolist() == [100, 900, 900, 900]
    assert sent.submit_s[added] == pytest.approx([10.0, 15.5, 17.5, 19.5], abs=0.03)
    assert not sent.served[added].any()
    assert (np.diff(sent.submit_s) > 0).all()
    back = rows_of(sent, recorded)
    assert back.client == run.client
    assert back.ttft_s.tolist() == run.ttft_s.tolist()


def test_only_numbered_clients_in_regular_turns_are_completed():
    for run in (run_of(), turns()):  # two tenants without numbers, so no turn is missing
        assert with_unanswered(run)[1].tolist() == [True] * len(run)
    columns = dict(record()["columns"], client=[f"user-{i % 4 + 1}" for i in range(N)])
    random_s = np.sort(np.random.default_rng(0).uniform(0, N, N)).tolist()
    uneven = run_of(columns={**columns, "submit_s": random_s})
    assert with_unanswered(uneven)[1].all()
    assert with_unanswered(run_of(columns=columns, gateway="fifo"))[1].all()


def test_unanswered_requests_load_the_replay_and_are_not_counted():
    run = turns(missing=set(range(23, 60, 4)))
    sent, recorded = with_unanswered(run)
    assert (~recorded).sum() == 9  # turn 59 is the last, so its request is unknown
    profile = load_profile("a100-80gb/llama-3.1-8b/tp1/measured-sglang")
    found = compare_tenants(run, replay(sent, profile), recorded, "p")
    assert [one.name for one in found.tenants] == ["bad", "good"]
    assert found.notes[0].startswith("9 requests added that were sent")
    assert found.tpot_p50_ms.measured == pytest.approx(1_000 * 0.2 / 9)
    # The same requests alone, with their own throughput.
    alone = compare_tenants(run, replay(run, profile), np.ones(len(run), bool), "p")
    assert alone.notes == ()
    assert alone.throughput.measured == found.throughput.measured


def test_a_server_without_a_policy_is_not_the_fork():
    pool = load_profile("a100-80gb/llama-3.1-8b/tp1/measured-sglang").pool
    run = replace(turns(), pool_tokens=0, policy="default")
    profile = load_profile("a100-80gb/llama-3.1-8b/tp1/measured-sglang")
    server = engine_worker(run, profile, Clock())
    assert server.limits.pool_tokens == pool.tokens(pool.mem_fraction_static)
    assert (server.limits.marks_full_batch, server.scheduler.name) == (True, "fcfs")
    fork = engine_worker(replace(run, policy="lpm_mdrr", quantum=9), profile, Clock())
    assert fork.limits.pool_tokens == pool.tokens(0.88)
    assert (fork.limits.marks_full_batch, fork.scheduler.name) == (False, "dlpm")


def test_many_clients_are_shown_by_kind():
    columns = record()["columns"]
    many = {
        **columns,
        "client": [f"user-{i % 20}" for i in range(N)],
        "kind": ["good", "bad"] * (N // 2),
    }
    run = run_of(columns=many)
    assert groups(run) == ["bad", "good"]
    assert groups(run_of()) == ["a", "b"]
    rows = compare_tenants(run, run, ALL, "p").as_dict()
    assert [row["group"] for row in rows["ttft"]] == ["bad", "good"]
    assert [row["client"] for row in rows["clients"]] == sorted({*many["client"]})
    first = rows["clients"][0]
    assert first["ttft_p50_s"]["measured"] == pytest.approx(float(np.median(run.ttft_s[::20])))
    shares = [row["service_share"]["measured"] for row in rows["clients"]]
    assert sum(shares) == pytest.approx(1)
    index = 1 / (20 * sum(share**2 for share in shares))
    assert rows["jain_index"]["measured"] == pytest.approx(index)


def test_the_error_of_a_short_time_to_first_token_is_not_shown():
    run = run_of()  # client a has 50 ms, client b 150 ms
    long = replace(run, ttft_s=2.1 * run.ttft_s)
    for shown, unresolved in ((run, 2), (long, 0)):
        text = tenants_text([compare_tenants(shown, shown, ALL, "p")])
        assert sum(line.count(" <") for line in text.splitlines()) == unresolved


def test_blis_predictions_are_shown():
    blis = {"tenants": {"a": {"ttft_percentiles": {"p50_us": 40_000, "p99_us": 60_000}}}}
    run = run_of(blis=blis)
    one, other = compare_tenants(run, run, ALL, "p").tenants
    assert (one.other_p50_s, one.other_p99_s) == (0.04, 0.06)
    assert other.other_p50_s != other.other_p50_s


def test_a_failed_request_has_no_counts():
    columns = record()["columns"]
    columns |= {"output_tokens": [None, *columns["output_tokens"][1:]], "error": ["x"] + [""] * 39}
    columns |= {"ttft_s": [None, *columns["ttft_s"][1:]]}
    run = run_of(columns=columns)
    assert (run.served[0], run.output_tokens[0]) == (False, 0)


def test_the_host_cost_of_the_fork_is_added_to_each_iteration_and_request():
    plain = profile_of("a100-sxm4-80gb", "Meta-Llama-3-8B-Instruct", 1, "sglang")
    base_ms, request_ms = FORK_HOST_MS["lpm_mdrr"]
    slow = with_host_cost(plain, "lpm_mdrr")
    added_ms = (slow.decode_ps(10, 5_000) - plain.decode_ps(10, 5_000)) / 1e9
    assert added_ms == pytest.approx(base_ms + 10 * request_ms)
    assert with_host_cost(plain, "lpm") == plain


@pytest.mark.parametrize(
    ("spelled", "model"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("Llama-3-8B", "llama-3.1-8b"),
        ("llama3.1-8b", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("Qwen/Qwen3-14B", "qwen3-14b"),
        ("mistral-7b", "mistral-7b"),
    ],
)
def test_models_are_recognised_by_other_spellings(spelled, model):
    assert canonical_model(spelled, model_names()) == model


def test_a_70b_run_finds_its_bundled_profile():
    found = profile_of("a100-sxm4-80gb", "meta-llama/Llama-3.1-70B-Instruct", 4, "vllm")
    assert found.profile_id == "a100-80gb/llama-3.1-70b/tp4/sglang-0.5.10"


def test_marks_of_fitted_runs_go_by_id():
    assert len(FITTED_RUNS) == 6
    assert "VTC_oracle_profile/overload" not in FITTED_RUNS
    assert "sglang-a100-fixed-c8-run1" in FITTED
    assert not FITTED & {"sglang-a100-fixed-c8-run2", "sglang-a100-fixed-c64-run1"}


def test_a_run_that_cannot_be_replayed_is_a_line(tmp_path):
    lacking = record("lacking")
    del lacking["columns"]["ttft_s"]
    path = tmp_path / "runs.jsonl"
    lines = [record(), lacking, record("elsewhere", gpu="b200"), record("lifo", gateway="lifo")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "Not replayed: 3" in text
    assert "! lacking: " in text
    assert "run lacking: columns: field 'ttft_s' must be a list" in text
    assert "! elsewhere: no timing profile for gpu 'b200'" in text
    assert "! lifo: field 'gateway' = 'lifo': must be 'none', 'fifo'" in text
    with pytest.raises(DataError):
        load_serving(path)


def test_runs_of_another_server_are_refused_with_the_reason(tmp_path):
    n = 12
    columns = {
        "client": [i % 2 for i in range(n)], "prompt_len": [200] * n, "output_len": [40] * n,
        "req_time": [2.0 * i for i in range(n)], "first_token_latency": [0.13] * n,
        "request_latency": [1.5] * n,
    }  # fmt: skip
    names = ("VTC/all_results_mine", "sec6.4/35000/VTC-256/all_results_overload-s4")
    path = tmp_path / "runs.jsonl"
    path.write_text(
        "".join(json.dumps({"path": f"x/{name}.jsonl", **columns}) + "\n" for name in names)
    )
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert result.exit_code == 1
    assert (
        "! 35000/VTC-256/overload-s4: sec6.4: measured with Llama-2-13b on an A100" in result.stdout
    )
    told = ["--profile", "a100-80gb/llama-2-7b/tp1/sglang-0.5.10", "--pool", "35000"]
    assert CliRunner().invoke(app, ["validate", str(path), *told]).exit_code == 0


def test_several_files_are_one_table(tmp_path):
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path in paths:
        path.write_text(json.dumps(record(path.stem)) + "\n")
    result = CliRunner().invoke(app, ["validate", *map(str, paths)])
    assert result.exit_code == 0
    assert all(str(path) in result.stdout for path in paths)
    whole = json.loads(CliRunner().invoke(app, ["validate", *map(str, paths), "--json"]).stdout)
    assert [one["tenants"][0]["name"] for one in whole["files"].values()] == ["one", "two"]


@needs(RESIDENCY)
@pytest.mark.slow
def test_runs_of_several_tenants_come_out():
    for run in load_serving(RESIDENCY):
        profile = profile_of(run.gpu, run.model, run.tp, run.engine)
        sent, recorded = with_unanswered(run)
        assert recorded.all()  # tenants send at random times, so nothing is added
        found = compare_tenants(run, replay(sent, profile), recorded, profile.profile_id)
        assert found.throughput.within(5)
        assert found.share_off[0] < 0.03
        if not run.name.endswith("agg24"):  # at 98% of its capacity
            assert all(one.p50_s.within(25) for one in found.tenants)


@needs(TWENTY_USERS)
@pytest.mark.slow
def test_requests_missing_in_a_record_explain_a_full_pool():
    runs = {run.name: run for run in load_serving(TWENTY_USERS)}
    added = {name[17:]: int((~with_unanswered(run)[1]).sum()) for name, run in runs.items()}
    assert {name: n for name, n in added.items() if n} == {
        "plain": 109, "mdrr-60000": 19, "abl2_rate_6": 11,
    }  # fmt: skip
    plain = runs["sglang-fork-a100-plain"]
    profile = profile_of(plain.gpu, plain.model, plain.tp, plain.engine)
    sent, recorded = with_unanswered(plain)
    found = compare_tenants(plain, replay(sent, profile), recorded, "p")
    assert found.misses == []
    assert all(one.p99_s.within(5) for one in found.tenants)
    row = f"| `plain` (default policy) | {found.throughput.simulated:,.0f}/"
    assert row in APPENDIX.read_text(encoding="utf-8")
    alone = compare_tenants(plain, replay(plain, profile), recorded[recorded], "p")
    assert alone.throughput.error_pct > 10
