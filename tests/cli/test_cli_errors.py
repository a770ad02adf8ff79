"""Bad input: one clear line, exit code 2, nothing written."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.main import app
from fairbench.errors import RunFailed

WORKLOAD = """
name = "mine"
program = "chat"
latency = "program"
clients = 2
duration_s = 20.0
warmup_s = 0.0
max_drain_s = 60.0
[params]
[scenarios.s1]
rate = 1.0
"""


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Run the command in an empty directory; returns its one line of complaint."""
    monkeypatch.chdir(tmp_path)

    def refused(*arguments, code=2):
        before = sorted(tmp_path.iterdir())
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        assert sorted(tmp_path.iterdir()) == before
        lines = result.stderr.rstrip("\n").split("\n")
        assert len(lines) == 1
        assert lines[0].startswith("fairbench: ")
        return lines[0].removeprefix("fairbench: ")

    return refused


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--scheduler", "d2lmp"], "unknown scheduler 'd2lmp': choose from d2lpm, dlpm, fcfs"),
        (["--scheduler", "d2lmp"], "Did you mean 'd2lpm'?"),
        (["--router", "robin"], "unknown router 'robin'"),
        (["--local", "vct"], "Did you mean 'vtc'?"),
        (["--workload", "tots"], "Did you mean 'tot'?"),
        (["--workload", "chat", "--scenario", "s2"], "unknown scenario of chat 's2': choose from"),
        (["--gpu", "b100"], "unknown gpu 'b100'"),
        (["--model", "llama"], "unknown model 'llama'"),
        (["--set", "dlpm.quantun=5"], "Did you mean 'quantum'?"),
        (["--set", "vtc.charge=imput"], "vtc.charge = 'imput': choose from extend, input."),
        (["--set", "quantum=5"], "--set quantum=5: write NAME.PARAM=VALUE"),
        (["--set", "dlpm.quantum"], "--set dlpm.quantum: write NAME.PARAM=VALUE"),
        (["--dp", "0"], "dp = 0: must be greater than or equal to 1"),
        (["--dp", "-1"], "dp = -1: must be greater than or equal to 1"),
        (["--request-rate", "-1"], "request_rate = -1.0: must be greater than 0"),
        (["--request-rate", "0"], "request_rate = 0.0: must be greater than 0"),
        (["--request-rate", "inf"], "request_rate = inf: needs num_programs"),
        (["--burstiness", "-1"], "burstiness = -1.0: must be greater than 0"),
        (["--duration", "0"], "duration_s = 0.0: must be greater than 0"),
        (["--num-programs", "0"], "num_programs = 0: must be greater than or equal to 1"),
        (["--clients", "-3"], "clients = -3: must be greater than or equal to 1"),
        (["--seed", "-3"], "seed = -3: must be greater than or equal to 0"),
        (["--mem-fraction-static", "2"], "engine.mem_fraction_static = 2.0: must be less than"),
        (["--mem-fraction-static", "0.01"], "no memory is left for KV"),
        (["--max-running-requests", "-1"], "engine.max_running_requests = -1: must be greater"),
        (["--max-total-tokens", "50"], "no request fits the KV pool of 50 tokens"),
        (["--tokenizer", "none.json"], "tokenizer: counts the tokens of real input"),
        (["--workload", "./none.toml"], "./none.toml: No such file"),
        (["none.toml"], "none.toml: cannot be read: No such file"),
    ],
)
def test_wrong_flags(refused, arguments, expected):
    assert expected in refused("run", *arguments)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("experiment.toml", "dp = = 4", "experiment.toml: line 1: Invalid value: dp = = 4"),
        ("experiment.toml", "dpp = 4", "experiment.toml: unknown key 'dpp'"),
        ("experiment.toml", "dp = 'x'", "experiment.toml: dp = 'x': must be a valid integer"),
        ("experiment.toml", "[settings]\ndlpm.quantun = 4", "Did you mean 'quantum'?"),
    ],
)
def test_wrong_experiment_files(refused, tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    assert expected in refused("run", name)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("clients = 2", "clients = "), "mine.toml: Invalid value (at line 5"),
        (("clients = 2", "clienst = 2"), "Did you mean 'clients'?"),
        (("rate = 1.0", "rate = -1.0"), "mine.toml: scenarios.s1.rate = -1.0: must be greater"),
        (("[params]", "[params]\nturn = 2"), "'turn'"),
    ],
)
def test_wrong_workload_files(refused, tmp_path, change, expected):
    (tmp_path / "mine.toml").write_text(WORKLOAD.replace(*change))
    assert expected in refused("run", "--workload", "mine.toml")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.jsonl", None, "none.jsonl: No such file"),
        ("bad.jsonl", b'{"question": "a"}\n{"question"\n', "bad.jsonl, line 2: not JSON"),
        ("bad.jsonl", b'{"question": "a"}\n{"query": "b"}\n', "line 2: missing field 'question'"),
        ("bad.jsonl.gz", b"not gzip", "bad.jsonl.gz: "),
        ("bad.jsonl.gz", gzip.compress(b""), "bad.jsonl.gz: no records"),
    ],
)
def test_wrong_datasets(refused, tmp_path, name, content, expected):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert expected in refused("run", "--dataset-path", name)


def test_a_missing_tokenizer(refused, tmp_path):
    (tmp_path / "data.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "2"}))
    arguments = ["--dataset-path", "data.jsonl", "--tokenizer", "none.json"]
    assert "none.json" in refused("run", *arguments)


def test_an_unwritable_result_dir_is_found_before_the_simulation(refused, tmp_path, monkeypatch):
    def simulated(*args, **kwargs):
        raise AssertionError("it ran")

    monkeypatch.setattr("fairbench.sim.run.simulate", simulated)
    (tmp_path / "file").write_text("")
    line = refused("run", "--result-dir", "file/runs")
    assert line.startswith("result_dir file/runs: cannot be written: ")


def test_a_run_that_fails_exits_with_1(refused, monkeypatch):
    def failed(*args, **kwargs):
        raise RunFailed("the cluster is gone")

    monkeypatch.setattr("fairbench.sim.run.simulate", failed)
    assert refused("run", code=1) == "the cluster is gone"


def test_show_of_something_else(refused, tmp_path):
    assert "none/manifest.json: no such file" in refused("show", "none")
    (tmp_path / "manifest.json").write_text('{"schema_version": 0}')
    assert "schema_version = 0: this fairbench reads 1" in refused("show", ".")


@pytest.mark.parametrize(
    "arguments", [["run", "--dp", "four"], ["run", "--dpp", "4"], ["runn"], ["show"]]
)
def test_wrong_usage_exits_with_2(arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: " in result.stderr
