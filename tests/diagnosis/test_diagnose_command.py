"""Test ``fairbench diagnose``: the heavy clients, who waits, when, and the remedies."""

import json
import random
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "access.csv"
CLIENTS, SPAN_S = 12, 150.0
FLOOD_S = (40.0, 90.0)


def diagnosed(*arguments):
    result = CliRunner().invoke(app, ["diagnose", *map(str, arguments), "--disable-tqdm"])
    assert result.exit_code == 0, result.output
    return result.stdout


def arrivals(seed, floods):
    """Return (time, client) of teams that send 0.3 requests/s each. team-7 may flood at 15/s."""
    rng = random.Random(seed)

    def poisson(rate, start_s, end_s):
        while (start_s := start_s + rng.expovariate(rate)) < end_s:
            yield start_s

    sent = [(at_s, f"team-{n}") for n in range(CLIENTS) for at_s in poisson(0.3, 0.0, SPAN_S)] + [
        (at_s, "team-7") for at_s in poisson(15.0, *FLOOD_S) if floods
    ]
    return sorted(sent)


def written(path, lines, header="timestamp,client,input_tokens,output_tokens"):
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def log_with_a_flood(folder, seed):
    sent = arrivals(seed, floods=True)
    return written(folder / "log.csv", [f"{at_s:.3f},{client},1200,150" for at_s, client in sent])


@pytest.fixture
def flooded(tmp_path):
    return log_with_a_flood(tmp_path, 0)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_flood_its_window_and_its_victims_are_named(seed, tmp_path):
    log = log_with_a_flood(tmp_path, seed)
    found = json.loads(diagnosed(log, "--no-plan", "--json", "--dp", 1, "--scheduler", "fcfs,vtc"))
    (flood,) = found["floods"]
    assert flood["client"] == "team-7"
    assert flood["start_s"] == pytest.approx(FLOOD_S[0], abs=3.0)
    assert flood["end_s"] == pytest.approx(FLOOD_S[1], abs=3.0)
    victims = {one["client"] for one in found["harm"]["victims"]}
    assert victims == {f"team-{n}" for n in range(CLIENTS) if n != 7}


@pytest.mark.slow
def test_fair_queueing_lowers_the_waits_of_others_in_the_text(flooded):
    found = json.loads(diagnosed(flooded, "--no-plan", "--json", "--dp", 1))
    p95_s = {one["scheduler"]: one["others_p95_s"] for one in found["schedulers"]}
    assert list(p95_s) == ["fcfs", "vtc", "d2lpm", "fair-finish"]
    assert all(p95_s[name] < p95_s["fcfs"] / 2 for name in p95_s if name != "fcfs")
    text = diagnosed(flooded, "--no-plan", "--dp", 1, "--scheduler", "fcfs,vtc")
    assert text.startswith("team-7 floods, 11 clients wait\n")
    assert "- team-7 floods from " in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("cluster", "unlike"), [((), True), (("--gpu", "a10g", "--model", "llama-3.2-3b"), False)]
)
def test_a_replay_on_another_cluster_than_the_logs_is_noted(cluster, unlike):
    """In the second case, the cluster is the example's, and the replay repeats its waits."""
    text = " ".join(diagnosed(EXAMPLE, "--no-plan", "--scheduler", "fcfs,vtc", *cluster).split())
    assert ("does not resemble yours: TTFT P95 is 96.1 s in the log" in text) == unlike
    assert ("from 96.1 s to" in text) != unlike
    assert "of the GPU time is outside the range of the profile's fit." in text


@pytest.mark.slow
def test_a_log_without_floods_is_reported_as_such(tmp_path):
    sent = arrivals(2, floods=False)
    log = written(tmp_path / "log.csv", [f"{at_s:.3f},{client},500,50" for at_s, client in sent])
    found = json.loads(diagnosed(log, "--no-plan", "--json", "--dp", 1))
    assert (found["floods"], found["harm"]) == ([], None)
    assert "floods from" not in diagnosed(log, "--no-plan", "--dp", 1)


