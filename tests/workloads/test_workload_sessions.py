"""Test sessions drawn from a recorded file, and their metrics."""

import random
from pathlib import Path

import numpy as np
import pytest

from fairbench.core import Segment
from fairbench.errors import UsageError
from fairbench.metrics.records import Client, Facts, Programs, Requests, Service, Window
from fairbench.metrics.summary import summarize
from fairbench.metrics.tables import Tables
from fairbench.sim.run import simulate
from fairbench.workloads.items import all_calls
from fairbench.workloads.programs.replay import Session
from tests.invariants import run_checked
from tests.sim.sim_helpers import small_spec
from tests.slow_params import slow

FILE = str(Path(__file__).parents[1] / "data/weka_sessions.jsonl.gz")


def params(**changed):
    usual = {"least_tokens": 0, "most_tokens": 50_000, "most_calls": 20, "think_scale": 1.0}
    return Session.Params(FILE, **usual | changed)


def drawn(program_id, seed=0, **changed):
    return Session.build(params(**changed), random.Random(seed), program_id, "x", None)


def keys(program):
    return [{key for key, _ in call.prompt} for call in all_calls(program._calls)]


def test_two_copies_share_only_tools_and_system_prompt():
    one, other = drawn(1), drawn(2)
    assert one.demand == other.demand
    for mine, theirs in zip(all_calls(one._calls), all_calls(other._calls), strict=True):
        shared = 0
        for (key, length), (name, _) in zip(mine.prompt, theirs.prompt, strict=True):
            if key != name:
                break
            shared += length
        assert shared == mine.shared_tokens
    own = [{key for key in keys(p)[0] if not key.startswith("session/")} for p in (one, other)]
    assert own[0]
    assert not own[0] & own[1]


def test_a_prompt_extends_the_previous_one():
    calls = next(p for p in map(drawn, range(9), range(9)) if len(p._calls) == 2)._calls
    first, second = (dict(call.prompt) for call in calls)
    own = next(Segment(*one) for one in first.items() if "/block" in one[0])
    assert second[own.key] >= own.length


def test_bounds_choose_sessions_and_cut_them():
    assert drawn(1, least_tokens=100_000, most_tokens=200_000).demand.input_tokens == 202_300
    assert drawn(1, most_calls=1).demand.requests < drawn(1).demand.requests
    with pytest.raises(UsageError, match="must hold a session whose longest prompt has from 3,000"):
        drawn(1, least_tokens=3_000)
    assert Session.pauses(params())
    assert not Session.pauses(params(think_scale=0.0))


@pytest.mark.parametrize(("seed", "delays_s"), [(0, []), (1, [1.0])])
def test_think_scale_multiplies_all_pauses(seed, delays_s):
    plain, slow = drawn(3, seed), drawn(3, seed, think_scale=4.0)
    for one, other in zip(plain._calls, slow._calls, strict=True):
        assert (other.think_s, other.gap_s) == (4 * one.think_s, 4 * one.gap_s)
    for program, scale in ((plain, 1), (slow, 4)):
        found_s = [branch.delay_s for call in program._calls for branch in call.branches]
        assert found_s == [scale * delay_s for delay_s in delays_s]


@pytest.mark.parametrize("scenario", ["s1", *slow("none", "s2")])
def test_the_workload_runs_under_every_invariant(scenario):
    flags = {"scenario": scenario, "eviction": "max-min", "num_programs": 2, "request_rate": 0.1}
    result = run_checked(small_spec("dlpm", "sessions", flags=flags))
    assert result.summary["unfinished"] == 0
    assert result.summary["victim_session_p95_s"] <= result.summary["victim_p95_s"]


# Two calls in parallel from 0 to 4 s and from 2 to 6 s, 10 s of thinking, then a call of 3 s.
def test_latency_without_think_time_is_the_time_with_a_call_in_flight():
    calls = [(0.0, 4.0, 100, 0), (2.0, 6.0, 100, 50), (16.0, 19.0, 200, 150)]
    count = len(calls)
    arrival_s, finish_s, tokens, cached = map(np.array, zip(*calls, strict=True))
    columns = dict.fromkeys(Requests.__dataclass_fields__, np.zeros(count))
    for optional in ("routed_s", "swapped_tokens", "demoted"):
        del columns[optional]
    columns |= {"request_id": np.arange(count), "arrival_s": arrival_s, "finish_s": finish_s}
    columns |= {"input_tokens": tokens, "cached_tokens": cached, "first_token_s": arrival_s + 1}
    program = dict.fromkeys(Programs.__dataclass_fields__, np.zeros(1)) | {"finish_s": [19.0]}
    facts = Facts((Client("x", False),), Window(0, 30), 30.0, 1, 1000, sessions=True)
    service = Service.from_columns({key: [] for key in Service.__dataclass_fields__})
    tables = Tables(["x"], Requests.from_columns(columns), Programs.from_columns(program), service)
    run = summarize(tables, facts)
    (row,) = run["clients"]
    assert row["session_p50_s"] == run["victim_session_p50_s"] == 9.0
    assert row["turn_p50_s"] == 4.0
    assert row["ttft_p50_s"] == run["victim_ttft_p50_s"] == 1.0
    assert row["session_cache_hit_rate"] == 0.5


def test_other_runs_have_no_metrics_of_sessions():
    summary = simulate(small_spec("fcfs", "chat")).summary
    assert not [key for key in summary if "session" in key]
    assert not [key for key in summary["clients"][0] if "session" in key or "turn" in key]
