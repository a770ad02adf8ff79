"""Test ``fairbench diagnose`` on logs with known answers: replicas, floods and doubtful replays."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.metrics.floods import Flood, flood_windows, floods
from fairbench.metrics.traffic import Traffic
from fairbench.workloads.traces.read import TraceParams
from fairbench_logs.diagnosis import access_log
from fairbench_logs.diagnosis.access_log import read_log
from fairbench_logs.diagnosis.page import log_page

HEADER = "time,client,input_tokens,output_tokens"


def invoke(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments), "--disable-tqdm"])


def said(*arguments):
    """Return the text of a diagnosis as one line."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def numbers(*arguments):
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def steady(clients, every_s, until_s):
    """Return (time, client) for clients that send a request every ``every_s`` seconds."""
    count = int(until_s / every_s)
    sent = [
        ((n + code / clients) * every_s, f"c{code}")
        for n in range(count)
        for code in range(clients)
    ]
    return sorted(sent)


def written(path, rows, header=HEADER):
    lines = [",".join(str(cell) for cell in row) for row in rows]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.mark.parametrize("engine", ["sglang", "vllm", "lightllm"])
def test_a_light_load_needs_one_replica_of_each_engine(engine, tmp_path):
    """The load is 2 requests/s of 1,000 input and 100 output tokens. An A100 serves about 10."""
    log = written(tmp_path / "log.csv", [(*one, 1000, 100) for one in steady(10, 5.0, 100.0)])
    found = numbers(log, "--no-plan", "--scheduler", "fcfs", "--engine", engine)
    assert found["dp"] == 1
    assert found["schedulers"][0]["others_p95_s"] < 1.0


KEYED = "time,api_key,input_tokens,output_tokens"


def test_a_log_without_a_client_column_is_refused_on_its_page_too(tmp_path):
    rows = [(*one, 500, 50) for one in steady(4, 5.0, 50.0)]
    log = written(tmp_path / "log.csv", rows, KEYED)
    hint = (
        "no column for client (has time, api_key, input_tokens, output_tokens): name it with "
        "--clients-from api_key"
    )
    result = invoke(log)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert hint in result.stderr
    page = tmp_path / "page.md"
    assert CliRunner().invoke(app, ["report", str(log), "-o", str(page)]).exit_code == 0
    assert hint in page.read_text().replace("\\", "")
    inspected = CliRunner().invoke(app, ["trace", "inspect", str(log)]).stdout
    assert hint in " ".join(inspected.split())
    named = numbers(log, "--clients-from", "api_key", "--no-plan", "--scheduler", "fcfs")
    assert named["clients"] == 4


def test_a_single_client_has_no_victims(tmp_path):
    log = written(tmp_path / "log.csv", [(*one, 500, 50) for one in steady(1, 1.0, 30.0)])
    text = said(log, "--no-plan", "--scheduler", "fcfs")
    assert "There is one client, so none floods the others." in text


@pytest.mark.parametrize("name", ["Tenant Name", "team_name", "AccountName"])
def test_common_names_of_clients_are_recognised(name, tmp_path):
    rows = [(*one, 500, 50) for one in steady(4, 5.0, 50.0)]
    log = written(tmp_path / "log.csv", rows, KEYED.replace("api_key", name))
    assert numbers(log, "--no-plan", "--scheduler", "fcfs")["clients"] == 4


@pytest.mark.parametrize(
    ("cells", "header", "ignored"),
    [("400", ",cached_tokens", True), ("0", ",cached_tokens", False), ("1 2", ",hash_ids", False)],
)
def test_cached_tokens_that_are_not_replayed_are_named(cells, header, ignored, tmp_path):
    flags = ("--trace-block-size", 100) if "hash" in header else ()
    rows = [(*one, 500, 50, cells) for one in steady(4, 5.0, 50.0)]
    log = written(tmp_path / "log.csv", rows, HEADER + header)
    inspected = CliRunner().invoke(app, ["trace", "inspect", *map(str, (log, *flags))])
    assert inspected.exit_code == 0, inspected.output
    assert ("cached_tokens is not replayed" in inspected.stdout) == ignored
    if not flags:
        text = said(log, "--no-plan", "--scheduler", "fcfs")
        assert ("The log's cached tokens (cached_tokens) are not replayed" in text) == ignored


