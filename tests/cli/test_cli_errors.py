"""Test bad input: a one-line error, exit code 2, nothing written."""

import copy
import gzip
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.resolve import resolve
from fairbench.errors import RunFailed
from fairbench.sim.run import simulate

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


@pytest.fixture(scope="module")
def whole_summary():
    flags = {"workload": "chat", "scenario": "none", "num_programs": 1}
    return simulate(resolve(flags)).summary


@pytest.fixture
def summary(whole_summary):
    """Return the summary of a real run, which tests then damage."""
    return copy.deepcopy(whole_summary)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--scheduler", "d2lmp"],
            "unknown scheduler 'd2lmp': choose from central-dlpm, d2lpm, dlpm, fair-finish, fcfs",
        ),
        (["--scheduler", "d2lmp"], "Did you mean 'd2lpm'?"),
        (["--router", "robin"], "unknown router 'robin'"),
        (["--local", "vct"], "Did you mean 'vtc'?"),
        (["--workload", "tots"], "Did you mean 'tot'?"),
        (["--workload", "chat", "--scenario", "s2"], "unknown scenario of chat 's2': choose from"),
        (["--gpu", "b100"], "unknown gpu 'b100'"),
        (["--model", "llama"], "unknown model 'llama'"),
        (["--set", "dlpm.quantun=5"], "Did you mean 'quantum'?"),
        (
            ["--set", "vtc.charge=imput"],
            "vtc.charge = 'imput': choose from extend, input, gpu-time.",
        ),
        (["--set", "quantum=5"], "--set quantum=5: write NAME.PARAM=VALUE"),
        (["--set", "dlpm.quantum"], "--set dlpm.quantum: write NAME.PARAM=VALUE"),
        (["--prefill", "0", "--decode", "1"], "prefill = 0: must be greater than or equal to 1"),
        (["--prefill", "2"], "prefill = 2: needs decode, the number of decode replicas, too"),
        (
            ["--prefill", "1", "--decode", "1", "--dp", "2"],
            "dp = 2: cannot be combined with prefill = 1",
        ),
        (["--dp", "0"], "dp = 0: must be greater than or equal to 1"),
        (["--dp", "-1"], "dp = -1: must be greater than or equal to 1"),
        (["--request-rate", "-1"], "request_rate = -1.0: must be greater than 0"),
        (["--request-rate", "0"], "request_rate = 0.0: must be greater than 0"),
        (["--request-rate", "inf"], "request_rate = inf: needs num_programs"),
        (["--burstiness", "-1"], "burstiness = -1.0: must be greater than or equal to 0.001"),
        (["--duration", "0"], "duration_s = 0.0: must be greater than 0"),
        (["--num-programs", "0"], "num_programs = 0: must be greater than or equal to 1"),
        (
            ["--num-programs", "1000000"],
            "this gives about 3,000,000 programs in total, and at most",
        ),
        (["--duration", "1e9"], "duration_s = 1000000000.0, dp = 1, clients = 3: this gives about"),
        (["--dp", "100000000"], "dp = 100000000: must be less than or equal to 4096"),
        (["--clients", "10001"], "clients = 10001: must be less than or equal to 10000"),
        (["--tag", "t" * 65], "must have at most 64 characters"),
        (["--max-total-tokens", "1000000001"], "must be less than or equal to 1000000000"),
        (["--dp", "four"], "--dp four: must be a valid integer"),
        (["--dp", "1.5"], "--dp 1.5: must be a valid integer"),
        (["--request-rate", "fast"], "--request-rate fast: must be a valid number"),
        (["--num-runs", "0"], "--num-runs 0: must be greater than or equal to 1"),
        (["--num-runs", "9" * 20], f"--num-runs {'9' * 20}: must be less than or equal to 10000"),
        (["--num-programs", "9" * 20, "--duration", "5"], "must fit into 64 bits"),
        (["--max-running-requests", "9" * 20], "engine.max_running_requests = 9999"),
        (
            ["--set", f"dlpm.quantum={'9' * 20}"],
            "dlpm.quantum = 99999999999999999999: must fit into 64",
        ),
        (["--set", "vct.charge=input"], "and 105 others. Did you mean 'vtc'?"),
        (["--goodput", ","], "--goodput ,: write [NAME.]LATENCY:TIME"),
        (["access.csv"], "access.csv: must be an experiment in TOML; for a trace, write --trace"),
        (["--output-details"], "--output-details needs --output-file"),
        (["--output-file", "no/x"], "--output-file no/x: cannot be written: No such file"),
        (["--dp"], "Option '--dp' requires an argument"),
        (["--dpp", "4"], "No such option: --dpp"),
        (["--result-dir", ""], "--result-dir '': must not be empty"),
        (["--result-dir="], "--result-dir '': must not be empty"),
        (["--dp", "2", "--workload", ""], "--workload '': must not be empty"),
        (["--set", "dlpm.quantum=" + "[" * 9999], "--set dlpm.quantum: nested more than"),
        (["a" * 300], "cannot be read: File name too long"),
        (["."], ".: cannot be read: Is a directory"),
        (["--result-dir", "a" * 300], "cannot be written: File name too long"),
        (["--result-dir", f"a/{'b' * 300}/c"], "cannot be written: File name too long"),
        (["--clients", "-3"], "clients = -3: must be greater than or equal to 1"),
        (["--seed", "-3"], "seed = -3: must be greater than or equal to 0"),
        (["--mem-fraction-static", "2"], "engine.mem_fraction_static = 2.0: must be less than"),
        (["--mem-fraction-static", "0.01"], "leaves no memory for KV, because the weights take"),
        (["--max-running-requests", "-1"], "engine.max_running_requests = -1: must be greater"),
        (
            ["--max-total-tokens", "50"],
            (
                "every request is larger than the KV pool of 50 tokens; give a larger pool "
                "or shorter prompts"
            ),
        ),
        (["--tokenizer", "none.json"], "tokenizer: needs dataset_path, because it counts the"),
        (["--workload", "./none.toml"], "./none.toml: cannot be read: No such file"),
        (["none.toml"], "none.toml: cannot be read: No such file"),
    ],
)
def test_wrong_flags_are_refused(refused, arguments, expected):
    assert expected in refused("run", *arguments)


