"""Test the default window over which records are scored."""

import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench_logs.scoring.records import read_scored
from fairbench_logs.scoring.summary import ARRIVALS, ASKED, AT_ONCE, LATE, SESSIONS, scored_window

REQUEST = {"ttft": 0.1, "latency": 1.0, "input_tokens": 100, "output_tokens": 20}


def written(path, requests):
    file = path / "r.jsonl"
    file.write_text("".join(json.dumps(REQUEST | one) + "\n" for one in requests))
    return file


def window_of(file, start_s=None, end_s=None, **options):
    scored = read_scored([file], **options)
    found = scored_window(scored.requests, scored.programs, scored.horizon_s, start_s, end_s)
    return (*map(float, found.window), found.reason)


def summary_of(file, *flags):
    result = CliRunner().invoke(app, ["score", str(file), *flags, "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def burst(latency_s, ttft_s):
    """Return twenty requests at 0 s and twenty at 60 s, with the given duration."""
    early = [{"client": "ab"[n % 2], "start": 0} for n in range(20)]
    late = {"start": 60, "latency": latency_s, "ttft": ttft_s}
    return early + [{"client": "ab"[n % 2]} | late for n in range(20)]


@pytest.mark.parametrize("latency_s", [2.0, 40.0, 300.0])
def test_arrivals_near_the_end_count(tmp_path, latency_s):
    """Half of the latencies are 1 s, and the other half ``latency_s``."""
    got = summary_of(written(tmp_path, burst(latency_s, 1.0)), "--goodput", "e2el:1500")
    assert [client["p50_s"] for client in got["clients"]] == pytest.approx(
        [(1 + latency_s) / 2] * 2
    )
    assert [client["latency_n"] for client in got["clients"]] == [20, 20]
    assert got["victim_p99_s"] == pytest.approx(latency_s)
    assert got["time_to_100pct_s"] == pytest.approx(60 + latency_s)
    assert got["goodput_ratio"] == 0.5


def test_the_window_ends_with_the_last_arrival(tmp_path):
    file = written(tmp_path, [{"client": "a", "start": at} for at in range(11)])
    start_s, end_s, reason = window_of(file)
    assert (start_s, end_s, reason) == (0.0, pytest.approx(10.0), ARRIVALS)
    assert end_s > 10.0
    assert window_of(file, 4.0)[:2] == (4.0, end_s)
    assert window_of(file, None, 3.5) == (0.0, 3.5, ASKED)
    assert window_of(file, 10.5) == (10.5, pytest.approx(11.0), AT_ONCE)


def closed(users, rounds):
    """Return users whose next request follows the last answer. A request takes 2 s to 3.5 s."""
    return [
        {"client": f"u{user}", "session": f"s{user}", "start": 0.004 * user + took * turn}
        | {"latency": took}
        for user, took in zip(range(users), (2.0, 2.5, 3.0, 3.5), strict=False)
        for turn in range(rounds)
    ]


@pytest.mark.parametrize("flags", [[], ["--map", "program=session"]])
@pytest.mark.parametrize("rounds", [2, 5])
def test_sessions_last_until_their_last_answer(tmp_path, flags, rounds):
    file = written(tmp_path, closed(4, rounds))
    got = summary_of(file, *flags)
    end_s = 0.012 + 3.5 * rounds
    assert (got["num_requests"], got["num_programs"]) == (4 * rounds, 4)
    assert got["window_end_s"] == pytest.approx(end_s)
    assert got["notes"]["window_end_s"] == SESSIONS
    rates = [client["service_rate_tok_s"] for client in got["clients"]]
    assert rates == pytest.approx([140 * rounds / end_s] * 4)  # input + 2 x output
    assert {client["latency_n"] for client in got["clients"]} == {1}


def test_a_single_program_with_several_requests_extends_the_window(tmp_path):
    requests = [{"client": "a", "start": at} for at in range(11)]
    requests += [{"client": "b", "session": "s", "start": at, "latency": 4.0} for at in (1, 9)]
    assert window_of(written(tmp_path, requests)) == (0.0, pytest.approx(13.0), SESSIONS)


@pytest.mark.parametrize("session", [{}, {"session": "s"}])
def test_only_records_with_sessions_have_metrics_of_sessions(session, tmp_path):
    requests = [{"client": "a", "start": at} | session for at in (0, 3, 6)]
    requests += [{"client": "b", "start": at} for at in (1, 4)]
    got = summary_of(written(tmp_path, requests), "--misbehaving", "b")
    own = {"victim_session_p50_s", "victim_turn_wait_p50_s", "min_session_share", "worst_sessions"}
    assert own & got.keys() == (own if session else set())
    # Each of the three turns takes 1 s.
    assert got.get("victim_session_p50_s") == (pytest.approx(3.0) if session else None)


@pytest.mark.parametrize(
    "names",
    [
        {"client": "user", "start": "timestamp", "session": "conversation_id"},
        {"input_tokens": "prompt_tokens", "latency": "duration", "session": "Session ID"},
        {"session": "program"},
        {},
    ],
)
def test_a_session_is_a_program_under_any_column_name(tmp_path, names):
    requests = [REQUEST | one for one in closed(4, 3)]
    named = [{names.get(key, key): value for key, value in one.items()} for one in requests]
    file = tmp_path / "r.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in named))
    assert len(read_scored([file]).programs) == 4


@pytest.mark.parametrize("column", ["session", "conversation_id", "program"])
@pytest.mark.parametrize("flag", ["session=", "program="])
def test_an_empty_name_switches_sessions_off(tmp_path, column, flag):
    file = written(tmp_path, [{column: one.pop("session"), **one} for one in closed(4, 3)])
    assert summary_of(file)["num_programs"] == 4
    got = summary_of(file, "--map", flag)
    assert got["num_programs"] == got["num_requests"] == 12
    assert {client["latency_n"] for client in got["clients"]} == {3}


def test_sessions_of_two_clients_may_have_the_same_name(tmp_path):
    requests = [
        {"client": client, "session": 1, "start": at} for at in range(3) for client in ("a", "b")
    ]
    programs = read_scored([written(tmp_path, requests)]).programs
    assert programs.requests.tolist() == [3, 3]
    assert programs.client.tolist() == [0, 1]


@pytest.mark.parametrize("jitter_s", [0.0, 0.001, 0.05])
def test_bursts_are_scored_up_to_the_last_answer(tmp_path, jitter_s):
    requests = [
        {"client": "ab"[n % 2], "start": jitter_s * n, "ttft": 1.0 + n, "latency": 2.0 + n}
        for n in range(10)
    ]
    got = summary_of(written(tmp_path, requests))
    assert got["window_end_s"] == pytest.approx(11 + 9 * jitter_s)
    assert got["notes"]["window_end_s"] == AT_ONCE
    assert got["service_rate_tok_s"] == pytest.approx(1400 / (11 + 9 * jitter_s))


def test_a_client_that_came_last_has_service(tmp_path):
    requests = [*burst(40.0, 30.0), {"client": "c", "start": 60.0}]
    got = summary_of(written(tmp_path, requests))
    assert got["notes"]["window_end_s"] == LATE
    assert got["clients"][2]["service_rate_tok_s"] == pytest.approx(140 / 100)


def test_a_client_that_always_waited_is_shown_without_service(tmp_path):
    """A starved client does not shorten the window to the time before the others left."""
    requests = [{"client": "a", "start": at} for at in range(61)]
    requests.append({"client": "b", "start": 1, "ttft": 70.0, "latency": 71.0})
    got = summary_of(written(tmp_path, requests))
    assert got["notes"]["window_end_s"] == ARRIVALS
    assert got["clients"][1]["service_rate_tok_s"] == 0.0


def test_the_table_shows_the_window(tmp_path):
    file = written(tmp_path, [{"client": "a", "start": at} for at in (0.0, 0.125, 0.25)])
    shown = CliRunner().invoke(app, ["score", str(file)]).stdout
    assert "from 0 to 0.25 s" in " ".join(shown.split())
    assert f"window_end_s: {ARRIVALS}" in shown
