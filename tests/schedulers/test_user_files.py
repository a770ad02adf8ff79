"""Test schedulers in files that FAIRBENCH_SCHEDULERS names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairbench.config.resolve import resolve
from fairbench.core import Request, Segment
from fairbench.doors import registered
from fairbench.errors import RunFailed, UsageError
from fairbench.execute.comparison import plan_comparison
from fairbench.report.pages.run_page import own_files, versions
from fairbench.results.store import read_run
from fairbench.schedulers import registry
from fairbench.schedulers.base import LocalScheduler, Router
from fairbench.schedulers.registry import VARIABLE, unknown_hook, wrong_parameters
from fairbench.sim.run import simulate
from tests.slow_params import slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "fewest_running.py"
ROUTER_EXAMPLE = EXAMPLE.with_name("prefix_home.py")
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
    # A class that the file only imports is not added.
    installed = registered(registry.ROUTER_GROUP)
    assert len(registry.routers_by_name()) == len(registry.ROUTERS) + len(installed) + 1
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
        (ROUTER.replace("first", "vtc"), "the name 'vtc' of the scheduler .* is already in use"),
        ("x = 1", "has no subclass of LocalScheduler or Router"),
        (
            ROUTER + "    def on_finished(self): pass",
            "unknown hook 'on_finished'.*mean 'on_finish'",
        ),
        (ROUTER + "    def on_nothing(self): pass", "class First: unknown hook 'on_nothing'"),
        (ROUTER + "    hold = True", "unknown hook 'hold'.*mean 'holds'"),
        (
            ROUTER.replace("request, now_s", "request"),
            r"class First: route\(self, request\): must be route\(self, request, now_s\)$",
        ),
        (
            ROUTER.replace("params, workers", "params"),
            r"__init__\(self, params\): must be __init__\(self, params, workers\)$",
        ),
        (ROUTER.replace("def __init__", "def _made"), "First: needs a method __init__"),
    ],
)
def test_errors_in_a_file_are_one_clear_line(name_files, tmp_path, text, message):
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    name_files(tmp_path / "mine.py")
    with pytest.raises(UsageError, match=message) as found:
        registry.routers_by_name()
    assert "mine" in str(found.value)


def asked(*keys):
    return Request(0, "a", 0, 0, tuple(Segment(key, 9) for key in keys), 9 * len(keys), 4)


def test_the_example_routes_to_the_cache_unless_its_worker_is_busy(name_files):
    name_files(ROUTER_EXAMPLE)
    router = registry.build_router("prefix-home", {"prefix-home.slack": 1}, 3)
    first, other = asked("system", "question"), asked("else")
    assert [router.route(first, 0.0), router.route(other, 0.0)] == [0, 1]
    assert router.route(asked("system", "second"), 0.0) == 0
    assert router.route(asked("system", "third"), 0.0) == 2  # two requests more than the idle one
    assert router.route(asked("system", "question", "answer"), 0.0) == 0
    for _ in range(3):
        router.on_finish(first, 0, Segment("output", 4), 1.0)
    router.on_worker_leave(0, 2.0)
    assert router.route(first, 2.0) in (1, 2)
    router.on_finish(first, 0, Segment("output", 4), 3.0)
    router.on_worker_join(0, 3.0)
    assert router.route(asked("new"), 3.0) == 0


def test_the_memory_of_the_example_is_bounded(name_files, monkeypatch):
    name_files(ROUTER_EXAMPLE)
    router = registry.build_router("prefix-home", {}, 2)
    monkeypatch.setitem(type(router).route.__globals__, "MOST_KNOWN", 5)
    for number in range(20):
        router.route(asked(f"a{number}", f"b{number}"), 0.0)
    assert list(router.homes) == ["b17", "a18", "b18", "a19", "b19"]


def test_the_example_keeps_conversations_in_their_caches(name_files):
    name_files(ROUTER_EXAMPLE)
    flags = {"workload": "chat", "duration_s": 20.0, "dp": 4, "local": "vtc"}
    found = [
        simulate(resolve({**flags, "router": router})).summary["cache_hit_rate"]
        for router in ("prefix-home", "least-loaded")
    ]
    assert found[0] > 1.5 * found[1]


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


def test_naming_a_missing_worker_is_an_error(name_files, tmp_path):
    (tmp_path / "mine.py").write_text(ROUTER.replace("return 0", "return -1"))
    name_files(tmp_path / "mine.py")
    spec = resolve({"router": "first", "workload": "chat", "num_programs": 1})
    with pytest.raises(RunFailed, match="router first: there is no worker -1"):
        simulate(spec)


def test_an_unknown_scheduler_leads_to_the_variable(name_files):
    name_files()
    with pytest.raises(UsageError, match=f"is your own: put its file's path into {VARIABLE}.$"):
        registry.local_class("fewest-running")
    name_files(EXAMPLE)
    with pytest.raises(UsageError, match=f"is your own: {VARIABLE} has fewest_running.py.$"):
        registry.local_class("mine")


@pytest.mark.parametrize(
    ("what", "name", "fix"),
    [
        ("split_pair", "fewest-running", "local scheduler; write round-robin\\+fewest-running, or"),
        ("split_pair", "first", r"router; write first\+fcfs, or --router first$"),
        ("router_class", "fewest-running", "local scheduler; write .*--local fewest-running$"),
        ("local_class", "preble", "pair of a router and a local scheduler; write .*preble$"),
    ],
)
def test_a_name_of_another_kind_gets_the_right_spelling(name_files, tmp_path, what, name, fix):
    (tmp_path / "mine.py").write_text(ROUTER)
    name_files(EXAMPLE, tmp_path / "mine.py")
    with pytest.raises(UsageError, match=f"unknown .* '{name}': {name} is a {fix}"):
        getattr(registry, what)(name)
    if what == "split_pair":
        with pytest.raises(UsageError, match=f"'{name}': {name} is a {fix}"):
            plan_comparison(["vtc", name], {}, {}, 1)


def test_no_bundled_scheduler_has_a_mistake_that_is_refused_in_a_users_file():
    for names, kind, load in (
        (registry.locals_by_name(), LocalScheduler, registry.local_class),
        (registry.routers_by_name(), Router, registry.router_class),
    ):
        for name in names:
            assert not unknown_hook(load(name), kind)
            assert not wrong_parameters(load(name), kind)


LOCAL = """
from dataclasses import dataclass
from fairbench.schedulers.base import LocalScheduler

