"""Schedulers in files that FAIRBENCH_SCHEDULERS names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import RunFailed, UsageError
from fairbench.report.pages.run_page import own_files, versions
from fairbench.results.store import read_run
from fairbench.schedulers import registry
from fairbench.schedulers.registry import VARIABLE
from fairbench.sim.run import simulate
from slow_params import slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "fewest_running.py"
ROUTER = '''
from dataclasses import dataclass
from fairbench.schedulers.base import Router

class First(Router):
    """All to the first worker."""

    name = "first"

    @dataclass(frozen=True)
    class Params:
        pass

    def __init__(self, params, workers):
        pass

    def route(self, request, now_s):
        return 0
'''


@pytest.fixture
def name_files(monkeypatch):
    def name_files(*paths):
        monkeypatch.setenv(VARIABLE, os.pathsep.join(map(str, paths)))
        registry._with_plugins.cache_clear()

    yield name_files
    registry._with_plugins.cache_clear()


def test_a_file_adds_its_schedulers_and_routers(name_files, tmp_path):
    (tmp_path / "mine.py").write_text(ROUTER)
    name_files(EXAMPLE, tmp_path / "mine.py")
    settings = {"fewest-running.weights": {"a": 2.0}}
    assert registry.build_local("fewest-running", settings).params.weights == {"a": 2.0}
    assert registry.build_router("first", {}, 4).route(None, 0.0) == 0
    # What the file only imports is not its own.
    assert len(registry.routers_by_name()) == len(registry.ROUTERS) + 1
    assert {"first", "fewest-running"} <= set(registry.params_classes())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a Python file"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (ROUTER.replace('"first"', '"a.b"'), "class First needs a name of letters, digits and -"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError: invalid syntax"),
        (ROUTER.replace('    name = "first"', ""), "class First needs a name of letters"),
        (ROUTER.replace("def route", "def rout"), "class First needs a method route"),
        (ROUTER.replace("class Params", "class Param"), "class First needs a dataclass Params"),
        (ROUTER.replace("first", "vtc"), "two schedulers have the name 'vtc', one of them"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_clear_line(name_files, tmp_path, text, message):
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    name_files(tmp_path / "mine.py")
    with pytest.raises(UsageError, match=message) as found:
        registry.routers_by_name()
    assert "mine" in str(found.value)


@pytest.mark.parametrize("processes", [["run"], *slow(["sweep", "--disable-tqdm"])])
def test_the_example_schedules_a_cluster(tmp_path, processes):
    command, *flags = processes
    plural = "s" if command == "sweep" else ""
    flags += [f"--scheduler{plural}", "round-robin+fewest-running", f"--workload{plural}", "chat"]
    flags += ["--dp", "2", "--duration", "20", "--result-dir", str(tmp_path), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "fairbench", command, *flags],
        env=os.environ | {VARIABLE: str(EXAMPLE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    (path,) = tmp_path.rglob("manifest.json")
    manifest = json.loads(path.read_text())
    assert list(manifest["scheduler_files"]) == [str(EXAMPLE)]
    (digest,) = manifest["scheduler_files"].values()
    reported = [text for _, text in versions(read_run(path.parent))]
    assert own_files(read_run(path.parent)) == f"FAIRBENCH_SCHEDULERS={EXAMPLE.name} "
    assert f"fewest_running.py, SHA-256 {digest}" in reported
    summary = json.loads((path.parent / "summary.json").read_text())
    assert summary["local"] == "fewest-running"
    assert summary["completed"] == summary["num_requests"] > 0


def test_a_worker_that_is_not_there_is_an_error(name_files, tmp_path):
    (tmp_path / "mine.py").write_text(ROUTER.replace("return 0", "return -1"))
    name_files(tmp_path / "mine.py")
    spec = resolve({"router": "first", "workload": "chat", "num_programs": 1})
    with pytest.raises(RunFailed, match="router first: there is no worker -1"):
        simulate(spec)


def test_an_unknown_scheduler_leads_to_the_variable(name_files):
    name_files()
    with pytest.raises(UsageError, match=f"is your own: name its file in {VARIABLE}.$"):
        registry.local_class("fewest-running")
    name_files(EXAMPLE)
    with pytest.raises(UsageError, match=f"is your own: {VARIABLE} has fewest_running.py.$"):
        registry.local_class("mine")
