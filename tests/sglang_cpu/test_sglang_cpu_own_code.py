"""Test runs in which an installed SGLang's own code decides everything, unchanged and changed.

Some runs have a scheduler of fairbench in this code, by the plugin.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fairbench
from fairbench.config.resolve import experiment
from fairbench.errors import RunFailed, UsageError
from fairbench.results.summary import basis
from fairbench.sim.run import simulate
from tests.sglang_cpu.fork import fork_of
from tests.sglang_cpu.sglang_cpu_server import PYTHON, why_absent
from tests.sim.test_sim_sglang_cells import CELLS, short_cell

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]
POLICY = "srt/managers/schedule_policy.py"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "own-code"
PATCH = EXAMPLES / "least-running.patch"
CHAT = CELLS[-1]  # the shortest
# with evictions and with retractions, with few slots for a queue or with retractions
INSIDE = [
    *(("chat", name, 2.5, 2, 4, 3, 40_000, 6) for name in ("vtc", "dlpm", "d2lpm")),
    *(("tot", name, 0.66, 2, 8, 5, 20_000, 2_048) for name in ("vtc", "dlpm")),
]
STOCK = [CHAT, ("tot", "fcfs", 0.44, 2, 8, 5, 20_000)]
RUN = (
    *("fairbench", "run", "--workload", "chat", "--scenario", "s1", "--duration", "4"),
    *("--num-programs", "3", "--no-reference", "--disable-tqdm", "--engine-code"),
)


def records(spec):
    """Return the columns of all tables of a run, and its summary."""
    result = simulate(spec)
    tables = result.requests, result.programs, result.service
    return [dict(table) for table in tables], result.summary


def content(column):
    return column.tobytes() if hasattr(column, "tobytes") else column.to_pylist()


def assert_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert content(one[name]) == content(other[name]), name


@pytest.mark.parametrize("which", STOCK, ids=lambda which: f"{which[0]}-{which[1]}")
def test_stock_policies_give_the_records_of_the_simulator(which):
    spec = short_cell(*which)
    ours, summary = records(spec)
    theirs, about = records(spec.model_copy(update={"engine_code": PYTHON}))
    assert_same(ours, theirs)
    assert len(ours[0]["request_id"]) > 100
    assert which is CHAT or ours[0]["retractions"].sum() > 0
    code = about.pop("engine_code")
    assert (code["engine"], code["policy"]) == ("sglang", which[1])
    assert len(code["digest"]) == 64
    assert code["changed"] == []
    assert about.keys() == summary.keys()


@pytest.mark.parametrize("which", INSIDE, ids=lambda which: f"{which[0]}-{which[1]}")
def test_our_schedulers_inside_sglang_give_the_records_of_the_simulator(which):
    *load, slots = which
    spec = short_cell(*load, engine__max_running_requests=slots)
    ours, summary = records(spec)
    theirs, about = records(spec.model_copy(update={"engine_code": PYTHON}))
    assert_same(ours, theirs)
    assert len(ours[0]["request_id"]) > 100
    assert which[0] == "chat" or ours[0]["retractions"].sum() > 0
    code = about.pop("engine_code")
    assert (code["policy"], code["policy_of"]) == (spec.local, "fairbench")
    assert about == summary
    other, _ = records(spec.model_copy(update={"local": "fcfs"}))
    assert content(other[0]["admitted_s"]) != content(ours[0]["admitted_s"])


GATED = [
    ("drr", {"saturation": "concurrency", "concurrency__requests": 4}),
    ("drr", {"saturation": "utilization", "utilization__waiting": 1.0}),
    ("fcfs", {"saturation": "concurrency", "gateway__client_limit": 4_000}),
]
OFF = {"gateway": None, "saturation": None}


def gated(name, settings, cell, pool):
    """Return a run behind a gateway, with the cells of an engine."""
    return cell("chat", "round-robin+fcfs", 2.5, 2, 5, 3, pool, gateway=name, **settings)


def assert_gateway_as_simulated(spec, python):
    """Assert that a gateway gives the records of the simulator, and that it delays requests."""
    ours, summary = records(spec)
    theirs, about = records(spec.model_copy(update={"engine_code": python}))
    assert_same(ours, theirs)
    del about["engine_code"]
    for told in (about, summary):
        del told["notes"]  # some notes name the engine
    assert about == summary
    free, _ = records(spec.model_copy(update=OFF))
    assert content(free[0]["admitted_s"]) != content(ours[0]["admitted_s"])


@pytest.mark.parametrize(("name", "settings"), GATED)
def test_a_gateway_gives_the_records_of_the_simulator(name, settings):
    assert_gateway_as_simulated(gated(name, settings, short_cell, 20_000), PYTHON)


def trace_of_sessions(folder):
    """Write a trace whose requests belong to sessions of several turns. Return its path."""
    draw = random.Random(1)
    lines, time_s = ["time,client,session,input_tokens,output_tokens"], 0.0
    for _ in range(80):
        time_s += draw.expovariate(8)
        client, session = draw.choice("abc"), draw.randrange(6)
        sizes = f"{draw.randrange(200, 3_000)},{draw.randrange(5, 200)}"
        lines.append(f"{time_s:.3f},{client},{client}{session},{sizes}")
    path = folder / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def assert_sessions_as_simulated(folder, engine, settings, python):
    """Assert that sessions, with and without a gateway, give the records of the simulator."""
    flags = {"trace": trace_of_sessions(folder), "dp": 2, "router": "d2lpm", "engine": engine}
    whole = experiment({**flags, "local": "fcfs", "gateway": "fair-sessions"}, settings)
    assert_gateway_as_simulated(whole, python)
    spec = whole.model_copy(update=OFF)
    ours, _ = records(spec)
    theirs, _ = records(spec.model_copy(update={"engine_code": python}))
    assert_same(ours, theirs)


def test_a_trace_with_sessions_gives_the_records_of_the_simulator(tmp_path):
    few = {"engine.max_total_tokens": 20_000, "engine.max_running_requests": 6}
    assert_sessions_as_simulated(tmp_path, None, few, PYTHON)


def test_the_eviction_policy_of_sglang_decides():
    spec = short_cell(
        *("tool-use", "round-robin+fcfs", 1.0, 1, 10, 10, 30_000), engine__max_running_requests=6
    )
    coded = {
        name: records(spec.model_copy(update={"engine_code": PYTHON, "eviction": name}))
        for name in ("lfu", "mru")
    }
    for name, change in (("lru", {}), ("lfu", {"eviction": "lfu"})):
        ours, _ = records(spec.model_copy(update=change))
        assert (
            content(coded["lfu"][0][0]["cached_tokens"]) == content(ours[0]["cached_tokens"])
        ) == (name == "lfu")
        assert content(coded["mru"][0][0]["cached_tokens"]) != content(ours[0]["cached_tokens"])
    assert coded["lfu"][1]["eviction"] == "lfu"
    assert "evictions" not in coded["lfu"][1]
    with pytest.raises(RunFailed, match="Unknown eviction policy: mine"):
        simulate(spec.model_copy(update={"engine_code": PYTHON, "eviction": "mine"}))


def assert_evicts_as_simulated(spec, python):
    """Assert that fairbench's eviction policy gives the records of the simulator, unlike LRU."""
    ours, _ = records(spec)
    theirs, about = records(spec.model_copy(update={"engine_code": python}))
    assert_same(ours, theirs)
    assert about["engine_code"]["policy_of"] == "fairbench"
    assert about["eviction"] == spec.eviction
    assert "evictions" not in about
    usual, _ = records(spec.model_copy(update={"eviction": None}))
    assert content(usual[0]["cached_tokens"]) != content(ours[0]["cached_tokens"])