@pytest.mark.slow
def test_recorded_latencies_show_the_waiting_clients(tmp_path):
    """In this log, half of the teams wait, and only while team-7 floods."""
    slow = {f"team-{n}" for n in range(6)}
    lines = [
        f"{at_s:.3f},{client},1200,150,{at_s + wait_s:.3f},{at_s + wait_s + 1:.3f}"
        for at_s, client in arrivals(3, floods=True)
        for wait_s in [20.0 if client in slow and FLOOD_S[0] < at_s < FLOOD_S[1] else 0.1]
    ]
    header = "timestamp,client,input_tokens,output_tokens,first_token,end"
    found = json.loads(
        diagnosed(written(tmp_path / "log.csv", lines, header), "--no-plan", "--json", "--dp", 1)
    )
    assert [one["client"] for one in found["floods"]] == ["team-7"]
    assert {one["client"] for one in found["harm"]["victims"]} == slow


def test_the_page_shows_the_load_once_and_the_waits_under_each_scheduler(flooded, tmp_path):
    page = tmp_path / "page.html"
    diagnosed(flooded, "--no-plan", "--dp", 1, "--scheduler", "fcfs,vtc", "--report", page)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page.read_text(), re.DOTALL)
    began = ["Load (input", "Replayed under fcfs. Median time", "Replayed under vtc. Median time"]
    assert len(captions) == len(began)
    assert all(one.startswith(text) for one, text in zip(captions, began, strict=True))


@pytest.mark.slow
def test_the_fewest_replicas_are_in_the_page(flooded, tmp_path):
    page = tmp_path / "page.html"
    asked = "--report", page, "--slo", "victim_p95_s<5s", "--scheduler", "fcfs,vtc"
    text = diagnosed(flooded, *asked)
    said = "To keep the mean TTFT P95 of well-behaved clients below 5 s, "
    assert said in " ".join(text.split())
    shown = page.read_text()
    assert "team-7" in shown
    assert "<svg" in shown
    assert "<script" not in shown


@pytest.mark.parametrize("answers", [",first_token,end", ""])
def test_sessions_of_a_log_can_be_switched_off(answers, tmp_path):
    """In a session, each call waits for the previous one. Without sessions, no call waits."""
    cells = [f",{at_s + 0.1:.1f},{at_s + 1:.1f}" if answers else "" for at_s in range(40)]
    lines = [f"{n},team-{n % 4},s{n % 4},900,90{cells[n]}" for n in range(40)]
    header = f"time,client,session_id,input_tokens,output_tokens{answers}"
    log = written(tmp_path / "log.csv", lines, header)
    flags = ["--no-plan", "--dp", 1, "--scheduler", "fcfs", "--json"]
    counts = {}
    for also in ([], ["--map", "session="]):
        found = json.loads(diagnosed(log, *flags, *also))
        counts[bool(also)] = found["replayed_programs"]
    assert counts == {False: 4, True: 40}


@pytest.mark.parametrize("command", [["diagnose", "--no-plan", "--dp", "1"], ["report"], ["score"]])
def test_a_log_whose_requests_arrive_together_has_a_page_without_pictures(command, tmp_path):
    header = "time,client,input_tokens,output_tokens,ttft,latency"
    lines = ["0,a,100,10,0.1,1.0", "0,b,100,10,0.1,1.0", "0,a,100,10,0.1,1.0"]
    log = written(tmp_path / "log.csv", lines, header)
    page = tmp_path / "page.html"
    flag = "-o" if command == ["report"] else "--report"
    result = CliRunner().invoke(app, [*command, str(log), flag, str(page)])
    assert result.exit_code == 0, result.output
    assert "<svg" not in page.read_text()


