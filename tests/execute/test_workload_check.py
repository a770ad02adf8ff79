"""Test the workload check: hand-computed calls, measured loads, and warnings."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.resolve import resolve
from fairbench.core import Segment
from fairbench.execute.workload_check import EndlessCache, calls_of, check_facts, groups_of
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import nth_program
from fairbench.workloads.spec import load_workload

TABLE = Path(__file__).resolve().parents[2] / "results" / "tables" / "default-loads.csv"
ROWS = {row["cell"]: row for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines())}
PLAIN = {
    "name": "plain",
    "program": "single",
    "latency": "ttft",
    "clients": 4,
    "duration_s": 100.0,
    "warmup_s": 10.0,
    "max_drain_s": 10.0,
    "params": {"input_min": 100, "input_max": 100, "output_min": 50, "output_max": 50},
    "scenarios": {"s1": {"rate": 1.0}},
}


def facts(workload=PLAIN, **flags):
    made = workload if isinstance(workload, str) else WorkloadSpec.model_validate(workload)
    return check_facts(resolve({"workload": made, "scheduler": "fcfs"} | flags))


def plain(rate=1.0, **scenario):
    return PLAIN | {"scenarios": {"s1": {"rate": rate} | scenario}}


def test_an_endless_cache_hits_the_segments_at_the_start_of_a_prompt():
    cache = EndlessCache()
    one, two, three = Segment("a", 5), Segment("b", 7), Segment("c", 9)
    cache.add((one, two))
    assert [cache.hit(p) for p in ((one, two, three), (one, three), (two,), ())] == [12, 5, 0, 0]


def test_the_calls_of_a_judge_equal_those_computed_by_hand():
    plan = plan_clients(load_workload("judge"), "none")[0]
    program = nth_program(plan, 0, 0, None)
    calls = calls_of(program, EndlessCache())
    assert len(calls) == plan.params.dimensions + 2
    assert sum(call.input_tokens for call in calls) == program.demand.input_tokens
    assert sum(call.output_tokens for call in calls) == program.demand.output_tokens
    first, second, *_ = calls
    assert first.cached_tokens == 0
    assert second.cached_tokens == second.input_tokens - plan.params.dimension_tokens


@pytest.mark.parametrize("cell", ["judge.s2", "long-qa.s1", "chat.s1", "reasoning.s2"])
def test_the_load_is_near_the_measured_default_loads(cell):
    workload, scenario = cell.split(".")
    found = facts(workload, scenario=scenario)
    assert found["load"] == pytest.approx(float(ROWS[cell]["multiple"]), rel=0.25)
    assert found["load_uncached"] >= found["load"]


def test_the_load_grows_with_rates_and_with_the_cluster():
    once = facts(plain(rate=8.0))
    assert facts(plain(rate=16.0))["load"] == pytest.approx(2 * once["load"])
    assert facts(plain(rate=8.0), request_rate=8.0, dp=2)["load"] == pytest.approx(once["load"] / 2)
    assert once["programs"] == pytest.approx(8.0 * 100 * 4)
    assert once["load"] == once["load_uncached"]  # no tokens are shared
    assert once["groups"][0]["programs_per_s"] == pytest.approx(32.0)


def test_equal_clients_form_a_group():
    data = plain(
        misbehaving=[{"client": 2, "rate_multiple": 3.0}],
        others=[{"client": 5, "count": 2, "workload": "judge"}],
    )
    plans = plan_clients(WorkloadSpec.model_validate(data | {"clients": 9}), "s1")
    groups = groups_of(plans)
    assert [group.clients for group in groups] == [
        "client-0..1, client-3..4, client-7..8",
        "client-2",
        "client-5..6",
    ]
    data = plain(others=[{"client": 3, "workload": "vtc-overload", "arrivals": DAY}])
    data |= {"arrivals": {"kind": "constant"}}
    plans = plan_clients(WorkloadSpec.model_validate(data), "s1")
    assert [group.clients for group in groups_of(plans)] == ["client-0..2", "client-3"]
    data = plain(misbehaving=[{"client": 2, "rate_multiple": 3.0}])
    named = WorkloadSpec.model_validate(data | {"clients": 9, "client_names": ["a", "b"]})
    assert groups_of(plan_clients(named, "s1"))[0].clients == "a, b, client-3..8"


DAY = {"kind": "diurnal", "params": {"swing": 0.9, "period_s": 100.0}}
CLOSED = {"kind": "closed", "params": {"users": 3, "think_s": 1.0}}
HUGE = {"input_min": 500_000, "input_max": 500_000, "output_min": 1, "output_max": 1}


@pytest.fixture
def flood(tmp_path):
    """Return nine teams with a short request every 10 s, and one with 400 long ones in a minute."""
    rows = [(10.0 * k + team, f"team-{team}", 100, 10) for team in range(9) for k in range(60)]
    rows += [(240 + 0.15 * k, "flood", 6000, 100) for k in range(400)]
    path = tmp_path / "access.csv"
    lines = ["arrived_at,client,input_tokens,output_tokens"]
    lines += [",".join(map(str, row)) for row in sorted(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_traces_requests_count_equally_and_its_busiest_minute_is_shown(flood):
    out = CliRunner().invoke(app, ["workload", "check", str(flood), "--json"])
    found = json.loads(out.output)
    requests = 9 * 60 + 400
    assert found["requests"] == pytest.approx(requests)
    (row,) = found["groups"]
    assert row["input_tokens"] == pytest.approx((540 * 100 + 400 * 6000) / requests)
    assert row["output_tokens"] == pytest.approx((540 * 10 + 400 * 100) / requests)
    assert 240 <= found["peak_s"] <= 300
    assert found["peak"] == pytest.approx(10, rel=0.1)  # nearly all tokens, in a tenth of the time
    assert found["load_uncached"] < 0.7 < 1 < found["peak_load"]
    said = " ".join(found["surprises"])
    assert "hardly any request waits, so all schedulers will give similar results" not in said
    assert "in the busiest minute, around 2" in said


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (plain(rate=1.0), "hardly any request waits, so all schedulers will give similar results"),
        (plain(rate=60.0), "the load is far above the capacity of the cluster, so"),
        (plain(rate=18.0) | {"arrivals": DAY}, "of it in the busiest minute, around 5 s"),
        (plain(rate=0.005), "4 of 4 clients send fewer than 20 programs on average, and 4 of"),
        (PLAIN | {"params": HUGE}, "client-0..3: 100% of the requests will be refused"),
        (PLAIN | {"arrivals": CLOSED}, "users in closed loops"),
        (
            plain(presence={"windows": [[100.0, 200.0]]}),
            "no client sends a request: no client is present while",
        ),
        (plain(rate=30.0), "4 of 4 well-behaved clients need more than a fair share, so they wait"),
    ],
)
def test_unexpected_facts_cause_a_warning(workload, said):
    assert any(said in text for text in facts(workload)["surprises"]), facts(workload)


def test_a_flood_alone_causes_no_shortage_for_other_clients():
    flood = plain(rate=4.0, misbehaving=[{"client": 1, "rate_multiple": 30.0}])
    found = facts(flood)
    assert found["load"] > 1
    assert not any("fair share" in text for text in found["surprises"])


def test_without_a_duration_there_are_no_rates():
    found = facts(num_programs=7)
    assert (found["programs"], found["load"], found["peak"]) == (28, None, None)


def test_the_command_prints_a_table_or_json(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nworkload = "chat"\n')
    shown = CliRunner().invoke(app, ["workload", "check", str(file)])
    assert shown.exit_code == 0
    assert "client-2..3 (heavy)" in " ".join(shown.output.split())
    assert max(map(len, shown.output.splitlines())) <= 100
    out = CliRunner().invoke(app, ["workload", "check", str(file), "--json", "--dp", "2"])
    assert json.loads(out.output)["dp"] == 2
