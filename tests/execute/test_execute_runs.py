"""Test runs, repeats and sweeps without a command: on a custom executor, and interrupted."""

import signal
from contextlib import contextmanager

import pytest

from fairbench.config.resolve import experiment, resolve
from fairbench.config.sweep import make_sweep, points, sweep_of
from fairbench.errors import Interrupted, RunFailed, UsageError
from fairbench.execute.live_runs import NO_FLAGS
from fairbench.execute.repeats import repeat, run_sweep
from fairbench.execute.run_or_recover import recover_run, run_and_save
from fairbench.execute.simulations import jobs_left
from fairbench.execute.tasks import RunContext, Silent, attempt, run_context
from fairbench.results.store import SweepStore, is_run, runs_in

TINY = {"workload": "chat", "scenario": "none", "num_programs": 1}
EMULATED = TINY | {"backend": {"kind": "emulator"}}


class InOrder:
    """An executor without processes, which can be interrupted after a given number of tasks."""

    def __init__(self, most=100):
        self.most = most
        self.ended = 0

    def run(self, tasks, interrupted):
        for index, task in enumerate(tasks):
            if interrupted():
                return
            result = attempt(task, interrupted)
            self.ended += 1
            if self.ended == self.most:
                interrupted.signum = signal.SIGINT
            yield index, result


class Counting(Silent):
    """A progress display that records its calls."""

    def __init__(self):
        self.done = []
        self.states = []
        self.over = []

    def update(self, state):
        self.states.append(state)

    @contextmanager
    def tasks(self, costs):
        yield self.done.append

    def ended(self, name, number, count):
        self.over.append((name, number, count))


def sweep_in(parent, **axes):
    sweep = make_sweep({"name": "mine", "base": TINY, "grid": [axes]})
    specs = points(sweep)
    return SweepStore.create(parent, sweep, specs), specs


def test_repeats_take_any_executor(tmp_path):
    executor, progress = InOrder(), Counting()
    context = RunContext(progress=progress, executor=executor)
    repeats = repeat(resolve(TINY), 2, tmp_path, NO_FLAGS, context)
    assert (executor.ended, progress.done) == (2, [0, 1])
    assert [(name.rpartition(", ")[2], *rest) for name, *rest in progress.over] == [
        ("seed 0", 1, 2),
        ("seed 1", 2, 2),
    ]
    assert repeats.combined["seeds"] == [run.summary["seed"] for run in repeats.runs] == [0, 1]
    assert {run.path.parent for run in repeats.runs} == {repeats.path}
    assert (repeats.path / "intervals.json").exists()


def test_interrupted_repeats_keep_the_runs_that_have_begun(tmp_path):
    context = RunContext(executor=InOrder(most=1))
    repeats = repeat(resolve(TINY), 3, tmp_path, NO_FLAGS, context)
    assert repeats.combined["seeds"] == [0]
    none = RunContext(executor=InOrder())
    none.interrupted.signum = signal.SIGINT
    assert repeat(resolve(TINY), 3, tmp_path, NO_FLAGS, none).combined is None


def test_a_sweep_takes_any_executor_and_outlives_its_points(tmp_path):
    pools = [5, 100_000]
    store, specs = sweep_in(tmp_path, **{"engine.max_total_tokens": pools})
    executor = InOrder()
    context = RunContext(progress=(progress := Counting()), executor=executor)
    outcome = run_sweep(store, specs, NO_FLAGS, context)
    assert executor.ended == 4  # both points, and the clients alone at each
    failed = [name for name, _, _ in progress.over if name.endswith(" failed")]
    assert len(failed) == 1
    assert [(number, count) for _, number, count in progress.over] == [(n, 4) for n in range(1, 5)]
    (failure,) = outcome.failures
    assert (
        "every request is larger than the KV pool of 5 tokens; give a larger pool or "
        "shorter prompts"
    ) in failure.error
    assert [len(cell.runs) for cell in outcome.cells] == [1]
    with pytest.raises(RunFailed, match="runs failed: 1; see"):
        outcome.require_whole()


def test_an_interrupted_sweep_prints_how_to_resume(tmp_path):
    store, specs = sweep_in(tmp_path, scheduler=["vtc", "fcfs"])
    context = RunContext(progress=Counting(), executor=InOrder(most=1))
    with pytest.raises(Interrupted, match=f"sweep --resume {store.path}") as raised:
        run_sweep(store, specs, NO_FLAGS, context)
    assert raised.value.exit_code == 130
    assert context.progress.over == [], "an interrupted point is not finished"
    outcome = run_sweep(store, specs, NO_FLAGS, RunContext(executor=InOrder()))
    assert len(outcome.cells) == 2