@pytest.mark.parametrize("engine", ["sglang", "vllm", "lightllm"])
@pytest.mark.parametrize("gate", ["session-cap", "thunderagent"])
def test_a_gate_is_refused_without_sessions(refused, gate, engine):
    said = refused("run", "--gateway", gate, "--engine", engine, "--workload", "vtc-overload")
    assert f"gateway = '{gate}': the gateway decides by session, but every program" in said
    assert "choose a workload with sessions, such as 'sessions', 'agent' or 'tool-use'" in said


def test_a_gate_is_refused_before_a_trace_without_sessions(refused, tmp_path):
    log = "time,client,input_tokens,output_tokens\n0,a,100,10\n1,b,200,20\n"
    (tmp_path / "log.csv").write_text(log)
    said = refused("run", "--trace", "log.csv", "--gateway", "thunderagent")
    assert "or a trace that names sessions" in said


def test_an_unknown_resume_rule_is_refused(refused):
    rule = ("--set", "thunderagent-llmd.resume=orign")
    said = refused("run", "--workload", "sessions", "--gateway", "thunderagent-llmd", *rule)
    assert "thunderagent-llmd.resume = 'orign': choose from most-room, origin, urgent," in said


def test_a_search_for_users_is_refused_without_a_target(refused):
    assert "--slo: missing; a plan needs at least one target" in refused("plan", "--max", "users")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("experiment.toml", "dp = = 4", "experiment.toml: line 1: Invalid value: dp = = 4"),
        ("experiment.toml", "dpp = 4", "experiment.toml: unknown key 'dpp'"),
        ("experiment.toml", "dp = 'x'", "experiment.toml: dp = 'x': must be a valid integer"),
        ("experiment.toml", "[settings]\ndlpm.quantun = 4", "Did you mean 'quantum'?"),
        ("experiment.toml", "scheduler = 4", "experiment.toml: scheduler = 4: must be a string"),
        (
            "experiment.toml",
            "[settings]\ndlpm = 4",
            "experiment.toml: settings.dlpm = 4: must be a",
        ),
        ("experiment.toml", "tag = " + "[" * 9999, "experiment.toml: nested more than 32 levels"),
        ("experiment.toml", "workload = 'mine.toml'", "experiment.toml: mine.toml: cannot be read"),
    ],
)
def test_wrong_experiment_files_are_refused(refused, tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    assert expected in refused("run", name)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("clients = 2", "clients = "), "mine.toml: line 5: Invalid value: clients ="),
        (("clients = 2", "clienst = 2"), "Did you mean 'clients'?"),
        (("rate = 1.0", "rate = -1.0"), "mine.toml: scenarios.s1.rate = -1.0: must be greater"),
        (("[params]", "[params]\nturn = 2"), "'turn'"),
    ],
)
def test_wrong_workload_files_are_refused(refused, tmp_path, change, expected):
    (tmp_path / "mine.toml").write_text(WORKLOAD.replace(*change))
    assert expected in refused("run", "--workload", "mine.toml")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.jsonl", None, "none.jsonl: cannot be read: No such file"),
        ("bad.jsonl", b'{"question": "a"}\n{"question"\n', "bad.jsonl, line 2: not JSON"),
        ("bad.jsonl", b'{"question": "a"}\n{"query": "b"}\n', "line 2: missing field 'question'"),
        ("bad.jsonl.gz", b"not gzip", "bad.jsonl.gz: "),
        ("bad.jsonl.gz", gzip.compress(b"", mtime=0), "bad.jsonl.gz: holds no records"),
    ],
)
def test_wrong_datasets_are_refused(refused, tmp_path, name, content, expected):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert expected in refused("run", "--dataset-path", name)