class Mine(LocalScheduler):
    name = "mine"

    @dataclass(frozen=True)
    class Params:
        pass

    def __init__(self, params):
        pass

    def select(self, view, now_s):
        for request in list(view.queue_order()):
            BODY
"""


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("yield None", "Mine.select yielded None: must be a waiting request or a 'Preempt' object"),
        ("yield request.client", "Mine.select yielded 'client-.': must be a waiting request"),
        ("return request", "select returned Request"),
        (
            "if request.client == 'client-0': yield request",
            "local scheduler mine: stopped offering requests; 7 requests still wait .* although",
        ),
        ("yield self.nope", "mine.py, line 17, in select: AttributeError: 'Mine' object has no"),
        (
            "yield request; yield request",
            r"select yielded Request\(request_id=.*is not a waiting request$",
        ),
        ("yield next(iter(()))", "mine.py, line 17, in select: StopIteration"),
    ],
)
def test_a_scheduler_that_fails_is_named(name_files, tmp_path, engine, body, message):
    (tmp_path / "mine.py").write_text(LOCAL.replace("BODY", body))
    name_files(tmp_path / "mine.py")
    flags = {"router": "round-robin", "local": "mine", "workload": "chat", "num_programs": 1}
    with pytest.raises(RunFailed, match=message) as found:
        simulate(resolve({**flags, "scenario": "s1", "engine": engine}))
    if "AttributeError" in message:
        (note,) = found.value.__notes__
        assert note.splitlines()[0] == f'  File "{tmp_path / "mine.py"}", line 17, in select'
        assert "yield self.nope" in note
        assert "fairbench/sim" not in note


def test_an_error_of_fairbench_itself_keeps_its_traceback(name_files, tmp_path, monkeypatch):
    name_files(EXAMPLE)
    monkeypatch.setattr("fairbench.sim.run.Simulation", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        simulate(resolve({"workload": "chat", "num_programs": 1}))