@pytest.mark.slow
@pytest.mark.parametrize(("recorded_s", "like"), [(0.1, True), (0.9, False), (20.0, False)])
def test_a_replay_that_differs_from_the_log_is_marked_everywhere(recorded_s, like, tmp_path):
    """The replay's waits are about 0.1 s; the log's are constant."""
    rows = [(*one, 500, 50, recorded_s, recorded_s + 1) for one in steady(4, 5.0, 100.0)]
    log = written(tmp_path / "log.csv", rows, HEADER + ",ttft_s,latency_s")
    page = tmp_path / "page.html"
    text = said(log, "--scheduler", "fcfs,vtc", "--report", page)
    assert ("does not resemble yours" in text) is not like
    marked = "Only on the simulated cluster, not on yours: "
    assert (f"{marked}fair queueing changes little" in text) is not like
    assert (f"{marked}to keep the mean TTFT P95" in text) is not like
    assert ("The simulated replicas keep up" in text) is like
    assert page.read_text().count(", not valid for your cluster") == (0 if like else 2)
    found = numbers(log, "--scheduler", "fcfs,vtc", "--no-plan")
    assert found["replay_is_like_log"] is like


@pytest.mark.slow
def test_two_separate_floods_do_harm_and_schedulers_are_judged_in_both(tmp_path):
    """The clients wait 10 s from 110 to 130 s, 20 s from 310 to 340 s, and 0.1 s otherwise."""

    def wait_s(at_s):
        return 10.0 if 110 <= at_s < 130 else 20.0 if 310 <= at_s < 340 else 0.1

    sent = steady(10, 5.0, 400.0)
    for name, begin in (("c3", 100), ("c7", 300)):
        sent += [(begin + n / 8, name) for n in range(240)]
    rows = [(at_s, name, 500, 50, wait_s(at_s), wait_s(at_s) + 1) for at_s, name in sorted(sent)]
    log = written(tmp_path / "log.csv", rows, HEADER + ",ttft_s,latency_s")
    page = tmp_path / "page.html"
    flags = ("--no-plan", "--scheduler", "fcfs,vtc", "--dp", 1)
    text = said(log, *flags, "--report", page)
    assert re.search(r"From 110 to 130 s, [^:]* waited[^:]*: [^.]* was 10\.0 s, otherwise", text)
    assert re.search(r"From 310 to 340 s, [^:]* waited[^:]*: [^.]* was 20\.0 s, otherwise", text)
    edges = re.search(r"requests sent from (\d+) to (\d+) s and (\d+) to (\d+) s", text).groups()
    assert [int(edge) for edge in edges] == pytest.approx([100, 130, 300, 330], abs=5)
    shown = page.read_text()
    assert "110 to 130 s and 310 to 340 s, median wait" in shown
    assert "requests that arrived during the floods." in shown
    found = numbers(log, *flags)
    judged = [edge for window in found["judged_s"] for edge in window]
    assert judged == pytest.approx([100, 130, 300, 330], abs=5)
    assert [round(one["median_s"]) for one in found["harm"]["parts"]] == [10, 20]


def test_the_interval_of_the_throughput_is_named_without_the_warm_up(tmp_path):
    log = written(tmp_path / "log.csv", [(*one, 500, 50) for one in steady(4, 5.0, 200.0)])
    text = said(log, "--no-plan", "--scheduler", "fcfs")
    start_s, end_s = re.search(r"tok/s are of the replay from (\d+) to (\d+) s", text).groups()
    assert (int(start_s), int(end_s)) == pytest.approx((20, 200), abs=1)


@pytest.mark.slow
def test_progress_names_the_log_and_few_requests_give_no_diagnosis(tmp_path):
    log = written(tmp_path / "monday.csv", [(*one, 500, 50) for one in steady(4, 5.0, 10.0)])
    result = CliRunner().invoke(app, ["diagnose", str(log), "--scheduler", "fcfs,vtc"])
    assert result.stdout.startswith("Too few requests for a diagnosis\n")
    assert "8 requests are too few to find a flood." in result.stdout
    assert "trace-monday" in result.stderr