SHARE = "memory.share"
EVICTED = [("quota", "dlpm"), ("quota-lending", "vtc"), ("max-min", "d2lpm")]


@pytest.mark.parametrize(("policy", "scheduler"), EVICTED)
def test_an_eviction_policy_of_fairbench_decides_inside_sglang(policy, scheduler):
    load = ("tool-use", scheduler, 2.0, 2, 10, 10, 12_000)
    spec = short_cell(*load, engine__max_running_requests=6, eviction=policy)
    assert_evicts_as_simulated(spec, PYTHON)


def assert_shares_as_simulated(spec, python):
    """Assert that memory shares give the records of the simulator, unlike a run without shares."""
    ours, _ = records(spec)
    theirs, about = records(spec.model_copy(update={"engine_code": python}))
    assert_same(ours, theirs)
    assert about["engine_code"]["policy_of"] == "fairbench"
    without, _ = records(spec.model_copy(update={"settings": {**spec.settings, SHARE: False}}))
    assert content(without[0]["admitted_s"]) != content(ours[0]["admitted_s"])


def test_memory_shares_decide_inside_sglang():
    load = ("tool-use", "d2lpm", 2.0, 2, 10, 10, 12_000)
    more = {"engine__max_running_requests": 6, "eviction": "max-min", "memory__share": True}
    assert_shares_as_simulated(short_cell(*load, **more), PYTHON)


