"""Test ``fairbench run`` and ``fairbench show`` end to end on a tiny workload."""

import json
import os
import re
import signal
import subprocess
import sys
from html import escape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench import __version__
from fairbench.cli.app import app
from fairbench.report.pages.html import as_html
from fairbench.report.pages.run_page import run_page
from fairbench.results.store import read_run

TINY = ["--workload", "chat", "--scenario", "none", "--num-programs", "1"]
COMMAND = [sys.executable, "-c", "from fairbench.cli.main import main; main()"]

PROMISED = {
    "duration",
    "completed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "output_throughput",
    "jain_index",
    "jain_index_actual",
    "jain_index_maxmin",
    "jain_index_entitlement",
    "min_entitlement_ratio",
    "max_service_gap",
    "service_gap_bound",
    "service_rate_tok_s",
    "cache_hit_rate",
    "victim_p50_s",
    "victim_p99_s",
    "num_requests",
    "num_programs",
    "failed",
    "unfinished",
    "refused",
    "simulated",
    "timing_profile",
    "scheduler",
    "router",
    "local",
    "workload",
    "scenario",
    "dp",
    "seed",
    "clients",
}
PROMISED_OF_A_CLIENT = {
    "client",
    "misbehaving",
    "programs",
    "requests",
    "service_rate_tok_s",
    "actual_service_tok_s",
    "entitlement_ratio",
    "p50_s",
    "p99_s",
    "cache_hit_rate",
}


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def only(parent):
    (found,) = parent.iterdir()
    return found


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Run a tiny experiment. Return its output and its directory."""
    parent = tmp_path_factory.mktemp("runs")
    result = invoke("run", *TINY, "--result-dir", parent)
    assert result.exit_code == 0, result.output
    return result, only(parent)


def test_a_run_prints_the_clients_service_and_its_files(tiny):
    result, path = tiny
    lines = result.stdout.split("\n")
    assert lines[0] == "Over the run, every client received all the service that it asked for."
    assert lines[2].startswith("simulated on a100-80gb/llama-3.1-8b/")
    assert "dp 1, scheduler d2lpm, seed 0" in lines[2]
    assert sum(line.startswith("client-") for line in lines) == 4
    assert lines[-2] == f"files  {path}"
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_show_prints_the_same_again(tiny):
    result, path = tiny
    again = invoke("show", path)
    assert (again.exit_code, again.stdout) == (0, result.stdout)


def test_json_is_one_object_and_nothing_else(tiny, tmp_path):
    _, path = tiny
    result = invoke("run", *TINY, "--result-dir", tmp_path, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads((path / "summary.json").read_text())
    assert result.stderr == f"fairbench: saved to {only(tmp_path)}\n"
    shown = invoke("show", path, "--json")
    assert json.loads(shown.stdout) == json.loads(result.stdout)


def test_json_has_the_promised_keys(tiny):
    _, path = tiny
    summary = json.loads((path / "summary.json").read_text())
    latencies = {
        f"{statistic}_{what}_ms"
        for statistic in ("mean", "median", "std", "p50", "p99")
        for what in ("ttft", "tpot", "itl", "e2el")
    }
    assert set(summary) >= PROMISED | latencies
    assert len(summary["clients"]) == 4
    assert all(set(client) >= PROMISED_OF_A_CLIENT for client in summary["clients"])


def test_a_saved_experiment_gives_identical_records(tiny, tmp_path):
    _, path = tiny
    result = invoke("run", path / "experiment.toml", "--result-dir", tmp_path)
    assert result.exit_code == 0
    for name in ("requests.parquet", "programs.parquet", "service.parquet", "experiment.toml"):
        assert (only(tmp_path) / name).read_bytes() == (path / name).read_bytes()
    manifests = [json.loads((one / "manifest.json").read_text()) for one in (path, only(tmp_path))]
    assert manifests[0]["spec_identity"] == manifests[1]["spec_identity"]
    assert manifests[0]["complete"] is True


def test_the_hash_seed_changes_nothing(tiny, tmp_path):
    _, path = tiny
    command = [*COMMAND, "run", str(path / "experiment.toml"), "--result-dir", str(tmp_path)]
    subprocess.run(
        command, env=os.environ | {"PYTHONHASHSEED": "77"}, check=True, stdout=subprocess.DEVNULL
    )
    for name in ("requests.parquet", "service.parquet"):
        assert (only(tmp_path) / name).read_bytes() == (path / name).read_bytes()


def test_flags_override_the_file(tiny, tmp_path):
    _, path = tiny
    arguments = ["--scheduler", "vtc", "--set", "vtc.charge=input", "--max-total-tokens", "100000"]
    result = invoke(
        "run", path / "experiment.toml", *arguments, "--tag", "t1", "--result-dir", tmp_path
    )
    assert result.exit_code == 0
    text = (only(tmp_path) / "experiment.toml").read_text()
    for line in ('scheduler = "vtc"', 'charge = "input"', "max_total_tokens = 100000"):
        assert line in text.split("\n")
    assert only(tmp_path).name.startswith("t1-vtc-")
    assert "KV pool 100,000 tokens" in result.stdout


def test_set_wins_over_the_engine_flag(tmp_path):
    result = invoke(
        "run", *TINY, "--max-total-tokens", 5, "--set", "engine.max_total_tokens=100000",
        "--result-dir", tmp_path,
    )  # fmt: skip
    assert "KV pool 100,000 tokens" in result.stdout


def test_ctrl_c_keeps_finished_work_and_marks_the_run_incomplete(tmp_path):
    # a simulation of ten hours, which the test interrupts after a few programs
    script = tmp_path / "run.py"
    script.write_text(
        "import signal, sys\n"
        "from fairbench.cli.main import main\n"
        "from fairbench.report import progress\n"
        "from fairbench.report.progress import TerminalProgress\n"
        "class Told(TerminalProgress):\n"
        "    def update(self, p):\n"
        "        p.programs_done > 3 and print('going', file=sys.stderr, flush=True)\n"
        "progress.shown_progress = Told\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # may be ignored in CI\n"
        "main()\n"
    )
    parent = tmp_path / "runs"
    arguments = ["run", "--workload", "chat", "--duration", "36000", "--result-dir", str(parent)]
    with subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr.readline() == "going\n"
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "INCOMPLETE" in stdout
    assert stderr.rstrip().endswith("fairbench: interrupted; the finished requests are saved")
    path = only(parent)
    assert json.loads((path / "manifest.json").read_text())["complete"] is False
    assert json.loads((path / "summary.json").read_text())["completed"] > 0
    assert "INCOMPLETE" in invoke("show", path).stdout


def test_ctrl_c_before_anything_ran_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("fairbench.execute.run_or_recover.simulate", interrupted)
    result = invoke("run", *TINY, "--result-dir", tmp_path / "runs")
    assert (result.exit_code, result.stderr) == (130, "fairbench: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_version_and_help():
    assert invoke("--version").stdout == f"fairbench {__version__}\n"
    for command in ([], ["run"], ["list"], ["show"]):
        result = invoke(*command, "--help")
        assert result.exit_code == 0
        assert result.stdout.startswith("Usage: ")


def test_help_is_quick_because_it_imports_little():
    code = """
