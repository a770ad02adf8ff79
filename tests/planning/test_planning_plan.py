"""Test that a plan gives the same answer as trying every cluster size at a fixed load."""

import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import UsageError
from fairbench.execute.tasks import RunContext
from fairbench_logs.planning.carry_out import begin_plan, carry_out
from fairbench_logs.planning.question import Clusters, PlanChoice, PlanQuestion
from tests.one_by_one import OneByOne

TINY = {"workload": "chat", "duration": 4.0, "request_rate": 3.0, "scenario": "none"}
SETTINGS = {"chat.turns_min": 1, "chat.turns_max": 1, "engine.max_running_requests": 8}


def question(**given):
    usual = {"slos": ["ttft_p99<1s"], "schedulers": ["vtc"], "low": 1, "high": 6}
    usual |= {"flags": TINY, "settings": SETTINGS, "num_runs": 2, "sharing": False}
    return PlanQuestion(**(usual | given))


def carried_out(folder, executor=None, **given):
    store = begin_plan(question(**given), folder)
    return carry_out(store, RunContext(executor=executor or OneByOne()))


@pytest.mark.slow
def test_a_plan_equals_brute_force(tmp_path):
    grid = {"schedulers": ["vtc", "lpm"], "high": 4, "num_runs": 1}
    plan = carried_out(tmp_path, **grid)
    everything = OneByOne()
    brute = carried_out(tmp_path, everything, **grid, every=True)
    answers = [row["replicas"] for row in plan["choices"]]
    assert answers == [row["replicas"] for row in brute["choices"]]
    assert answers == [3, 2]
    assert everything.count == 2 * 4
    for row, other in zip(plan["choices"], brute["choices"], strict=True):
        assert row["targets"] == other["targets"]
        assert row["targets"][0]["met"]
        assert row["less"] is None or not row["less"]["targets"][0]["met"]


def test_the_load_stays_when_replicas_change():
    clusters = Clusters(question(flags={"workload": "chat"}, loads=[2.0]))
    choice = PlanChoice("vtc", "a100", 2.0)
    one, eight = clusters.spec(choice, 1), clusters.spec(choice, 8)
    rate = one.workload.scenario("s1").rate_on(one.gpu)
    assert one.request_rate == eight.request_rate == 2 * rate
    assert clusters.load == (rate, True)
    assert [plan.arrivals for plan in one.client_plans()] == [
        plan.arrivals for plan in eight.client_plans()
    ]


def test_a_trace_defines_its_own_load(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("time,user,prompt_tokens,completion_tokens\n0,a,9,3\n5,b,9,3\n10,a,9,3\n")
    clusters = Clusters(question(flags={"trace": str(log)}, settings={}, loads=[1.0, 2.0]))
    choice = PlanChoice("vtc", "a100", 2.0)
    arrivals = clusters.spec(choice, 4).workload.arrivals
    assert arrivals.params["time_scale"] == 2.0
    assert clusters.load.rate is None


def test_prices_show_the_cheapest(tmp_path):
    given = {"gpus": ["a100", "h100"], "prices": {"a100": 1.0, "h100": 1.5}, "num_runs": 1}
    given |= {"low": 2, "high": 3}
    rows = carried_out(tmp_path, **given)
    costs = [row["cost"] for row in rows["choices"]]
    wanted = [row["replicas"] * price for row, price in zip(rows["choices"], (1, 1.5), strict=True)]
    assert costs == wanted
    assert rows["cheaper"] == ([1] if costs[1] < costs[0] else [])


def test_finished_points_are_not_run_again(tmp_path):
    store = begin_plan(question(num_runs=1, low=2, high=2), tmp_path)
    first = carry_out(store, RunContext(executor=OneByOne()))
    again = OneByOne()
    assert carry_out(store, RunContext(executor=again)) == first
    assert again.count == 0


def test_a_choice_that_is_given_under_two_names_runs_once(tmp_path):
    executor = OneByOne()
    given = {"schedulers": ["vtc", "vtc"], "gpus": ["a100", "a100-80gb"], "loads": [1.0, 1.0]}
    plan = carried_out(tmp_path, executor, **given, num_runs=1, low=2, high=2)
    assert executor.count == 1
    first, second = plan["choices"]
    assert first | {"gpu": "a100-80gb"} == second


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"low": 3, "high": 2}, "--dp 3..2: must be LOW..HIGH"),
        ({"certain": True, "num_runs": 1}, "--certain needs a confidence interval, which needs"),
        ({"loads": [0.0]}, "--loads 0: must be above 0"),
        ({"prices": {"h100": 2.0}}, "unknown gpu in --price 'h100'"),
        ({"slos": ["on_time>90%"]}, "goodput needs latency targets; give them with --goodput"),
        ({"slos": ["clients.client-9.p99_s<1"]}, "Did you mean 'client-"),
        (
            {"slos": ["tree_worst_share>50%"]},
            "the workload has no tenants; use client names of the form TENANT/CLIENT",
        ),
        ({"schedulers": ["vtcc"]}, "vtcc"),
    ],
)
def test_an_impossible_plan_is_refused_before_any_run(given, complaint, tmp_path):
    with pytest.raises(UsageError) as error:
        begin_plan(question(**given), tmp_path)
    assert complaint in str(error.value)
    assert not list(tmp_path.iterdir())