def test_an_eviction_policy_of_fairbench_needs_its_scheduler(fork):
    spec = short_cell(*CHAT, eviction="quota")
    coded = spec.model_copy(update={"local": "vtc", "engine_code": fork(NAMED_VTC)})
    message = "needs a scheduler of fairbench, but with engine_code, 'vtc' is a policy of sglang"
    with pytest.raises(UsageError, match=message):
        simulate(coded)


def assert_passes_are_charged(engine, python):
    """Assert that the measured time of passes slows every request, and that a note says this."""
    load = {"workload": "chat", "dp": 1, "duration": 6.0, "request_rate": 0.05, "engine": engine}
    free, _ = records(experiment({**load, "engine_code": python}, {}))
    charged, summary = records(experiment({**load, "engine_code": python, "charge_pass": True}, {}))
    took, slower = (one[0]["finish_s"] - one[0]["arrival_s"] for one in (free, charged))
    assert len(took) == len(slower)
    assert (slower > took).all()
    assert summary["engine_code"]["charges_pass"]
    assert "not reproducible" in basis(summary)


def test_the_measured_time_of_passes_is_charged():
    assert_passes_are_charged(None, PYTHON)


NEWEST_FIRST = """
from dataclasses import dataclass

from fairbench.schedulers.base import LocalScheduler


class NewestFirst(LocalScheduler):
    name = "newest-first"

    @dataclass(frozen=True)
    class Params:
        most: int = 3

    def __init__(self, params):
        self.most = params.most

    def select(self, view, now_s):
        for request in list(view.queue_order())[: -self.most - 1 : -1]:
            if not (yield request):
                return
"""
IN_FILE = """
import sys

from tests.sglang_cpu.test_sglang_cpu_own_code import PYTHON, assert_same, content, records
from tests.sim.test_sim_sglang_cells import short_cell

spec = short_cell("tot", "round-robin+newest-first", 0.66, 2, 8, 5, 20_000)
ours, _ = records(spec)
theirs, about = records(spec.model_copy(update={"engine_code": PYTHON}))
assert_same(ours, theirs)
assert about["engine_code"]["policy_of"] == "fairbench"
stock, _ = records(spec.model_copy(update={"engine_code": PYTHON, "local": "fcfs"}))
assert content(stock[0]["admitted_s"]) != content(ours[0]["admitted_s"])
"""


def test_a_scheduler_in_a_users_file_decides_inside_sglang(tmp_path):
    (tmp_path / "mine.py").write_text(NEWEST_FIRST)
    environment = {**os.environ, "FAIRBENCH_SCHEDULERS": str(tmp_path / "mine.py")}
    subprocess.run([sys.executable, "-c", IN_FILE], env=environment, check=True)


