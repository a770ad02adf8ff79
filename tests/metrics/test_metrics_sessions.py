"""Test by hand how sessions are served: waits, slowdowns, turns, and shares per session."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.metrics.optional_entries import SESSIONS
from fairbench.metrics.records import REFUSED, UNFINISHED, Window
from fairbench.metrics.run_data import RunData
from fairbench.metrics.service import service_of
from fairbench.metrics.sessions import RecordedSessions
from fairbench.metrics.summary import summarize
from fairbench.metrics.tables import Tables
from fairbench.report.result_lines import session_lines
from fairbench.sim.run import simulate
from tests.metrics.metrics_helpers import NAN, facts, programs, requests
from tests.scoring.foreign_helpers import lines
from tests.sim.sim_helpers import small_spec


def call(program, arrival_s, wait_s, first_s, finish_s, **changes):
    """Return a call of 100 prompt tokens. ``first_s`` and ``finish_s`` count from the arrival."""
    return {
        "program_id": program, "arrival_s": arrival_s, "admitted_s": arrival_s + wait_s,
        "first_token_s": arrival_s + first_s, "finish_s": arrival_s + finish_s,
        "input_tokens": 100, "extend_tokens": 100, "output_tokens": 11,
    } | changes  # fmt: skip


def session(program, client, arrival_s, finish_s, **changes):
    return {"program_id": program, "client": client, "arrival_s": arrival_s, "finish_s": finish_s,
        "requests": 2, "demand_requests": 2} | changes  # fmt: skip


def sessions_of(calls, rows, **changes):
    known = facts(**changes)
    names = [client.name for client in known.clients]
    asked = requests(*calls)
    tables = Tables(names, asked, programs(*rows), service_of(asked, asked.finish_s))
    return RecordedSessions(tables, known)


TWO = (
    [call(7, 0, 0, 1, 2), call(7, 10, 3, 4, 6), call(9, 0, 1, 2, 4, client=1),
        call(9, 2, 8, 9, 10, client=1)],
    [session(7, 0, 0, 16), session(9, 1, 0, 12)],
)  # fmt: skip


def test_waits_busy_time_and_turns_by_hand():
    found = sessions_of(*TWO)
    assert found.wait_s.tolist() == [3, 9]
    assert found.longest_wait_s.tolist() == [3, 8]
    assert found.busy_s.tolist() == [8, 12]  # the second session's calls overlap from 2 to 4 s
    assert found.turns_per_min() == [60 * 2 / 16, 60 * 2 / 12]
    assert found.worst() == [1, 0]
    assert [one.known_s.tolist() for one in found.turn_times()] == [[2, 6], [4, 10]]


def test_the_worst_session_has_the_longest_wait_and_not_the_most_waits():
    often = [call(7, at_s, 3, 4, 6) for at_s in (0, 10, 20)]
    found = sessions_of([*often, call(9, 0, 5, 6, 8)], [session(7, 0, 0, 26), session(9, 0, 0, 8)])
    assert found.wait_s.tolist() == [9, 5]
    assert found.worst() == [1, 0]


def test_a_slowdown_is_relative_to_each_call_at_the_fastest_pace():
    found = sessions_of(*TWO)
    # Alone, the first token takes 1 s, and ten further tokens 1, 1 or 2 s. The third fastest takes
    # 2 s.
    assert found.calls.alone_s.tolist() == [3, 3, 3, 3]
    assert found.slowdown.tolist() == [8 / (2 + 3), 12 / 5]


def test_a_call_alone_computes_only_what_its_own_session_lacks():
    calls = [
        call(1, 0, 0, 0.1, 1, input_tokens=10, extend_tokens=10),  # the fastest short prompt
        call(1, 5, 0, 8, 9, input_tokens=500, extend_tokens=500),
        call(1, 20, 0, 4, 5, input_tokens=520, extend_tokens=520),  # recomputed after an eviction
        call(2, 30, 0, 6, 7, input_tokens=520, extend_tokens=400),
    ]
    found = sessions_of(calls, [session(1, 0, 0, 25), session(2, 0, 30, 37)], clients=1)
    pace_s = found.calls.alone_s[0] - 0.1
    # In the third call, 9 tokens are new. The fourth call is the first of its session.
    assert (found.calls.alone_s - pace_s).tolist() == pytest.approx([0.1, 4, 0.1, 4])


def test_a_call_that_still_waits_is_a_lower_bound_and_a_refused_call_has_no_end():
    waits = call(1, 40, NAN, NAN, NAN, status=UNFINISHED, extend_tokens=0, output_tokens=0)
    lost = call(2, 50, NAN, NAN, NAN, status=REFUSED, client=1)
    rows = [
        session(1, 0, 0, NAN, status=UNFINISHED), session(2, 1, 50, NAN, status=REFUSED),
    ]  # fmt: skip
    found = sessions_of([call(1, 0, 0, 1, 2), waits, lost], rows)
    (mine, other) = found.waits()
    assert (mine.known_s.tolist(), mine.more_than_s.tolist()) == ([0], [60])
    assert other.refused == 1
    assert found.turns_per_min()[0] == 60 / 100


def test_a_call_that_ended_without_a_known_admission_waited_until_its_end_at_most():
    calls = [call(1, 0, 0, 1, 2), call(1, 40, NAN, NAN, 10)]
    assert sessions_of(calls, [session(1, 0, 0, 50)]).longest_wait_s.tolist() == [10]


def test_only_sessions_that_arrived_in_the_window_count():
    found = sessions_of(*TWO, window=Window(1.0, 90.0))
    assert [one.n for one in found.waits()] == [0, 0]
    assert found.worst() == []
    assert np.isnan(found.turns_per_min()).all()


def test_waits_in_the_gateway_end_with_the_release():
    calls, rows = TWO
    found = sessions_of([one | {} for one in calls], rows)
    routed = np.array([0.0, 12.0, 1.0, NAN])
    found.calls = found.calls._replace(requests=replace(found.calls.requests, routed_s=routed))
    gate = found.gate_waits()
    assert gate[0].known_s.tolist() == [0, 2]
    assert (gate[1].known_s.tolist(), gate[1].more_than_s.tolist()) == ([1], [98])


def test_each_session_is_a_client_with_a_share_of_its_own():
    """Two sessions of one client compete. One is served only after the other."""
    fast = [call(1, 10.0 * n, 0, 1, 9, client=0) for n in range(9)]
    slow = [call(2, 10.0 * n, 95 - 10.0 * n, 96 - 10.0 * n, 99 - 10.0 * n) for n in range(9)]
    rows = [session(1, 0, 0, 89, requests=9, demand_requests=9),
            session(2, 0, 0, 99, requests=9, demand_requests=9)]  # fmt: skip
    asked = requests(*fast, *slow)
    tables = Tables(["a"], asked, programs(*rows), service_of(asked, asked.finish_s))
    run = RunData(tables, facts(1, sessions=True, window=Window(0.0, 90.0)))
    assert run.of_sessions is not None
    assert [one.name for one in run.of_sessions.facts.clients] == ["c0 1", "c0 2"]
    shares = run.session_shares
    assert shares[0.0][0] == 1
    assert shares[0.0][1] == 0
    assert shares[60.0][1] == 0
    summary = summarize(tables, run.facts)
    assert summary["min_session_share"] == 0
    assert summary["worst_sessions"][0]["session"] == "2"
    assert summary["worst_sessions"][0]["share_60s"] == 0


@pytest.mark.parametrize("workload", ["chat", "judge", "agent"])
def test_runs_without_sessions_have_no_keys_of_sessions(workload):
    found = simulate(small_spec("fcfs", workload, flags={"num_programs": 2})).summary
    of_run = {metric.key for metric in SESSIONS}
    assert not of_run & found.keys()
    assert "worst_sessions" not in found


def test_interactivity_is_the_inverse_of_the_time_per_output_token():
    found = simulate(small_spec("fcfs", "chat", flags={"num_programs": 2})).summary
    for name in ("mean", "median", "p99"):
        assert found[f"{name}_intvty"] == pytest.approx(1000 / found[f"{name}_tpot_ms"])
    assert found["p99_intvty"] <= found["median_intvty"]
    slowest = min(row["p99_intvty"] for row in found["clients"] if row["p99_intvty"])
    assert slowest <= found["p99_intvty"]


def scored(path, rows, *arguments):
    result = CliRunner().invoke(app, ["score", str(lines(path / "log.jsonl", rows)), *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def logged(client, name, start, ttft, **more):
    return {"client": client, "session": name, "start": start, "ttft": ttft, "latency": ttft + 1,
        "input_tokens": 50, "output_tokens": 20} | more  # fmt: skip


def test_a_scored_log_names_the_session_that_waited_longest(tmp_path):
    rows = [logged("ann", "blue", 10 * n, 0.2) for n in range(5)]
    rows += [logged("bob", "red", 1 + 10 * n, 0.2 + 5 * (n == 3)) for n in range(5)]
    found = json.loads(scored(tmp_path, rows, "--json"))
    assert found["worst_sessions"][0]["session"] == "red"
    assert found["worst_sessions"][0]["client"] == "bob"
    assert 4.5 < found["max_turn_wait_s"] < 5.1
    assert "session red of bob waited longest" in " ".join(scored(tmp_path, rows).split())


def test_a_refused_call_is_the_reason_why_a_session_has_no_finite_wait():
    lost = call(2, 50, NAN, NAN, NAN, status=REFUSED, client=1)
    known = facts(sessions=True)
    tables = Tables(
        [client.name for client in known.clients],
        asked := requests(call(1, 0, 0, 1, 2), lost),
        programs(session(1, 0, 0, 2), session(2, 1, 50, NAN, status=REFUSED)),
        service_of(asked, asked.finish_s),
    )
    run = RunData(tables, known)
    refused = "it falls among the 1 refused of 1, which count as infinite"
    assert [one.reason for one in run.session_latency("turn_wait", 95)] == ["", refused]
    assert run.longest_wait().reason == refused
    assert (
        run.victim_session_latency("turn", 95).reason
        == f"client {known.clients[1].name}: {refused}"
    )
    summary = summarize(tables, known)
    shown = next(session_lines(summary))[1]
    assert shown.startswith("the longest wait of a call is not finite, because calls were refused")


@pytest.mark.parametrize("more", [{"session": None}, {"session": ""}])
def test_a_log_whose_requests_name_no_session_has_no_sessions(tmp_path, more):
    rows = [logged("ann", None, n, 0.2, **more) for n in range(5)]
    assert "worst_sessions" not in json.loads(scored(tmp_path, rows, "--json"))


def test_a_session_that_waits_for_admission_by_the_log(tmp_path):
    rows = [
        logged("ann", "one", 10 * n, 2.0, admitted=10 * n + 0.5 * n, cached_tokens=0)
        for n in range(4)
    ]
    found = json.loads(scored(tmp_path, rows, "--json"))
    assert found["max_turn_wait_s"] == pytest.approx(1.5)
    assert found["worst_sessions"][0]["wait_s"] == pytest.approx(3.0)
