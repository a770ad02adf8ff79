"""Test admission control before the simulated cluster: records, counts and unchanged parts."""

import numpy as np
import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench.sim.run import simulate
from tests.invariants import check_all
from tests.sim.test_sim_gateway import columns
from tests.slow_params import slow

TARGETS = {"client-0.ttft": "300ms", "client-1.ttft": "300ms", "client-2.e2el": "6s"}
LIMIT = {"engine.max_running_requests": 6}


def busy(policy=None, scheduler="fcfs", *, goodput=TARGETS, flags=None, **more):
    given = {"workload": "chat", "scenario": "none", "scheduler": scheduler, "dp": 2,
             "num_programs": 12, "request_rate": 20.0, "goodput": goodput}  # fmt: skip
    chosen = {} if policy is None else {"admission.policy": policy}
    chosen |= {f"admission.{name}": value for name, value in more.items()}
    return resolve(given | (flags or {}), LIMIT | chosen)


def same(one, other, but=()):
    for name, column in one.items():
        if name not in but:
            assert np.array_equal(column, other[name], equal_nan=name.endswith("_s")), name


def test_admission_control_that_is_off_changes_nothing():
    plain = busy()
    assert not [key for key in plain.settings if key.startswith("admission")]
    off, none = simulate(busy("off")), simulate(plain)
    same(columns(off), columns(none))
    assert columns(off).keys() == columns(none).keys()
    assert "admission" not in off.summary
    assert off.summary == none.summary


@pytest.mark.parametrize("policy", ["refuse", "demote"])
@pytest.mark.parametrize("scheduler", ["d2lpm", *slow("vtc")])
def test_without_deadlines_nothing_changes(policy, scheduler):
    one = columns(simulate(busy(policy, scheduler, goodput=None)))
    other = columns(simulate(busy(None, scheduler, goodput=None)))
    same(other, one)
    assert (one["routed_s"] == one["arrival_s"]).all()
    assert not one.get("demoted", np.zeros(1)).any()


def test_refused_requests_are_counted_and_left_out_of_averages():
    result = simulate(busy("refuse", ahead="all"))
    check_all(result)
    summary, table = result.summary, columns(result)
    refused = np.array([one == "refused" for one in table["status"]])
    assert 1 < refused.sum() == summary["refused"]
    assert summary["completed"] + summary["refused"] == summary["num_requests"]
    assert (table["worker"][refused] == -1).all()
    assert np.isnan(table["first_token_s"][refused]).all()
    done_s = (table["first_token_s"] - table["arrival_s"])[~refused]
    assert summary["mean_ttft_ms"] == pytest.approx(1000 * done_s.mean())
    by_client = {row["client"]: row for row in summary["clients"]}
    assert by_client["client-3"]["latency_refused"] == 0  # the request has no deadline
    assert by_client["client-0"]["goodput_ratio"] < 1  # a refused request counts as missed
    assert summary["admission"] == "refuse"


def test_demoted_requests_are_marked_and_all_are_served():
    result = simulate(busy("demote", ahead="all"))
    check_all(result)
    summary, table = result.summary, columns(result)
    demoted = table["demoted"] == 1
    assert summary["refused"] == 0
    assert summary["completed"] == summary["num_requests"]
    assert 0 < demoted.sum() == summary["demoted"] == sum(r["demoted"] for r in summary["clients"])
    held_s = table["routed_s"] - table["arrival_s"]
    assert held_s[demoted].max() > 0
    assert not held_s[~demoted].any()


def test_refusing_a_flood_leaves_room_for_requests_without_deadlines():
    flood = {"workload": "chat", "scenario": "s1", "num_programs": 8, "request_rate": 1.5}
    promised = {"client-3.ttft": "300ms"}  # only the flood has deadlines
    waits = {}
    for policy in ("off", "refuse"):
        result = simulate(busy(policy, "fcfs", goodput=promised, ahead="all", flags=flood))
        rows = {row["client"]: row for row in result.summary["clients"]}
        assert rows["client-0"]["latency_unfinished"] == rows["client-0"]["latency_refused"] == 0
        table = columns(result)
        own = np.array([str(one) == "client-0" for one in table["client"]])
        waits[policy] = np.nanmean((table["first_token_s"] - table["arrival_s"])[own])
    assert result.summary["refused"] > 3
    assert waits["refuse"] < waits["off"]


def test_a_gateway_queues_requests_behind_an_admission_limit():
    flags = {"gateway": "fcfs", "saturation": "concurrency"}
    spec = busy("refuse", "fcfs", ahead="all", flags=flags)
    result = simulate(resolve({}, {"concurrency.requests": 4}, spec.model_dump(exclude_none=True)))
    check_all(result)
    table = columns(result)
    assert np.nanmax(table["routed_s"] - table["arrival_s"]) > 0.1
    assert result.summary["refused"] > 0


def test_a_wrong_policy_is_one_line():
    with pytest.raises(UsageError, match="'drop': choose from off, refuse, demote"):
        busy("drop")