CHUNKED = {
    "sglang": (
        ["--chunked-prefill-size", "256", "--max-running-requests=6"],
        {"engine.chunked_prefill_size": 256, "engine.max_running_requests": 6},
    ),
    "vllm": (
        ["--max-num-seqs", "6", "--no-enable-prefix-caching"],
        {"vllm.max_num_seqs": 6, "vllm.enable_prefix_caching": False},
    ),
}


def assert_flags_reach(engine, python):
    """Assert that flags of a server change the engine's decisions as fairbench's model says."""
    flags, settings = CHUNKED[engine]
    load = {"workload": "chat", "dp": 2, "duration": 6.0, "request_rate": 2.5, "engine": engine}
    ours, _ = records(experiment({**load, "scheduler": "fcfs"}, settings))
    coded = {**load, "router": "round-robin", "engine_code": python}
    theirs, _ = records(experiment({**coded, "server_args": flags}, {}))
    assert_same(ours, theirs)
    usual, _ = records(experiment({**load, "scheduler": "fcfs"}, {}))
    assert content(usual[0]["admitted_s"]) != content(ours[0]["admitted_s"])


def test_flags_of_a_server_reach_the_engine():
    assert_flags_reach("sglang", PYTHON)


@pytest.fixture(scope="module")
def fork(tmp_path_factory):
    """Return a function that makes the Python of a fork with a changed schedule_policy.py."""

    def made(*changes):
        folder = tmp_path_factory.mktemp("fork") / "venv"
        return str(fork_of(PYTHON, "sglang", folder, {POLICY: changes}))

    return made


NAMED_VTC = ('    LOF = "lof"', '    LOF = "vtc"')


def test_a_policy_of_the_fork_comes_before_ours_of_the_same_name(fork):
    full = short_cell(*CHAT[:4], 4, 3, 40_000, engine__max_running_requests=6)
    coded = full.model_copy(update={"engine_code": fork(NAMED_VTC), "local": "vtc"})
    theirs, summary = records(coded)
    assert summary["engine_code"]["policy_of"] == "sglang"
    stock, _ = records(full.model_copy(update={"engine_code": PYTHON, "local": "lof"}))
    assert_same(stock, theirs)


def test_a_function_that_does_not_fit_the_plugin_is_named(fork):
    old = "    def calc_priority(\n        self,\n        waiting_queue:"
    spec = short(fork((old, old.replace("waiting_queue", "waiting"))))
    with pytest.raises(UsageError) as refused:
        simulate(spec.model_copy(update={"local": "vtc"}))
    text = str(refused.value)
    assert "calc_priority takes the arguments self, waiting, " in text
    assert text.startswith("engine_code = ")
    assert "\n" not in text


NEVER = [
    (
        "    def add_one_req(\n        self,",
        "    def add_one_req(self, *arguments, **named):\n        return AddReqResult.NO_TOKEN\n\n"
        "    def replaced_add_one_req(\n        self,",
    )
]

ORDER = "        policy = self._determine_active_policy(waiting_queue)\n\n"


def short(python):
    return short_cell(*CHAT, engine_code=python)


def test_a_policy_that_raises_ends_the_run_with_its_file_and_line(fork):
    raises = f'{ORDER}        raise ValueError("no order today")\n'
    spec = short(fork((ORDER, raises)))
    with pytest.raises(RunFailed) as failed:
        simulate(spec)
    assert "ValueError: no order today" in str(failed.value)
    assert "schedule_policy.py, line " in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_changed_signature_is_named(fork):
    old = "        schedule_low_priority_values_first: bool,\n    ):\n        self.policy ="
    new = old.replace("    ):", "        quota: int,\n    ):")
    with pytest.raises(RunFailed) as failed:
        simulate(short(fork((old, new))))
    text = str(failed.value)
    assert "__init__() missing 1 required positional argument: 'quota'" in text
    assert text.startswith("sglang 0.5.23 with 1 changed file differs from the supported releases ")
    assert "SchedulePolicy" in text
    assert "\n" not in text