BAD_ROWS = {
    "GARBAGE": "garbage",
    "NEGATIVE": "1.0,b,10,11,-0.2,0.9",
    "ENDLESS": "1.0,b,10,11,0.9,0.2",
    "IN_MS": "1.0,b,10,11,100,900",
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.csv"], "none.csv"),
        (["LOG", "--scheduler", "d2lmp"], "Did you mean 'd2lpm'?"),
        (["LOG", "--slo", "victim_p95<2s"], "victim_p95"),
        (["GARBAGE"], "GARBAGE, line 3: time = 'garbage': must be a number or an ISO 8601"),
        (["NEGATIVE"], "line 3: ttft = -0.2: must be at least 0"),
        (["ENDLESS"], "line 3: the end is before the first token"),
        (["IN_MS"], "latency = 900: in seconds, even fast answers would take 90 s per"),
        (["LOG", "--report", "page.pdf"], "must end in .html or .md"),
        (["none.csv", "--report", "no/x.md"], "--report no/x.md: cannot be written: No such file"),
        (["none.csv", "--report", "dir.md"], "--report dir.md: cannot be written: Is a directory"),
    ],
)
def test_a_wrong_argument_is_one_line(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir.md").mkdir()
    written(tmp_path / "LOG", ["0.0,a,10,10", "1.0,b,10,10"])
    for name, line in BAD_ROWS.items():
        header = "time,client,input_tokens,output_tokens,ttft,latency"
        first = line.replace("1.0,b", "0.0,a") if name == "IN_MS" else "0.0,a,10,11,0.1,0.9"
        written(tmp_path / name, [first, line], header)
    result = CliRunner().invoke(app, ["diagnose", *arguments])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr


def test_a_report_that_cannot_be_written_loses_no_answer(flooded, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fairbench.report.pages.html.write_text", full)
    arguments = ["diagnose", flooded, "--no-plan", "--dp", 1, "--scheduler", "fcfs"]
    page = tmp_path / "page.md"
    result = CliRunner().invoke(app, [*map(str, arguments), "--report", str(page)])
    assert (result.exit_code, "No space left on device" in result.stderr) == (2, True)
    assert result.stdout.startswith("team-7 floods")


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ("ttft", ["as recorded", "0.30", "0.30", "1.50"]),
        ("ttft_ms", ["as recorded", "0.30", "0.30", "1.50"]),
        ("latency", None),
        ("", None),
    ],
)
def test_the_log_is_a_row_of_the_table(columns, row, tmp_path):
    scale = 1000.0 if columns.endswith("_ms") else 1.0
    lines = [
        f"{at_s:.3f},{client},1200,150" + (f",{scale * wait_s}" if columns else "")
        for at_s, client in arrivals(3, floods=True)
        for wait_s in [1.5 if client == "team-7" else 0.3]
    ]
    head = "timestamp,client,input_tokens,output_tokens" + (f",{columns}" if columns else "")
    if columns.startswith("ttft"):  # the layout of scores needs an end, too
        lines = [f"{line},{float(line.rpartition(',')[2]) + 9}" for line in lines]
        head += ",latency" + columns.removeprefix("ttft")
    log = written(tmp_path / "log.csv", lines, head)
    text = diagnosed(log, "--no-plan", "--dp", 1, "--scheduler", "fcfs")
    found = [line.split("  ") for line in text.splitlines() if line.startswith("as recorded")]
    names = [line.split()[0] for line in text.splitlines() if line]
    if row is None:
        assert found == []
        assert "TTFT of others, s" in text
        assert re.search(r"^replay under +P50 +P95", text, re.MULTILINE)
        return
    cells = [cell.strip() for cell in found[0] if cell.strip()]
    assert cells == [*row, "-", "-"]
    assert names.index("as") == names.index("fcfs") - 1
    shown = json.loads(diagnosed(log, "--no-plan", "--dp", 1, "--scheduler", "fcfs", "--json"))
    assert shown["recorded"]["heavy_p50_s"] == pytest.approx(1.5)