import atexit, sys
from fairbench.cli.main import main
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
sys.argv = ["fairbench", "--help"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = done.stderr.split()
    assert {"numpy", "pyarrow", "pydantic", "rich", "fairbench.sim"}.isdisjoint(loaded)
    assert "fairbench.cli.app" in loaded
    assert len(loaded) < 400


def test_git_ignores_the_default_result_dir():
    ignored = Path(__file__).resolve().parents[2] / ".gitignore"
    assert "results/runs/" in ignored.read_text().split("\n")


def test_output_file_appends_a_line_in_sglangs_format(tmp_path):
    lines, runs = tmp_path / "lines.jsonl", tmp_path / "runs"
    flags = ("--output-file", lines, "--output-details")
    assert invoke("run", *TINY, "--result-dir", runs, *flags).exit_code == 0
    assert invoke("show", only(runs), *flags).exit_code == 0
    first, second = lines.read_text().splitlines()
    assert first == second
    assert len(json.loads(first)["ttfts"]) == json.loads(first)["num_requests"]


def test_several_seeds_are_run_and_combined(tmp_path):
    lines, runs = tmp_path / "lines.jsonl", tmp_path / "runs"
    arguments = ["run", *TINY, "--num-runs", 2, "--seed", 5, "--result-dir", runs, "--json"]
    result = invoke(*arguments, "--output-file", lines)
    assert result.exit_code == 0, result.output
    combined = json.loads(result.stdout)
    assert combined["seeds"] == [5, 6]
    assert [json.loads(line)["seed"] for line in lines.read_text().splitlines()] == [5, 6]
    parent = only(runs)
    assert parent.name.endswith("-seed5-x2")
    stored = sorted(path.name for path in parent.iterdir())
    assert [name.rsplit("-", 1)[-1] for name in stored] == ["seed5", "seed6", "intervals.json"]
    one = json.loads((parent / stored[0] / "summary.json").read_text())
    two = json.loads((parent / stored[1] / "summary.json").read_text())
    rates = [one["service_rate_tok_s"], two["service_rate_tok_s"]]
    assert combined["service_rate_tok_s"]["mean"] == pytest.approx(sum(rates) / 2)
    shown = invoke("show", parent)
    assert shown.exit_code == 2
    assert shown.stderr.startswith(f"fairbench: {parent}: holds several runs; give the path of one")


FLOODED = ("--workload", "chat", "--duration", 40, "--disable-tqdm")


def test_a_run_is_compared_with_a_reference_only_if_asked_or_stored(tmp_path):
    flags = (*FLOODED, "--request-rate", 1.5, "--scheduler", "vtc", "--result-dir", tmp_path)
    plain = invoke("run", *flags).stdout.split("\n\n")[0]
    compared = invoke("run", *flags, "--reference", "lpm").stdout.split("\n\n")[0]
    assert "Under" not in plain
    assert compared.startswith(plain)
    assert re.search(r"Under\s+lpm,?\s+(it|the\s+lowest\s+share)\s+would\s+be\s+\d", compared)
    assert len(list(tmp_path.iterdir())) == 2  # the reference run is not saved


@pytest.mark.parametrize(
    "flags", [("--json",), ("--no-reference",), ("--num-runs", 2), ("--reference", "lpn")]
)
def test_a_reference_that_no_line_shows_is_wrong_usage(tmp_path, flags):
    result = invoke("run", *FLOODED, "--reference", "lpm", *flags, "--result-dir", tmp_path)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_a_run_has_its_verdict_and_marks_few_latencies(tmp_path):
    result = invoke("run", *FLOODED, "--request-rate", 1.5, "--result-dir", tmp_path)
    verdict = " ".join(result.stdout.split("\n\n")[0].split())
    stored = read_run(only(tmp_path))
    page = run_page(stored)
    assert page.answer == verdict
    assert f"<p>{escape(verdict)}</p>" in as_html(page).replace(' class="answer"', "")
    (card,) = (one for one in page.headlines if one.label.startswith("well-behaved"))
    assert card.value.endswith("?") == (stored.summary["victim_n"] < 60)
    assert stored.summary["victim_n"] < 60