def test_a_replica_that_ends_is_named_with_its_code(fork):
    ends = f"{ORDER}        import os\n\n        os._exit(7)\n"
    with pytest.raises(RunFailed, match="the process ended with code 7"):
        simulate(short(fork((ORDER, ends))))


def test_a_policy_that_never_admits_ends_the_run(fork):
    spec = short(fork(*NEVER)).model_copy(update={"local": "fcfs"})
    with pytest.raises(RunFailed, match="fcfs of sglang: stopped offering requests"):
        simulate(spec)


def test_an_unknown_policy_is_refused_by_the_engine():
    spec = short(PYTHON).model_copy(update={"local": "no-such-policy"})
    with pytest.raises(RunFailed, match="no-such-policy"):
        simulate(spec)


def test_a_python_without_the_engine_is_refused():
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys._base_executable)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    with pytest.raises(UsageError, match="cannot import sglang: No module named"):
        simulate(short(bare))


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """Return the Python of a fork with the example's patch, made as in the tutorial."""
    folder = tmp_path_factory.mktemp("patched") / "fork"
    command = ["bash", str(EXAMPLES / "fork.sh"), str(PYTHON), str(folder)]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    subprocess.run(["git", "apply", "-p1", str(PATCH)], cwd=made.stdout.strip(), check=True)
    return str(folder / "bin" / "python")


def test_a_forks_own_policy_decides(patched):
    full = short_cell(*CHAT, engine_code=patched, engine__max_running_requests=4)
    spec = full.model_copy(update={"local": "least-running"})
    tables, summary = records(spec)
    again, _ = records(spec)
    assert_same(tables, again)
    code = summary["engine_code"]
    assert code["policy"] == "least-running"
    assert code["changed"] == [POLICY]
    stock, _ = records(full.model_copy(update={"engine_code": PYTHON, "local": "fcfs"}))
    assert content(tables[0]["admitted_s"]) != content(stock[0]["admitted_s"])


def test_codes_are_compared_on_the_same_seeds(patched):
    flags = {"workload": "chat", "scenario": "s1", "dp": 1, "duration": 4.0}
    found = fairbench.compare(engine_code=[PYTHON, patched], num_runs=2, **flags)
    (contrast,) = found.shown
    assert contrast.seeds == (0, 1)
    (service,) = [one for one in contrast.metrics if one.metric == "service_rate_tok_s"]
    assert service.difference.mean == 0


def test_ctrl_c_leaves_no_process_even_in_an_endless_loop(fork, tmp_path):
    mark = tmp_path / "mark"
    endless = (
        f"{ORDER}        open({str(mark)!r}, 'w').close()\n        while True:\n            pass\n"
    )
    python = fork((ORDER, endless))
    command = [*RUN, python, "--schedule-policy", "fcfs", "--result-dir", str(tmp_path)]
    run = subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL)
    try:
        _wait(mark.exists)
        engines = children(run.pid)
        while run.poll() is None:  # more than one signal, because the engine does not return
            run.send_signal(signal.SIGINT)
            time.sleep(1.5)
    finally:
        run.kill()
        run.wait()
    assert engines
    assert run.returncode in (130, -signal.SIGINT)  # at the first signal, or at a later one
    _wait(lambda: not any(map(lives, engines)))


def test_a_killed_simulator_leaves_no_process(tmp_path):
    command = [*RUN, PYTHON, "--schedule-policy", "fcfs", "--result-dir", str(tmp_path)]
    run = subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL)
    engines = _wait(lambda: children(run.pid))
    run.kill()
    run.wait()
    _wait(lambda: not any(map(lives, engines)))


def children(pid):
    """Return the child processes of a process, and theirs."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    own = [int(one) for one in text.split()]
    return [*own, *(below for one in own for below in children(one))]


def lives(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _wait(found, most_s=300):
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        if one := found():
            return one
        time.sleep(0.2)
    raise AssertionError("never happened")
