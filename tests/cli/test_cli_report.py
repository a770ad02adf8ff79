"""Test ``fairbench report`` pages for a run, for repeats and for a sweep."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.report.numbers import number
from fairbench.results.comparison import compare_sweep
from fairbench.schedulers import registry
from tests.html_reading import Reader

TINY = ["--workload", "chat", "--num-programs", "2"]
GRID = ["sweep", "--schedulers", "vtc,lpm", "--workloads", "chat", "--num-programs", "2"]
HOSTILE = "<script>alert(1)</script>"


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the directory of a run whose tag contains HTML."""
    parent = tmp_path_factory.mktemp("runs")
    result = invoke("run", *TINY, "--tag", HOSTILE, "--scheduler", "vtc", "--result-dir", parent)
    assert result.exit_code == 0, result.output
    (path,) = parent.iterdir()
    return path


@pytest.fixture
def repeated(tmp_path):
    """The directory of two runs that differ in the seed."""
    flags = ("--scheduler", "vtc", "--seed", 3, "--num-runs", 2)
    result = invoke("run", *TINY, *flags, "--result-dir", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    return next((tmp_path / "runs").iterdir())


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The directory of a sweep with two points."""
    parent = tmp_path_factory.mktemp("sweeps")
    result = invoke(*GRID, "--result-dir", parent)
    assert result.exit_code == 0, result.output
    return parent / "sweep"


def reported(directory, path):
    result = invoke("report", directory, "-o", path)
    assert (result.exit_code, result.stdout) == (0, f"report  {path}\n")
    return path.read_text()


def test_the_page_of_a_run_shows_clients_and_the_command_to_repeat_it(run, tmp_path):
    text = reported(run, tmp_path / "r.html")
    shown = Reader(text)
    summary = json.loads((run / "summary.json").read_text())
    assert "simulated on a100-80gb/llama-3.1-8b/tp1/measured-sglang, seed 0" in shown.text
    for client in summary["clients"]:
        assert client["client"] in shown.text
        assert f"{client['service_rate_tok_s']:,.0f}" in shown.text
    assert "VTC Theorem 4.4" in shown.text
    assert "fairbench run experiment.toml" in shown.text
    assert (run / "experiment.toml").read_text() in shown.text
    assert json.loads((run / "manifest.json").read_text())["spec_identity"] in shown.text
    assert text.count("<svg") >= 2
    assert "60 latencies" in shown.text  # two programs are too few
    few = [f"{number(one['p95_s'])}?" for one in summary["clients"]]
    assert [cell for cell in shown.words if cell in few] == few
    assert "script" not in shown.tags
    assert HOSTILE in shown.text


def test_the_spec_in_the_page_gives_the_same_records(run, tmp_path):
    shown = Reader(reported(run, tmp_path / "r.html"))
    (spec,) = [words for words in shown.words if words.startswith("scheduler = ")]
    (tmp_path / "experiment.toml").write_text(spec)
    again = invoke("run", tmp_path / "experiment.toml", "--json", "--result-dir", tmp_path / "runs")
    assert json.loads(again.stdout) == json.loads((run / "summary.json").read_text())


def test_the_page_of_a_sweep_begins_with_the_trade_off(swept, tmp_path):
    text = reported(swept, tmp_path / "s.html")
    shown = Reader(text).text
    for cell in compare_sweep(swept):
        latency = cell.combined["victim_p95_s"]["mean"]
        card = re.search(rf"<span>{cell.scheduler}</span><strong>(.*?)</strong>", text)
        assert card[1] == f"{number(latency)} s"
        for client in cell.combined["clients"]:
            assert client["client"] in shown
    assert "<h1>Sweep" not in text
    assert "undefined in" not in text
    assert text.index("Latency against throughput") < text.index("<table")
    assert 'class="mark"' in text
    assert "fairbench sweep sweep.toml" in shown


def test_the_page_of_several_seeds_has_intervals(repeated, tmp_path):
    page = Reader(reported(repeated, tmp_path / "r.html"))
    shown, words = page.text, page.words
    combined = json.loads((repeated / "intervals.json").read_text())
    for key, digits in (("service_rate_tok_s", 0), ("jain_index_actual", 3)):
        mean, low, high = (combined[key][one] for one in ("mean", "low", "high"))
        assert low < mean < high
        assert f"{mean:,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}]" in shown
    for seed in (3, 4):
        one = json.loads((repeated / f"vtc-chat-s1-dp1-seed{seed}/summary.json").read_text())
        row = words[words.index(f"seed {seed}") :][:5]
        assert row[-1] == f"{one['service_rate_tok_s']:,.0f}"
    assert "2 seeds" in shown
    assert "fairbench run experiment.toml --num-runs 2" in shown
    assert "2 of 2 runs have fewer than 60 latencies for a P95." in shown
    assert f"{combined['service_gap_bound']['mean']:,.0f}" in shown
    (repeated / "vtc-chat-s1-dp1-seed3/summary.json").write_text("{}")
    result = invoke("report", repeated)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "summary.json" in result.stderr


def test_the_page_of_several_seeds_names_the_heavy_client(tmp_path):
    flags = ["--workload", "judge", "--scenario", "s1", "--duration", "30", "--num-runs", "2"]
    result = invoke("run", *flags, "--scheduler", "fcfs", "--result-dir", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    text = reported(next((tmp_path / "runs").iterdir()), tmp_path / "r.html")
    assert "<span>who floods</span><strong>client-0</strong>" in text
    assert "client-0 floods in 2 of 2 seeds" in Reader(text).text


def test_an_unfinished_sweep_names_what_is_missing(swept, tmp_path):
    part = tmp_path / "part"
    shutil.copytree(swept, part)
    shutil.rmtree(part / "runs/lpm-chat-s1-dp1-seed0")
    failure = {"point": "chat s1, lpm", "error": "out of luck", "traceback": ""}
    (part / "failed/x.json").write_text(json.dumps(failure))
    text = Reader(reported(part, tmp_path / "s.html")).text
    assert "Only 1 of 2 points are finished." in text
    assert "Failed: chat s1, lpm: out of luck" in text
    shutil.rmtree(part / "runs/vtc-chat-s1-dp1-seed0")
    result = invoke("report", part)
    assert result.exit_code == 2
    assert "no run of this sweep is finished" in result.stderr


def test_the_same_page_as_markdown(run, swept, tmp_path):
    text = reported(run, tmp_path / "r.md")
    assert text.startswith("# vtc on chat, scenario s1, dp 1\n")
    assert "## Clients" in text
    assert "<svg" not in text
    assert "| client-0 " in reported(swept, tmp_path / "s.md").replace("\u2003", "")


def test_the_default_is_a_page_in_the_directory(run):
    result = invoke("report", run)
    assert result.stdout == f"report  {run / 'report.html'}\n"
    (run / "report.html").unlink()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["nowhere"],
            "nowhere: must be an access log, or the directory of a run, a sweep or a plan",
        ),
        (["nowhere", "-o", "x.pdf"], "x.pdf: must end in .html or .md"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, complaint):
    result = invoke("report", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert complaint in result.stderr


def test_files_that_cannot_be_written_or_read_are_one_line(run, tmp_path):
    result = invoke("report", run, "-o", tmp_path / "none" / "r.html")
    assert (result.exit_code, "cannot be written" in result.stderr) == (2, True)
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    (broken / "service.parquet").write_bytes(b"PAR1")
    result = invoke("report", broken)
    assert (result.exit_code, "service.parquet: cannot be read" in result.stderr) == (2, True)


@pytest.mark.parametrize("command", ["report", "score"])
def test_a_summary_that_lacks_a_key_is_one_line(run, tmp_path, command):
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    summary = json.loads((broken / "summary.json").read_text())
    for value, complaint in ((None, "must be a valid integer"), (..., "victim_n: missing")):
        changed = {key: summary[key] for key in summary if key != "victim_n"}
        changed |= {} if value is ... else {"victim_n": value}
        (broken / "summary.json").write_text(json.dumps(changed))
        result = invoke(command, broken)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert complaint in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(), ("--num-runs", "2")])
def test_the_command_to_repeat_runs_of_a_users_scheduler_names_its_file(
    seeds, tmp_path, monkeypatch
):
    own = Path(__file__).parents[2] / "examples" / "fewest_running.py"
    monkeypatch.setenv(registry.VARIABLE, str(own))
    registry._with_plugins.cache_clear()
    named = ["--schedulers", "round-robin+fewest-running,vtc", "--workloads", "chat"]
    try:
        for command in (
            ["sweep", *named, "--num-programs", "1", "--disable-tqdm"],
            ["run", *TINY, "--scheduler", "round-robin+fewest-running"],
        ):
            done = invoke(*command, *seeds, "--result-dir", tmp_path / command[0])
            assert done.exit_code == 0, done.output
            (path,) = (tmp_path / command[0]).iterdir()
            text = Reader(reported(path, tmp_path / "r.html")).text
            assert f"FAIRBENCH_SCHEDULERS=fewest_running.py fairbench {command[0]} " in text
    finally:
        registry._with_plugins.cache_clear()
