"""Test that a flood in an access log is found: its client, its window and who waits."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.metrics.floods import Flood, Victim, floods, harm_of
from fairbench.metrics.traffic import Traffic, best_stretch
from fairbench_logs.overload import overload_of

FLOODER, START_S, END_S, SPAN_S = 17, 120, 360, 480
NAMES = tuple(f"team-{number:02d}" for number in range(40))


def requests(flooding=True):
    """Return requests of 40 teams by time. One floods from 120 to 360 s at 9 requests/s."""
    rng = np.random.default_rng(1)
    rows = [(at, team) for team in range(40) for at in rng.uniform(0, SPAN_S, 70)]
    if flooding:
        rows += [(at, FLOODER) for at in rng.uniform(START_S, END_S, 9 * (END_S - START_S))]
    return sorted(rows)


def one_server(rows, service_s=0.1):
    """Return each request's wait in the first-come, first-served queue of one server (Lindley)."""
    waits, free_s = [], 0.0
    for at, _ in rows:
        free_s = max(free_s, at)
        waits.append(free_s - at + service_s)
        free_s += service_s
    return np.array(waits)


def traffic_of(rows, waits):
    client = np.array([team for _, team in rows])
    arrival_s = np.array([at for at, _ in rows])
    return Traffic(NAMES, client, arrival_s, np.full(len(rows), 100.0), waits)


def written(path, rows, waits=None):
    columns = "time,client,input_tokens,output_tokens" + ("" if waits is None else ",ttft,latency")
    lines = [f"{at:.4f},{NAMES[team]},1000,120" for at, team in rows]
    if waits is not None:
        lines = [
            f"{line},{wait:.4f},{wait + 1:.4f}" for line, wait in zip(lines, waits, strict=True)
        ]
    path.write_text("\n".join([columns, *lines]) + "\n")
    return path


def test_the_flood_its_window_and_its_victims_are_named():
    rows = requests()
    traffic = traffic_of(rows, one_server(rows))
    (flood,) = floods(traffic)
    assert traffic.clients[flood.client] == "team-17"
    assert flood.start_s == pytest.approx(START_S, abs=2)
    assert flood.end_s == pytest.approx(END_S, abs=2)
    assert not flood.throughout
    harm = harm_of(traffic, [flood])
    assert {one.client for one in harm.victims} == set(range(40)) - {FLOODER}
    assert START_S <= harm.start_s < START_S + 30
    assert harm.end_s > END_S  # the queue drains only after the flood


def test_without_a_flood_no_client_is_named():
    rows = requests(flooding=False)
    assert floods(traffic_of(rows, one_server(rows))) == []


def test_a_flood_without_delays_harms_nobody():
    rows = requests()
    traffic = traffic_of(rows, np.full(len(rows), 0.1))
    assert harm_of(traffic, floods(traffic)) is None


@pytest.mark.parametrize(("delayed", "victims"), [(1, {1}), (2, {1, 2})])
def test_a_client_is_delayed_if_a_quarter_of_its_requests_are(delayed, victims):
    """From 102 to 132 s, client 1 waits for every answer, and client 2 for 1 or 2 of 5 answers."""
    slow = [(102.0 + at, 1, 50.0) for at in range(31)]
    other = [(110.5 + at, 2, 50.0 if at < delayed else 0.1) for at in range(5)]
    before = [(float(at), 1 + at % 2, 0.1) for at in range(40)]
    rows = sorted([*before, (100.0, 0, 0.1), *slow, *other])
    traffic = traffic_of([row[:2] for row in rows], np.array([row[2] for row in rows]))
    harm = harm_of(traffic, [Flood(0, 100.0, 101.0, 1.0, 9.0, 1, False)])
    assert {one.client for one in harm.victims} == victims


@pytest.mark.parametrize(("delayed", "harmful"), [(4, False), (5, True)])
def test_a_flood_that_delays_at_least_five_requests_is_harmful(delayed, harmful):
    before = [(float(at), 1, 0.1) for at in range(40)]
    rows = [*before, (100.0, 0, 0.1), *((102.0 + at, 1, 50.0) for at in range(delayed))]
    traffic = traffic_of([row[:2] for row in rows], np.array([row[2] for row in rows]))
    harm = harm_of(traffic, [Flood(0, 100.0, 101.0, 1.0, 9.0, 1, False)])
    assert (harm is not None) == harmful
    if harm:
        assert harm.victims == (Victim(1, 5, 50.0, 0.1),)


def test_sessions_come_in_bursts_and_are_not_floods():
    """Each of forty sessions makes 12 calls within 20 s, in bursts of 3 times its mean rate."""
    rng = np.random.default_rng(3)
    starts = [(team, at) for team in range(40) for at in rng.uniform(0, SPAN_S, 4)]
    rows = sorted((at + call, team) for team, at in starts for call in rng.uniform(0, 20, 12))
    assert floods(traffic_of(rows, np.zeros(len(rows)))) == []
    flood = [(at, FLOODER) for at in rng.uniform(START_S, END_S, 9 * (END_S - START_S))]
    rows = sorted(rows + flood)
    assert [one.client for one in floods(traffic_of(rows, np.zeros(len(rows))))] == [FLOODER]