def test_a_missing_tokenizer_is_refused(refused, tmp_path):
    (tmp_path / "data.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "2"}))
    arguments = ["--dataset-path", "data.jsonl", "--tokenizer", "none.json"]
    assert "none.json" in refused("run", *arguments)


def test_an_unwritable_result_dir_is_found_before_the_simulation(refused, tmp_path, monkeypatch):
    def simulated(*args, **kwargs):
        raise AssertionError("it ran")

    monkeypatch.setattr("fairbench.execute.run_or_recover.simulate", simulated)
    (tmp_path / "file").write_text("")
    line = refused("run", "--result-dir", "file/runs")
    assert line.startswith("result_dir file/runs: cannot be written: ")


def test_a_run_that_fails_exits_with_1(refused, monkeypatch):
    def failed(*args, **kwargs):
        raise RunFailed("the cluster is gone")

    monkeypatch.setattr("fairbench.execute.run_or_recover.simulate", failed)
    assert refused("run", code=1) == "the cluster is gone"


def test_show_refuses_a_foreign_file(refused, tmp_path):
    assert "none/manifest.json: no such file" in refused("show", "none")
    (tmp_path / "manifest.json").write_text('{"schema_version": 0}')
    assert "schema_version = 0: must be 1 for this version of fairbench" in refused("show", ".")
    assert "cannot be read: File name too long" in refused("show", "a" * 300)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"jain_index": "high"}, "summary.json: jain_index = 'high': must be a valid number"),
        ({"clients": [3]}, "summary.json: clients.0 = 3: must be a valid dictionary"),
        ({"clients": [{}]}, "summary.json: clients.0.client: missing"),
        ({"notes": []}, "summary.json: notes = []: must be a valid dictionary"),
        ({"completed": 10**400}, "summary.json: cannot be read: an integer of 401 digits"),
        ({"dp": None}, "summary.json: dp = None: must be a valid integer"),
        ({"seed": float("nan")}, "summary.json: cannot be read: NaN is not allowed in JSON"),
    ],
)
def test_show_refuses_a_summary_that_someone_edited(refused, tmp_path, summary, change, expected):
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')
    (tmp_path / "summary.json").write_text(json.dumps(summary | change))
    assert expected in refused("show", ".")


@pytest.mark.parametrize("key", ["simulated", "clients", "jain_index", "num_programs", "dp"])
def test_show_refuses_a_summary_without_a_key(refused, tmp_path, summary, key):
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')
    del summary[key]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert refused("show", ".") == f"summary.json: {key}: missing"