def test_ordinary_requests_do_not_count_as_part_of_a_flood():
    """Ten clients ask once a minute; c3 floods from 300 to 360 s with four requests a second."""
    sent = steady(10, 60.0, 1200.0) + [(300 + n / 4, "c3") for n in range(241)]
    sent.sort()
    names = tuple(f"c{code}" for code in range(10))
    client = np.array([names.index(name) for _, name in sent])
    arrival_s = np.array([at_s for at_s, _ in sent])
    unknown = np.full(len(sent), np.nan)
    (flood,) = floods(Traffic(names, client, arrival_s, np.full(len(sent), 600.0), unknown))
    assert (flood.client, flood.start_s, flood.end_s) == (3, 300.0, 360.0)
    # In the 60 s of the flood, c3 sends 242 requests, and the nine others send 10 (c0 also at 360
    # s).
    assert (flood.requests, flood.multiple) == (242, pytest.approx(242 / (10 / 9)))


def test_the_waits_under_both_schedulers_are_shown_side_by_side(tmp_path):
    page = tmp_path / "page.html"
    log = written(tmp_path / "log.csv", [(*one, 500, 50) for one in steady(4, 5.0, 100.0)])
    said(log, "--no-plan", "--scheduler", "fcfs,vtc", "--report", page)
    shown = page.read_text()
    load, waits = shown.split("<h2>Load</h2>")[1].split("<h2>Waits</h2>")
    assert (load.count("<svg"), waits.count("<svg")) == (1, 2)
    assert 'data-label="TTFT of all clients, s, P95"' in shown


def test_failed_requests_of_a_log_with_waits_count_in_its_load(tmp_path):
    path = tmp_path / "log.csv"
    rows = ["0,c0,100,0,,,500", *(f"{n},c{n % 2},100,10,0.1,1,200" for n in range(1, 40))]
    path.write_text("\n".join([f"{HEADER},ttft_s,latency_s,status", *rows]))
    params = TraceParams(file=str(path))
    assert len(read_log(params).traffic.client) == 40
    assert "1 failed requests counted in the load" in log_page(params).provenance


def test_the_replayed_part_surrounds_the_flood_on_the_clock_of_the_log(tmp_path, monkeypatch):
    path = tmp_path / "log.csv"
    rows = [*(f"{n},c0,100,0,,,500" for n in range(20)), *(
        f"{n},c{n % 2},100,10,0.1,1,200" for n in range(20, 100))]  # fmt: skip
    path.write_text("\n".join([f"{HEADER},ttft_s,latency_s,status", *rows]))
    log = read_log(TraceParams(file=str(path)))
    assert (log.offset_s, len(log.table)) == (20.0, 80)
    monkeypatch.setattr(access_log, "MOST_REPLAYED", 30)
    flood = Flood(0, 50.0, 60.0, 0.9, 9.0, 99, throughout=False)
    part, start_s = access_log.part_to_replay(log, [flood])
    # plus half of the flood's ten seconds before and after it
    assert (start_s, part.span_s, len(part)) == (45.0, 19.0, 20)


def test_a_flood_within_a_longer_flood_does_not_shorten_its_window():
    def flood(start_s, end_s):
        return Flood(0, start_s, end_s, 0.9, 9.0, 99, throughout=False)

    found = flood_windows([flood(20.0, 25.0), flood(1.0, 9.0), flood(2.0, 4.0), flood(9.0, 12.0)])
    assert found == [(1.0, 12.0), (20.0, 25.0)]


def test_a_replay_begins_with_its_first_request_and_not_in_the_pause_before(tmp_path, monkeypatch):
    path = tmp_path / "log.csv"
    times_s = [*range(22), *range(28, 100)]
    rows = [f"{n},c{n % 2},100,10,0.1,1,200" for n in times_s]
    path.write_text("\n".join([f"{HEADER},ttft_s,latency_s,status", *rows]))
    log = read_log(TraceParams(file=str(path)))
    monkeypatch.setattr(access_log, "MOST_REPLAYED", 30)
    flood = Flood(0, 30.0, 40.0, 0.9, 9.0, 99, throughout=False)
    part, start_s = access_log.part_to_replay(log, [flood])
    # The part from 25 s to 45 s has its first request at 28 s.
    assert (start_s, part.span_s, len(part)) == (28.0, 16.0, 17)