def test_an_overloaded_server_has_no_culprit():
    rows = requests(flooding=False)
    slow, fast = (traffic_of(rows, one_server(rows, service_s)) for service_s in (0.3, 0.1))
    assert overload_of(fast) is None
    found = overload_of(slow)
    assert found.clients == 40
    assert found.start_s < SPAN_S / 4
    assert found.end_s == pytest.approx(SPAN_S, abs=2)
    assert found.median_s < found.p95_s
    few = slow._replace(wait_s=np.where(slow.client < 10, slow.wait_s, 0.1))
    assert overload_of(few) is None  # most clients do not wait
    # all wait equally, as for long prompts
    assert overload_of(slow._replace(wait_s=np.full(len(rows), 9.0))) is None


@pytest.mark.parametrize(("present", "clients"), [(19, None), (20, 20)])
def test_an_overload_delays_half_of_all_clients_and_not_half_of_the_present(present, clients):
    rows = [(float(team), team) for team in range(40)]  # each client is served at once
    rows += [(100.0 + at, at % present) for at in range(4 * present)]
    waits = np.where([at >= 100 for at, _ in rows], 9.0, 0.1)
    found = overload_of(traffic_of(rows, waits))
    assert (found and found.clients) == clients


@pytest.mark.slow
def test_a_diagnosis_and_a_page_say_that_servers_are_overloaded(tmp_path):
    rows = requests(flooding=False)
    log = written(tmp_path / "access.csv", rows, one_server(rows, 0.3))
    flags = "--no-plan", "--dp", 1, "--disable-tqdm", "--scheduler", "fcfs,vtc"
    text = " ".join(invoke("diagnose", log, *flags).stdout.split())
    assert text.startswith("Nobody floods, but the servers are overloaded")
    assert "40 of 40 clients wait long from" in text
    page = tmp_path / "page.html"
    invoke("report", log, "-o", page)
    assert "nobody floods, but the servers are overloaded</h1>" in page.read_text()


@pytest.mark.slow
def test_replicas_for_sessions_are_chosen_by_the_latency_of_each_call(tmp_path):
    """A whole session lasts a minute and would miss any target, but its calls meet it."""
    header = "time,client,input_tokens,output_tokens,session"
    lines = [
        f"{30 * n + 20 * turn},{NAMES[n % 3]},{500 + 100 * turn},50,s{n}"
        for n in range(12)
        for turn in range(4)
    ]
    log = tmp_path / "log.csv"
    log.write_text("\n".join([header, *sorted(lines, key=lambda one: float(one.split(",")[0]))]))
    flags = ("--scheduler", "fcfs,vtc", "--disable-tqdm")
    text = " ".join(invoke("diagnose", log, *flags).stdout.split())
    said = "To keep the mean TTFT P95 of well-behaved clients below 2 s, vtc needs 1 replica"
    assert said in text
    text = " ".join(invoke("diagnose", log, *flags, "--slo", "victim_p95_s<2s").stdout.split())
    assert "the mean P95 of whole sessions of well-behaved clients below 2 s" in text
    assert "vtc needs more than 8 replicas" in text


def test_the_best_stretch_equals_one_computed_by_hand():
    gains, cost = np.array([1.0, -3.0, 2.0, 2.0, -1.0]), np.zeros(5)
    assert best_stretch(gains, cost) == (2, 3, 4.0)
    # Three events of weight 2. The gap before the last costs more than the event adds.
    assert best_stretch(np.full(3, 2.0), np.array([0.0, 1.0, 9.0])) == (0, 1, 3.0)


@pytest.fixture
def log(tmp_path):
    """Write the flood to a file, with waits."""
    rows = requests()
    return written(tmp_path / "access.csv", rows, one_server(rows))


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_one_command_answers_on_one_page(log, tmp_path):
    page = tmp_path / "page.html"
    result = invoke("diagnose", log, "--no-plan", "--dp", 1, "--report", page, "--disable-tqdm")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    start_s, end_s = map(int, re.search(r"team-17 floods from (\d+) to (\d+) s", text).groups())
    assert abs(start_s - START_S) <= 2
    assert abs(end_s - END_S) <= 2
    assert "39 of 39 other clients waited" in text
    assert "median time to first token in the log was" in text
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if str(page) not in line)
    shown = page.read_text()
    assert "<h1>team-17 floods, 39 clients wait</h1>" in shown
    assert "<strong></strong>" not in shown
    assert "<strong>-</strong>" not in shown


@pytest.mark.slow
def test_json_contains_the_numbers(log):
    result = invoke("diagnose", log, "--no-plan", "--dp", 1, "--scheduler", "fcfs,vtc", "--json")
    found = json.loads(result.stdout)
    assert [one["client"] for one in found["floods"]] == ["team-17"]
    assert len(found["harm"]["victims"]) == 39
    fcfs, vtc = found["schedulers"]
    assert (fcfs["scheduler"], vtc["scheduler"]) == ("fcfs", "vtc")


@pytest.mark.parametrize("command", [("report",), ("score", "--report")])
def test_a_log_gets_a_page(command, log, tmp_path):
    page = tmp_path / "page.html"
    flags = ("-o", page) if command == ("report",) else ("--report", page)
    result = invoke(command[0], log, *flags)
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "team-17 floods, 39 clients wait" in text
    assert text.count("<svg") == 2
    assert "<strong>-</strong>" not in text