def test_show_refuses_a_deeply_nested_summary(refused, tmp_path):
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')
    (tmp_path / "summary.json").write_text('{"a": ' + "[" * 99_999)
    assert refused("show", ".") == "summary.json: nested too deeply"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["runn"], "No such command 'runn'. Did you mean 'run'?"),
        (["show"], "Missing argument 'DIR'"),
        (["--verbose"], "No such option: --verbose"),
        (["run", "a.toml", "b.toml"], "unexpected extra argument"),
        (
            ["run", "--eviction", "maxmin"],
            "unknown eviction 'maxmin': choose from continuum-ttl, lfu, lru",
        ),
        (
            ["run", "--eviction", "lfu", "--engine", "lightllm"],
            "eviction = 'lfu': only the engines sglang and vllm support",
        ),
        (
            ["run", "--eviction", "quota", "--set", "quota.percent={a=80,b=30}"],
            "percent: the quotas add up to 110%, and at most 100% are allowed",
        ),
        (
            ["run", "--set", "quota.percent={a=80}"],
            "quota.percent: has no effect without eviction = 'quota'; leave it out",
        ),
        (
            ["run", "--dp", "4", "--set", "disaggregation.bandwidth_gb_s=9"],
            "disaggregation.bandwidth_gb_s: has no effect without prefill and decode",
        ),
        (
            [
                "sweep",
                "--schedulers",
                "vtc",
                "--evictions",
                "lru,lfu",
                "--set",
                "retention.factor=1,2",
            ],
            "retention.factor: has no effect without eviction = 'retention'",
        ),
        (["list", "schedulerz"], "kind schedulerz: choose from schedulers, routers, gateways"),
        (["list", "schedulerz"], "Did you mean 'schedulers'?"),
        (["compare", "fcfs", "vtc", "--metric", "p99_tft"], "Did you mean 'p99_ttft_ms'?"),
        (["plan", "--slo", "ttft_p99<2s", "--burstiness", "inf"], "burstiness = inf: a plan needs"),
        (
            ["reproduce", "fig7", "--output-dir", "/dev/null/plots"],
            "output_dir /dev/null/plots: cannot be written: Not a directory",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_exits_with_2(refused, arguments, expected):
    assert expected in refused(*arguments)


def test_a_log_that_is_given_twice_is_refused(refused, tmp_path):
    (tmp_path / "a.csv").write_text("time_s,client,prompt_tokens,completion_tokens\n0,a,1,1\n")
    assert refused("score", "a.csv", "./a.csv").endswith(
        "a.csv: the file is given 2 times, so its requests are repeated; give the file once"
    )


@pytest.mark.parametrize("group", ["trace", "profile", "baseline", "workload"])
def test_a_group_without_a_command_prints_its_help_and_exits_with_2(group):
    result = CliRunner().invoke(app, [group])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: ")
    assert "\nCommands:\n" in result.stderr


def test_without_a_command_there_is_help_and_exit_code_2():
    result = CliRunner().invoke(app, [])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: ")


COMMAND = f"{shlex.quote(sys.executable)} -c 'from fairbench.cli.main import main; main()'"


FULL = "fairbench: standard output: No space left on device\n"
needs_full_disk = pytest.mark.skipif(
    not Path("/dev/full").exists(),
    reason="this system has no /dev/full, which stands for a disk without room (Linux has it)",
)


@pytest.mark.parametrize(
    ("redirection", "expected"),
    [
        pytest.param("list > /dev/full", FULL, marks=needs_full_disk),
        pytest.param("--help > /dev/full", FULL, marks=needs_full_disk),
        ("list >&-", "fairbench: standard output is closed\n"),
    ],
)
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(redirection, expected):
    done = subprocess.run(f"{COMMAND} {redirection}", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, expected)


def test_ctrl_c_while_python_imports_leaves_no_traceback():
    # send the signal during the first heavy import
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "from fairbench.cli.main import main\n"
        "sys.meta_path.insert(0, Finder())\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "fairbench: interrupted\n")


@pytest.mark.parametrize(
    ("signum", "code", "word"), [("INT", 130, "interrupted"), ("TERM", 143, "terminated")]
)
def test_a_signal_ends_a_command_that_reads_with_a_line_and_its_code(tmp_path, signum, code, word):
    slow = tmp_path / "slow.jsonl"
    os.mkfifo(slow)
    command = [sys.executable, "-m", "fairbench", "score", str(slow)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            writing = opened_to_write(slow, process)  # the command has begun to read
            process.send_signal(getattr(signal, f"SIG{signum}"))
            _, said = process.communicate(timeout=300)
            os.close(writing)
        finally:
            process.kill()
    assert (process.returncode, said) == (code, f"fairbench: {word}\n")


def opened_to_write(pipe, reader):
    """Return the descriptor of a named pipe once ``reader`` has opened the other end."""
    deadline = time.monotonic() + 300
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert reader.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