COMMAND = ["plan", "--workload", "chat", "--scenario", "none", "--num-programs", "2"]
COMMAND += ["--num-runs", "1", "--scheduler", "vtc", "--disable-tqdm"]


def command(*arguments):
    return CliRunner().invoke(app, [*COMMAND, *map(str, arguments)])


def test_the_command_names_the_smallest_sufficient_cluster(tmp_path):
    result = command("--slo", "ttft_p99<60s", "--dp", "1..3", "--result-dir", tmp_path)
    assert result.exit_code == 0, result.output
    assert "vtc on a100: 1 replica suffices, the smallest" in result.stdout
    assert "sharing incentive" in result.stdout
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "plan")])
    assert shown.stdout == result.stdout


def test_the_picture_of_a_plan_names_the_profile(tmp_path):
    pytest.importorskip("seaborn", reason="figures need the plot extra")
    picture = tmp_path / "load.svg"
    asked = ("--slo", "ttft_p99<60s", "--dp", "1..2", "--result-dir", tmp_path, "--plot", picture)
    result = command(*asked)
    assert result.exit_code == 0, result.output
    assert "simulated on a100-80gb" in picture.read_text()


def test_the_command_fails_where_no_size_suffices(tmp_path):
    result = command("--slo", "ttft_p99<1ms", "--dp", "1..2", "--result-dir", tmp_path, "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["choices"][0]["replicas"] is None
    assert [one["replicas"] for one in answer["choices"][0]["tried"]] == [1, 2]
    assert "no number of replicas from 1 to 2 meets the targets" in result.stderr


@pytest.mark.parametrize(
    ("most", "tested", "advice"),
    [
        (5, [1, 2, 3, 4, 5], ""),
        (6, [1, 2, 3, 5, 6], " (some sizes were not tested; give --every to test all)"),
    ],
)
def test_the_command_says_whether_all_sizes_were_tested(most, tested, advice, tmp_path):
    slo = ("--slo", "ttft_p99<1ms")
    result = command(*slo, "--dp", f"1..{most}", "--result-dir", tmp_path, "--json")
    tried = json.loads(result.stdout)["choices"][0]["tried"]
    assert [one["replicas"] for one in tried] == tested
    failed = f"no number of replicas from 1 to {most} meets the targets{advice}"
    assert result.stderr.splitlines()[-1] == f"fairbench: {failed}"


@pytest.mark.parametrize(
    "flag", [("--dp", "1..4"), ("--num-runs", "2"), ("--every",), ("--gpu", "h100")]
)
def test_a_resumed_plan_keeps_its_settings(flag):
    result = CliRunner().invoke(app, ["plan", "--resume", "DIR", *flag])
    assert result.exit_code == 2
    assert "continues the plan with its stored settings; no other" in result.stderr


def test_a_picture_that_cannot_be_is_refused_before_anything_runs(tmp_path):
    for plot, complaint in (("x.gif", "must end in"), ("no/x.svg", "there is no folder no")):
        result = command("--slo", "ttft_p99<1s", "--plot", plot, "--result-dir", tmp_path)
        assert result.exit_code == 2
        assert f"--plot {plot}: {complaint}" in result.stderr
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["1..1000000", "2..", "one..2"])
def test_an_invalid_range_names_the_allowed_size(text):
    result = command("--slo", "ttft_p99<1s", "--dp", text)
    assert result.exit_code == 2
    said = f"--dp {text}: write LOW..HIGH, such as 1..32, at most 4,096"
    assert result.stderr == f"fairbench: {said}\n"


def test_a_gpu_has_one_price(tmp_path):
    prices = ("--price", "a100=1", "--price", "a100=2")
    result = command("--slo", "ttft_p99<1s", *prices, "--result-dir", tmp_path)
    assert result.exit_code == 2
    assert (
        result.stderr
        == "fairbench: --price a100=2: the price of a100 is given twice; give it once\n"
    )