def test_progress_is_reported_only_to_listeners(tmp_path):
    progress = Counting()
    with run_context(progress) as context:
        result, path = run_and_save(resolve(TINY), NO_FLAGS, tmp_path, context)
    assert result.complete
    assert is_run(path)
    assert progress.states[-1].programs_done <= result.summary["num_programs"]
    assert RunContext().on_progress is None


def test_a_run_interrupted_before_its_servers_are_ready_leaves_no_files(tmp_path, monkeypatch):
    live_run = pytest.importorskip("fairbench_load.stored_runs", exc_type=ImportError)

    def told_to_stop(*args, interrupted, **options):
        interrupted.signum = signal.SIGTERM
        raise KeyboardInterrupt

    monkeypatch.setattr(live_run, "run_live", told_to_stop)
    with run_context() as context, pytest.raises(Interrupted, match="before the servers") as raised:
        run_and_save(resolve(EMULATED), NO_FLAGS, tmp_path, context)
    assert raised.value.exit_code == 143
    assert list(tmp_path.iterdir()) == []


def test_earlier_seeds_are_kept_if_a_later_one_never_starts(tmp_path, monkeypatch):
    live_run = pytest.importorskip("fairbench_load.stored_runs", exc_type=ImportError)

    @contextmanager
    def cluster(parent, *_, **__):
        yield None

    def run_live(spec, path, *args, interrupted, **options):
        if spec.seed:
            interrupted.signum = signal.SIGINT
            raise KeyboardInterrupt
        return live_run_result

    live_run_result = _simulated(tmp_path / "simulated")
    monkeypatch.setattr(live_run, "cluster_in", cluster)
    monkeypatch.setattr(live_run, "run_live", run_live)
    with run_context() as context, pytest.raises(Interrupted):
        repeat(resolve(EMULATED), 3, tmp_path / "runs", NO_FLAGS, context)
    (parent,) = (tmp_path / "runs").iterdir()
    assert [run.summary["seed"] for run in runs_in(parent)] == [0]


def _simulated(parent):
    return run_and_save(resolve(TINY), NO_FLAGS, parent, RunContext())[0]


def test_only_killed_runs_are_recovered(tmp_path):
    _, path = run_and_save(resolve(TINY), NO_FLAGS, tmp_path, RunContext())
    with pytest.raises(UsageError, match="this run is saved already; print it with `fairbench"):
        recover_run(path)
    with pytest.raises(UsageError, match="must be the directory of a run that was killed"):
        recover_run(tmp_path)


def test_flags_without_a_value_are_left_out():
    assert experiment({"dp": None, "share_gpus": False}, {}) == resolve({})
    flags = {"dp": 2, "duration": 5.0, "max_total_tokens": 9_000, "backend": "emulator"}
    spec = experiment(flags, {"engine.max_running_requests": 7})
    assert (spec.dp, spec.duration_s, spec.backend.kind) == (2, 5.0, "emulator")
    assert spec.settings["engine.max_total_tokens"] == 9_000
    assert spec.settings["engine.max_running_requests"] == 7
    swept = sweep_of(None, {"dp": [1, 2], "seed": 3, "gpu": None}, {"vtc.charge": ["input"]})
    assert swept.grid == [{"dp": [1, 2], "vtc.charge": ["input"], "seed": 3}]


def test_the_longest_simulations_of_a_sweep_start_first(tmp_path):
    sweep = make_sweep(
        {"name": "mine", "base": TINY, "grid": [{"num_programs": count} for count in (2, 9, 1, 5)]}
    )
    specs = points(sweep)
    store = SweepStore.create(tmp_path, sweep, specs)
    sizes = [job.requests for job in jobs_left(store, specs, with_alone=False)]
    assert len(set(sizes)) == 4
    assert sizes == sorted(sizes, reverse=True)


def test_repeats_are_in_the_order_of_their_seeds_whichever_ends_first(tmp_path):
    class Reversed(InOrder):
        def run(self, tasks, interrupted):
            yield from reversed(list(super().run(tasks, interrupted)))

    repeats = repeat(resolve(TINY), 3, tmp_path, NO_FLAGS, RunContext(executor=Reversed()))
    assert repeats.combined["seeds"] == [run.summary["seed"] for run in repeats.runs] == [0, 1, 2]
