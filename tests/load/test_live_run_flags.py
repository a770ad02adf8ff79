"""Test ``fairbench run`` with real servers: refusals and the servers' command lines."""

import json
import sys
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench_load.backends.base import objectives, vocabulary
from fairbench_load.backends.sglang import PYTHON, SERVER_PYTHON
from fairbench_load.run import router_recipe
from tests.load.live_recipes import recipes_here

EXTERNAL = ["--backend", "emulator", "--router-command"]
CPU = ["--device", "cpu", "--dtype", "float32"]


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Run in an empty directory; return the one-line error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PYTHON, raising=False)

    def refused(*arguments):
        result = CliRunner().invoke(app, ["run", *arguments])
        assert (result.exit_code, result.stdout) == (2, "")
        assert list(tmp_path.iterdir()) == []
        (line,) = result.stderr.rstrip("\n").split("\n")
        return line.removeprefix("fairbench: ")

    return refused


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--backend", "sglnag"], "unknown backend 'sglnag'"),
        (["--backend", "sglang"], "model: missing"),
        (["--time-scale", "2"], "only for backend emulator, not sim; or give --trace"),
        (
            ["--backend", "emulator", "--tp", "2"],
            "tp = 2: only for backend sglang or vllm, not emu",
        ),
        (["--backend", "emulator", "--server-arg", "'"], "--server-arg: No closing quotation"),
        (["--backend", "emulator", "--server-arg", "--port 1"], "--port is set by fairbench"),
        (["--backend", "emulator", "--timing-error", "5"], "timing.error_pct = 5.0: backend"),
        (["--backend", "emulator", "--server-python", "x"], "--server-python needs --backend"),
        (
            ["--backend", "emulator", "--header", "A=b"],
            "--header and --api-key-file need --base-url",
        ),
        (["--base-url", "http://h", "--header", "topsecret"], "--header: write NAME=VALUE"),
        (
            ["--base-url", "http://h", "--scheduler", "vtc"],
            "scheduler = 'vtc': cannot be set with base_url",
        ),
        (["--base-url", "http://h", "--max-concurrency", "0"], "backend.max_concurrency = 0: must"),
        (["--router-command", "r {port} {worker_urls}"], "only for backend emulator, not sim"),
        ([*EXTERNAL, "r {prot} {worker_urls}"], "unknown placeholder 'prot': choose from"),
        ([*EXTERNAL, "r {prot} {worker_urls}"], "Did you mean 'port'?"),
        ([*EXTERNAL, "r {worker_urls}"], "must contain {port}"),
        ([*EXTERNAL, "r {port}"], "must contain {worker_urls} or {worker_url_list}"),
        ([*EXTERNAL, ""], "--router-command '': must not be empty"),
        ([*EXTERNAL, "'"], "--router-command: No closing quotation"),
        (
            [*EXTERNAL, "no-such {port} {worker_urls}"],
            "router_command: there is no program no-such on this",
        ),
        (
            [*EXTERNAL, "sh {port} {worker_urls}", "--router", "d2lpm"],
            "router = 'd2lpm': cannot be combined with router_command",
        ),
        (["--router", "external"], "router = 'external': needs router_command, the command"),
        (["--ready-check-timeout-sec", "0"], "--ready-check-timeout-sec 0: must be greater than"),
    ],
)
def test_impossible_runs_start_nothing(refused, arguments, expected):
    complaint = refused(*arguments)
    assert expected in complaint
    assert "topsecret" not in complaint


def test_a_python_without_sglang_is_refused(refused):
    flags = ["--backend", "sglang", "--model", "m", "--server-python", sys.executable]
    pytest.importorskip("fairbench")
    assert f"server_python {sys.executable}: lacks" in refused(*flags)


def test_a_missing_python_is_refused(monkeypatch):
    monkeypatch.setenv(PYTHON, "/no/such/python")
    with pytest.raises(UsageError, match="server_python /no/such/python: cannot be run"):
        SERVER_PYTHON.find_python(None)


@pytest.fixture
def sglang_at_hand(monkeypatch):
    """Pretend that any Python has SGLang."""
    monkeypatch.setattr("fairbench_load.processes.environment.ask_python", lambda *_: "")


def recipes_of(spec, python="python"):
    return recipes_here(spec, python)


def sglang(dp=2, **backend):
    flags = {"backend": {"kind": "sglang", **backend}, "model": "models/m", "dp": dp}
    settings = {"dlpm.quantum": 5000, "engine.max_total_tokens": 8000}
    return resolve(flags, settings)


def test_the_command_line_of_an_sglang_server(sglang_at_hand):
    spec = sglang(load_format="dummy", server_args=CPU)
    one, two = recipes_of(spec, "python-of-sglang")
    assert (one.name, two.name) == ("worker-0", "worker-1")
    command = one.command([8001, 8002, 8003])
    assert command[:3] == ["python-of-sglang", "-m", "sglang.launch_server"]
    flags = dict(pairwise(command[3:]))
    assert flags["--model-path"] == "models/m"
    assert flags["--load-format"] == "dummy"
    assert (flags["--host"], flags["--port"]) == ("127.0.0.1", "8001")
    assert flags["--max-total-tokens"] == "8000"
    assert flags["--device"] == "cpu"
    assert json.loads(flags["--kv-events-config"]) == {
        "publisher": "zmq",
        "endpoint": "tcp://127.0.0.1:8002",
        "replay_endpoint": "tcp://127.0.0.1:8003",
        "bind": True,
    }
    # SGLang's own defaults are not repeated
    assert "--max-prefill-tokens" not in flags
    assert "--schedule-policy" not in flags
    assert one.environment["FAIRBENCH_LOCAL"] == "dlpm"
    assert json.loads(one.environment["FAIRBENCH_SETTINGS"])["dlpm.quantum"] == 5000


