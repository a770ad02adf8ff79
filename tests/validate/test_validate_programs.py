"""Test runs of the DLPM authors' judge benchmark: their command lines, and the replay."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError
from fairbench_studies.validation.policies import scheduler_of
from fairbench_studies.validation.programs.compare import compare_programs, jain_of_all
from fairbench_studies.validation.programs.measured import program_run
from fairbench_studies.validation.programs.replay import EvenArrivals, Replay, replay
from tests.shared_data import SHARED, needs

JUDGE_RUNS = SHARED / "data/dlpm_judge_rerun.json"
SERVER = (
    "sglang (authors' fork), Llama-3.1-8B, float16, A100-80GB, --mem-frac 0.7 --max-total 20000 "
    "--max-prefill 16000 --enable-eviction"
)
CLIENT = (
    "LLM-as-Judge, 3 programs a user, --intervals 2 4 --branches 4 2 --initial-delay 10, articles "
    "such that prompts average 1,000 tokens"
)


def record(run_id="one", **changes):
    return {
        "run_id": run_id,
        "scheduler": "dlpm",
        "flags": "--schedule-po lpm_mdrr --load-ba hdoubleq --Q 50000 --global-Q 100000",
        "server": SERVER,
        "client": CLIENT,
        "makespan_s": 40.0,
        "service_tok_s": 1000.0,
        "service_tok_s_all_active": 900.0,
        "jain_service": 0.9,
        "program_latencies_s": {"user0": [5.0, 6.0, 7.0], "user1": [4.0, 5.0, 6.0]},
        **changes,
    }


def test_the_command_lines_are_parsed():
    run = program_run(record(), "f")
    assert (run.policy, run.quantum, run.pool_tokens, run.max_prefill_tokens) == (
        "lpm_mdrr", 50_000, 20_000, 16_000,
    )  # fmt: skip
    assert (run.gpu, run.model, run.dp) == ("a100-80gb", "llama-3.1-8b", 1)
    assert (run.programs, run.branches, run.intervals_s) == (3, (4, 2), (2, 4))
    assert (run.initial_delay_s, run.prompt_tokens) == (10, 1_000)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"server": "sglang, Llama-3.1-8B"},
            "field 'server' must be a comma-separated list with the name of the GPU: choose from",
        ),
        (
            {"server": SERVER.replace("Llama-3.1-8B", "Falcon-7B")},
            "field 'server' must be a comma-separated list with the name of the LLM: choose from",
        ),
        ({"flags": "--Q 5"}, "must contain the option --schedule-policy"),
        (
            {"client": CLIENT.replace("2 4", "2 x")},
            "option --intervals: its values must be numbers",
        ),
        (
            {"client": CLIENT.replace("4 2 ", "4 2 2 ")},
            "must have one value for each of the 2 users",
        ),
        ({"client": CLIENT.replace("programs a user", "each")}, "must contain 'N programs a user'"),
        ({"makespan_s": None}, "field 'makespan_s' = None: must be a positive number"),
        ({"program_latencies_s": {"user0": []}}, "'user0' must be a list of seconds"),
    ],
)
def test_a_wrong_field_is_named_with_its_run(changes, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        program_run(record(**changes), "f")
    assert str(caught.value).startswith("f, run one: ")


def test_policies_are_recognised_by_the_names_of_servers():
    assert scheduler_of("lpm_mdrr", 7)[0].local == "dlpm"
    assert scheduler_of("lpm_mdrr", 7)[1] == {"dlpm.quantum": 7}
    assert scheduler_of("preble", 7)[0].local == "preble-groups-code"
    assert scheduler_of("preble", 7)[1] == {}
    with pytest.raises(DataError, match="unknown schedule policy 'lmp'"):
        scheduler_of("lmp", 0)


def test_arrivals_are_even_and_begin_at_the_delay():
    arrivals = EvenArrivals(3, 2.0, 10.0)
    assert [one.at_s for one in arrivals.arrivals(None)] == [10, 12, 14]
    assert arrivals.expected_programs(12.5) == 2


def test_the_numbers_of_a_run_equal_hand_computed_values():
    # User 0 ends at 4 and 10, user 1 at 8, so both are active until 8. By then, user 0 has 100
    # tokens of service and user 1 has 50: Jain = 150^2 / (2 * (100^2 + 50^2)) = 0.9.
    made = Replay(*map(np.array, (
        [0, 0, 1], [4.0, 10.0, 8.0], [100.0, 60.0, 50.0],
        [0, 0, 1], [4.0, 10.0, 8.0], [4.0, 8.0, 5.0],
    )))  # fmt: skip
    assert (made.makespan_s, made.all_active_s) == (10, 8)
    assert made.service_by(8).tolist() == [100, 50]
    assert made.jain == pytest.approx(0.9)
    run = compare_programs(program_run(record(), "f"), made, "p")
    assert run.service.simulated == 21  # 210 / 10
    assert run.as_dict()["fitted"] is False
    (note,) = run.as_dict()["notes"]  # the host's cost of lpm_mdrr
    assert note.endswith("from two other runs")
    assert run.service_all_active.simulated == 150 / 8
    assert (run.p50_s["user0"].simulated, run.p50_s["user1"].simulated) == (6, 5)
    assert [miss.split(":")[0] for miss in run.misses] == [
        "service", "service while all are active", "makespan",
    ]  # fmt: skip


def test_the_index_over_one_client_equals_that_over_all():
    unequal = {"user0": [5.0], "user1": [50.0]}
    client = CLIENT.replace("3 programs", "1 programs")
    alone = record(jain_service=1.0, program_latencies_s=unequal, client=client)
    assert jain_of_all(program_run(alone, "f")) == 1 / 2
    assert jain_of_all(program_run(record(jain_service=1.0), "f")) == 1


def test_a_replay_runs_every_program_of_every_user():
    made, profile = replay(program_run(record(), "f"))
    assert profile == "a100-80gb/llama-3.1-8b/tp1/measured-sglang"
    assert len(made.latencies_s) == 6
    assert len(made.service) == 3 * (4 + 2) + 3 * (2 + 2)
    starts = made.programs_finish_s - made.latencies_s
    assert sorted(starts.round(6).tolist()) == [0, 2, 4, 10, 14, 18]


@pytest.mark.slow
def test_the_policy_costs_time_on_the_host():
    slow, _ = replay(program_run(record(), "f"))
    fast, _ = replay(program_run(record(flags="--schedule-po lpm"), "f"))
    assert slow.latencies_s.mean() > 1.3 * fast.latencies_s.mean()


@pytest.mark.slow
def test_the_command_shows_valid_runs_and_fails(tmp_path):
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([record(), record("two", flags="--schedule-po sjf")]))
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert result.exit_code == 1
    assert "one (lpm_mdrr)" in result.stdout
    assert "  ! two: unknown schedule policy 'sjf'" in result.stdout
    whole = json.loads(CliRunner().invoke(app, ["validate", str(path), "--json"]).stdout)
    assert [one["name"] for one in whole["programs"]] == ["one"]
    assert [one["run"] for one in whole["not_replayed"]] == ["two"]


@needs(JUDGE_RUNS)
@pytest.mark.slow
def test_the_dlpm_run_is_predicted_without_fitting():
    runs = {one["run_id"]: program_run(one, "f") for one in json.loads(JUDGE_RUNS.read_text())}
    run = runs["dlpm-judge-rerun-lpn_mdrr"]
    found = compare_programs(run, *replay(run))
    assert found.misses == []
    assert found.makespan_s.within(3)
