"""Test ``plan --max users``: the most users of a cluster within targets, and wrong questions."""

import json
import re

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import UsageError
from fairbench.execute.tasks import RunContext
from fairbench.report.pages.html import write_page
from fairbench_logs.planning.carry_out import begin_plan, carry_out
from fairbench_logs.planning.page import plan_page
from fairbench_logs.planning.question import Clusters, PlanChoice, PlanQuestion
from fairbench_logs.planning.table import answer_text
from tests.one_by_one import OneByOne

TINY = {"workload": "chat", "duration": 4.0, "request_rate": 1.0, "scenario": "none", "clients": 2}
SETTINGS = {"chat.turns_min": 1, "chat.turns_max": 1, "engine.max_running_requests": 8}


def question(**given):
    usual = {"slos": ["ttft_p99<1s"], "schedulers": ["vtc"], "low": 1, "high": 1, "most": "users"}
    usual |= {"flags": TINY, "settings": SETTINGS, "num_runs": 1}
    return PlanQuestion(**(usual | given))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    store = begin_plan(question(), tmp_path_factory.mktemp("plan"))
    return store, carry_out(store, RunContext(executor=OneByOne()))


def test_the_most_users_meet_the_target_and_one_more_does_not(plan):
    _, answer = plan
    (row,) = answer["choices"]
    tried = {one["users"]: one["enough"] for one in row["tried"]}
    assert (answer["size"], answer["replicas"]) == ("users", 1)
    assert tried[row["users"]]
    assert not tried[row["users"] + 1]
    assert row["less"]["users"] == row["users"] + 1
    assert row["users"] > 2


def test_the_answer_is_said_in_text_and_on_the_page(plan, tmp_path):
    store, answer = plan
    count = answer["choices"][0]["users"]
    text = " ".join(answer_text(answer).split())
    assert text.startswith(f"Within ttft_p99<1s, vtc carries {count} users on 1 replica.")
    assert "each client is a user" in text
    assert "replicas" not in text
    write_page(plan_page(store.path), tmp_path / "page.md", "report")
    page = (tmp_path / "page.md").read_text()
    assert f"carries {count} users" in page
    assert "Every number of users that was simulated" in page


def test_more_replicas_carry_the_same_load_per_user():
    clusters = Clusters(question(low=4, high=4))
    choice = PlanChoice("vtc", "a100", 1.0)
    few, many = clusters.spec(choice, 2), clusters.spec(choice, 20)
    assert (few.dp, many.dp, few.clients, many.clients) == (4, 4, 2, 20)
    assert few.request_rate == many.request_rate == 1.0
    assert (clusters.first_size, clusters.last_size) == (2, 128)


def test_a_workload_that_needs_more_clients_is_not_tried_with_fewer():
    clusters = Clusters(question(flags={"workload": "chat", "scenario": "s1"}))
    choice = PlanChoice("vtc", "a100", 1.0)
    assert [clusters.is_possible(choice, users) for users in (1, 3, 4)] == [False, False, True]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"most": "user"}, "--max user: must be users"),
        ({"high": 4}, "--dp 1..4: must be a single number with --max users, such as --dp 4"),
        ({"every": True}, "--every: not supported with --max users; leave one of them out"),
        ({"slos": []}, "--slo: missing; a plan needs at least one target: .*"),
        ({"slos": ["gate_wait<1s"]}, "unknown metric in --slo 'gate_wait'.*"),
        ({"slos": ["max_turn_wait_s<9s"]}, "--slo max_turn_wait_s<9s: needs a workload of .*"),
    ],
)
def test_a_wrong_question_is_one_line(given, said):
    with pytest.raises(UsageError) as error:
        Clusters(question(**given))
    assert re.fullmatch(said, str(error.value))


def test_a_trace_has_its_own_clients(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("time,user,prompt_tokens,completion_tokens\n0,a,9,3\n5,b,9,3\n10,a,9,3\n")
    with pytest.raises(UsageError, match="--max users: not supported with a trace; give a work"):
        Clusters(question(flags={"trace": str(log)}, settings={}))


def test_without_users_that_fit_the_exit_code_is_one(tmp_path):
    flags = ["--workload", "chat", "--scenario", "none", "--duration", "4", "--clients", "2"]
    result = CliRunner().invoke(app, ["plan", "--max", "users", "--slo", "ttft_p99<1ms", *flags,
        "--num-runs", "1", "--result-dir", str(tmp_path), "--json"])  # fmt: skip
    assert result.exit_code == 1
    (row,) = json.loads(result.stdout)["choices"]
    assert row["users"] is None
    assert [one["users"] for one in row["tried"]] == [1, 2]
    assert "no tested number of users meets the targets" in result.stderr