def test_the_command_line_of_an_sglang_server_with_its_own_scheduling(sglang_at_hand, monkeypatch):
    monkeypatch.setenv("FAIRBENCH_LOCAL", "vtc")
    spec = sglang(schedule_policy="lpm", server_args=CPU)
    recipe = recipes_of(spec)[0]
    command = recipe.command([1, 2, 3])
    assert command[command.index("--schedule-policy") + 1] == "lpm"
    assert recipe.environment["FAIRBENCH_LOCAL"] == ""


def test_each_sglang_server_has_separate_gpus(sglang_at_hand, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    spec = sglang(tp=2)
    recipes = recipes_of(spec)
    assert [recipe.environment["CUDA_VISIBLE_DEVICES"] for recipe in recipes] == ["4,5", "6,7"]
    spec = sglang(dp=3, tp=2)
    with pytest.raises(UsageError, match="dp = 3, tp = 2: needs 6 GPUs, 4 visible; --share-gpus"):
        recipes_of(spec)


def test_a_cpu_server_needs_no_gpu(sglang_at_hand, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for server_args in (CPU, ["--device=cpu"]):
        spec = sglang(server_args=server_args)
        recipes = recipes_of(spec)
        assert not any("CUDA_VISIBLE_DEVICES" in recipe.environment for recipe in recipes)


def test_the_command_lines_of_emulator_and_router_name_the_settings():
    spec = resolve(
        {"backend": {"kind": "emulator", "time_scale": 2.0}, "scheduler": "d2lpm"},
        {"dlpm.quantum": 5000, "d2lpm.worker_quantum": 7000},
    )
    (recipe,) = recipes_of(spec)
    command = recipe.command([1, 2, 3])
    assert "dlpm.quantum=5000" in command
    assert "d2lpm.worker_quantum=7000" not in command
    assert command[command.index("--time-scale") + 1] == "2.0"
    router = router_recipe(spec, []).command([1])
    assert "d2lpm.worker_quantum=7000" in router
    assert "dlpm.quantum=5000" not in router


def with_promises(backend, **settings):
    promised = {"client-0.ttft": "500ms", "client-2.e2el": "4s", "client-2.tpot": "5x"}
    flags = {"backend": backend, "workload": "chat", "goodput": promised, "model": "some/model"}
    if backend["kind"] == "emulator":
        del flags["model"]
    return resolve(flags, {f"admission.{key}": value for key, value in settings.items()})


def test_the_router_gets_the_clients_targets_in_real_seconds():
    spec = with_promises({"kind": "emulator", "time_scale": 2.0})
    router = router_recipe(spec, []).command([1])
    told = [router[at + 1] for at, word in enumerate(router) if word == "--goodput"]
    # the router does not know the latency that 5x refers to
    assert told == ["client-0.ttft:250ms", "client-2.e2el:2000ms"]
    assert objectives(spec) == {"client-0": "client-0", "client-2": "client-2"}
    assert not any(word.startswith("admission.") for word in router)


def test_the_router_refuses_by_the_profile_of_the_emulator():
    spec = with_promises({"kind": "emulator"}, policy="refuse", margin=1.5)
    router = router_recipe(spec, []).command([1])
    assert 'admission.policy="refuse"' in router
    assert "admission.margin=1.5" in router
    assert f'admission.profile="{spec.gpu}"' in router


@pytest.mark.parametrize(
    ("backend", "profile", "why"),
    [
        (
            {"kind": "emulator", "time_scale": 2.0},
            "",
            (
                "time_scale = 2.0 is not supported, because admission control estimates "
                "times on the router's clock; use time_scale = 1"
            ),
        ),
        ({"kind": "endpoint", "base_url": "http://a:1"}, "a100", "fairbench's own router"),
        ({"kind": "sglang"}, "", "set admission.profile, too"),
    ],
)
def test_admission_control_is_refused_where_it_cannot_estimate(backend, profile, why):
    with pytest.raises(UsageError, match=why):
        with_promises(backend, policy="refuse", profile=profile)


def test_prompts_are_made_of_ordinary_tokens(tmp_path):
    assert vocabulary("org/name") == range(16, 32_000)
    config = tmp_path / "config.json"
    config.write_text('{"vocab_size": 2048}')
    assert vocabulary(str(tmp_path)) == range(16, 2048)
    config.write_text('{"text_config": {"vocab_size": 128256}}')
    assert vocabulary(str(tmp_path)) == range(16, 32_000)
    config.write_text("{}")
    assert vocabulary(str(tmp_path)) == range(16, 32_000)
