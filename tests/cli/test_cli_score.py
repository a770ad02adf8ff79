"""Test the command line of ``fairbench score``, and its output for other tools."""

import gzip
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.core import ServiceWeights
from fairbench.metrics.fairness import jain
from fairbench.metrics.records import Window
from fairbench.metrics.service import View, window_service
from fairbench.report.explained import explained_text
from fairbench.results.run_facts import read_tables
from fairbench.results.store import read_run
from fairbench_studies.kit.trace import throughput_tok_s
from fairbench_studies.validation.slora.measured import load_measured
from tests.shared_data import VTC_RUNS, needs

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--workload", "chat", "--scenario", "s1", "--num-programs", "3", "--scheduler", "vtc"]
RECORD = {"client": "a", "start": 0, "first_token": 1, "end": 2, "input_tokens": 3}
RECORD |= {"output_tokens": 4}


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def scored(*arguments):
    result = invoke("score", *arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a tiny run."""
    parent = tmp_path_factory.mktemp("runs")
    assert invoke("run", *TINY, "--result-dir", parent).exit_code == 0
    (path,) = parent.iterdir()
    return path


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(RECORD) + "\n")
    return path


def test_a_stored_run_scored_again_is_its_own_summary(run):
    assert scored(run) == json.loads((run / "summary.json").read_text())


def test_useful_service_is_reported_and_scored_with_padding(tmp_path):
    words = ("--workload", "attacks/long-decoder.toml", "--scenario", "attack", "--duration", "5")
    file = ROOT / "workloads" / words[1]
    invoke("run", words[0], file, *words[2:], "--scheduler", "lpm", "--result-dir", tmp_path)
    (path,) = tmp_path.iterdir()
    summary = json.loads((path / "summary.json").read_text())
    padder, victim, *_ = summary["clients"]
    assert (padder["padding_tokens"], padder["output_multiple"]) == (8000, 16)
    assert 0 < padder["useful_service_tok_s"] < 0.5 * padder["service_rate_tok_s"]
    assert "padding_tokens" not in victim
    assert victim["useful_service_tok_s"] == victim["service_rate_tok_s"]
    assert scored(path) == summary
    assert "useful" in invoke("show", path).stdout


def test_a_stored_run_over_another_window_has_the_rates_of_that_window(run):
    stored, window = read_run(run), Window(1.0, 3.0)
    got = scored(run, "--window-start", 1, "--window-end", 3)
    assert (got["window_start_s"], got["window_end_s"]) == window
    log, clients = read_tables(stored).service, len(stored.summary["clients"])
    service = window_service(log, View.CLIENT, window, clients, ServiceWeights())
    assert [c["service_rate_tok_s"] * 2.0 for c in got["clients"]] == pytest.approx(list(service))
    assert 0 < service.sum() < stored.summary["service_rate_tok_s"] * stored.summary["duration"]
    assert got["service_gap_bound"] == stored.summary["service_gap_bound"]
    assert got["bound_source"] == "VTC Theorem 4.4"


def test_the_requests_alone_give_every_metric_that_needs_no_service_log(run):
    summary = json.loads((run / "summary.json").read_text())
    got = scored(run / "requests.parquet", "--misbehaving", "client-2,client-3")
    assert got["layout"] == "fairbench"
    for key in ("completed", "total_output_tokens", "cache_hit_rate", "mean_ttft_ms"):
        assert got[key] == pytest.approx(summary[key])
    assert got["num_programs"] == summary["num_programs"]
    assert {c["client"]: c["misbehaving"] for c in got["clients"]} == {
        c["client"]: c["misbehaving"] for c in summary["clients"]
    }


def test_weights_are_given_for_the_clients_of_the_records(run):
    plain = scored(run / "requests.parquet")["clients"]
    got = scored(run / "requests.parquet", "--weights", "client-0=3")
    weights = [3.0 if client["client"] == "client-0" else 1.0 for client in plain]
    assert sorted(weights) == [1.0, 1.0, 1.0, 3.0]
    assert [client["weight"] for client in got["clients"]] == weights
    rates = [client["service_rate_tok_s"] for client in plain]
    assert [client["service_rate_tok_s"] for client in got["clients"]] == rates
    over_weight = [rate / weight for rate, weight in zip(rates, weights, strict=True)]
    assert got["jain_index"] == pytest.approx(jain(over_weight))


def test_the_table_names_all_clients_and_unknown_values(records):
    result = invoke("score", records, "--clients", "zoe", "--window-end", 2)
    assert (result.exit_code, result.stderr) == (0, "")
    shown = result.stdout.split("\n")
    assert shown[0] == "One client sent requests, so nothing was shared."
    assert shown[2] == "scored from records (lines)"
    assert [line.split()[0] for line in shown[6:8]] == ["zoe", "a"]
    assert "0.500 of service" in result.stdout  # one of two clients received all of the service
    assert max(map(len, shown)) <= 100


def test_output_file_appends_a_line_in_sglangs_format(run, tmp_path):
    output = tmp_path / "results.jsonl"
    for flags in ([], ["--output-details"]):
        assert invoke("show", run, "--output-file", output, *flags).exit_code == 0
    plain, detailed = map(json.loads, output.read_text().splitlines())
    summary = json.loads((run / "summary.json").read_text())
    keys = list(plain)
    assert keys[:4] == ["tag", "backend", "dataset_name", "request_rate"]
    for statistic in ("mean", "median", "std", "p99"):
        for theirs, ours in (("e2e_latency", "e2el"), ("ttft", "ttft"), ("tpot", "tpot")):
            assert plain[f"{statistic}_{theirs}_ms"] == summary[f"{statistic}_{ours}_ms"]
    total = summary["total_input_tokens"] + summary["total_output_tokens"]
    assert plain["total_throughput"] == pytest.approx(total / summary["duration"])
    assert plain["jain_index"] == summary["jain_index"]
    lists = set(detailed) - set(plain)
    assert {len(detailed[name]) for name in lists} == {summary["num_requests"]}
    # fairbench's own details are read like a foreign file
    output.write_text(json.dumps(detailed))
    again = scored(output)
    assert again["layout"] == "vllm"
    assert again["completed"] == summary["completed"]
    for key in ("mean_e2el_ms", "p99_ttft_ms", "median_tpot_ms", "total_output_tokens"):
        assert again[key] == pytest.approx(summary[key])


def test_score_appends_such_a_line_too(records, tmp_path):
    output = tmp_path / "out.jsonl"
    scored(records, "--output-file", output, "--output-details")
    (line,) = map(json.loads, output.read_text().splitlines())
    assert (line["completed"], line["mean_ttft_ms"], line["itls"]) == (1, 1000.0, [[1 / 3] * 3])


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            ["--layout", "vlm"],
            "unknown layout 'vlm': choose from agent, agentgateway, aiperf,",
        ),
        (["--map", "client"], "--map client: write FIELD=COLUMN"),
        (["--map", "start="], "--map start=: write a column after =, because start is needed"),
        (["--map", "customer=a"], "unknown field in --map 'customer'"),
        (
            ["--map", "client=nobody"],
            "the layout is unknown. The plain layout needs nobody, which the",
        ),
        (["--time-unit", "min"], "--time-unit min: choose from s, ms, us, ns."),
        (["--line", "1"], "--line 1: cannot be given for this file, which holds a single run"),
        (
            ["--window-start", "3", "--window-end", "2"],
            "--window-end 2: must be above --window-start",
        ),
        (["--window-start", "nan"], "--window-start nan: must be greater"),
        (["--misbehaving", "b"], "unknown client in --misbehaving 'b': choose from a"),
        (["--weights", "b=2"], "unknown client in --weights 'b': choose from a"),
        (["--weights", "a=0"], "weights.a = 0.0: must be a number from 1e-06 to 1e+06"),
        (["--clients", "a,,b"], "--clients a,,b: must be different words"),
        (["--output-details"], "--output-details needs --output-file"),
        (["--output-file", "/nowhere/x"], "--output-file /nowhere/x: cannot be written"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(records, flags, complaint):
    result = invoke("score", records, *flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert complaint in result.stderr


def test_a_run_accepts_no_flags_of_foreign_files(run, tmp_path):
    for arguments in (["--latency", "ttft"], ["--layout", "lines"], ["--clients", "a"], [str(run)]):
        result = invoke("score", run, *arguments)
        assert result.exit_code == 2
        assert "is the directory of a run: it must be the only FILE" in result.stderr
    result = invoke("score", tmp_path)
    assert (result.exit_code, "must be the directory of a run" in result.stderr) == (2, True)


@needs(VTC_RUNS)
@pytest.mark.parametrize("line", [1, 3])
def test_the_real_records_of_the_vtc_artifact_score_as_its_own_columns(line):
    records = [json.loads(text) for text in gzip.decompress(VTC_RUNS.read_bytes()).splitlines()]
    path = records[line - 1]["path"]
    (run,) = [one for one in load_measured(VTC_RUNS) if _is(one.name, path)]
    got = scored(VTC_RUNS, "--line", line, "--window-end", 1e9)
    trace = run.trace
    assert got["layout"] == "vtc-columns"
    assert (got["num_requests"], got["refused"]) == (len(trace), trace.refused)
    tokens = got["total_input_tokens"] + got["total_output_tokens"]
    assert tokens / trace.duration_s == pytest.approx(throughput_tok_s(trace), rel=1e-9)
    served = trace.service_tokens(ServiceWeights())
    length_s = got["window_end_s"] - got["window_start_s"]
    for client in got["clients"]:
        own = served[trace.client == int(client["client"])].sum()
        assert client["service_rate_tok_s"] * length_s == pytest.approx(own)


def _is(name, path):
    scheduler, _, scenario = name.rpartition("/")
    return path.endswith(f"{scheduler}/all_results_{scenario}.jsonl")


def idle_log(folder, *, session=""):
    """Return 180 calls of three clients, 1.5 s apart, which take 1 s each. One call of c1 fails."""
    rows = ["time_s,client,prompt_tokens,completion_tokens,status_code,ttft_s,latency_s,session"]
    for number in range(180):
        status, out = (500, 0) if number == 82 else (200, 100)
        times = ",," if status == 500 else "0.1,1.0,"
        name = f"{session}{number // 30}" if session else f"s{number}"
        rows.append(f"{1.5 * number},c{number % 3},1000,{out},{status},{times}{name}")
    file = folder / "idle.csv"
    file.write_text("\n".join(rows) + "\n")
    return file


def test_a_failed_request_on_an_idle_server_blames_no_client(tmp_path):
    file = idle_log(tmp_path)
    text = " ".join(invoke("score", file).stdout.split())
    assert "worst 60 s c1 received " in text
    assert "its requests failed, and no client delayed it" in text
    assert ", because requests failed" in text
    assert "of its own" not in text
    assert "179 completed, 0 unfinished, 0 refused, 1 failed" in text
    assert "it falls among the 1 failed of 60, which count as infinite" in text
    assert "1 refused" not in text
    assert "with the time between its requests" not in text  # each program is one request
    assert "no client delayed another client" in " ".join(explained_text(scored(file), 80).split())


def test_the_latency_of_a_session_states_its_parts(tmp_path):
    text = " ".join(invoke("score", idle_log(tmp_path, session="s")).stdout.split())
    assert "for a program, with the time between its requests (n = " in text


def test_a_page_calls_the_wait_of_a_failed_request_failed(tmp_path):
    """The client's P95 is the wait of its failed request, the longer of its two waits."""
    rows = ["time_s,client,prompt_tokens,completion_tokens,status_code,ttft_s,latency_s"]
    rows += ["0,a,10,2,200,0.5,1", "1,b,10,2,200,0.25,1", "2,a,10,0,500,,", "3,b,10,2,200,0.25,1"]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    page = tmp_path / "page.html"
    done = invoke("score", tmp_path / "log.csv", "--report", page)
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert re.search(r'<td data-label="P95, s"><span>failed<', text)
    assert not re.search(r">\s*inf\b", text)
