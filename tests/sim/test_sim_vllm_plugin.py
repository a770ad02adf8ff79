"""Test fairbench's schedulers inside vLLM 0.32.0's own Scheduler: refusals and decisions.

Runs in the environment of tests/vllm_cpu/install.sh. tests/vllm_cpu/differential.py runs more
streams.
"""

import json
import os
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest

from fairbench.hardware.engine_params import VLLMLimits
from fairbench_engines.ranks import FOLDER
from fairbench_engines.vllm.views import BlockQueue
from fairbench_load.plugin_config import plugin_config
from tests.sim.vllm_plugin_streams import SCHEDULERS, SETTINGS, compare_plugin, fair_engine
from tests.sim.vllm_seam import RealEngine, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]
# a tiny model without weights
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "float32",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
}
LIMITS = VLLMLimits(pool_tokens=1_000, max_num_batched_tokens=64, max_num_seqs=4)


@pytest.mark.parametrize("local", SCHEDULERS)
def test_the_plugin_decides_as_the_simulator_does(local):
    seen = sum((compare_plugin(local, seed) for seed in range(10)), start=compare_plugin(local, 99))
    assert seen["admissions with cached tokens"] > 20
    assert seen["preemptions"] > 10
    assert seen["requests passed by a later one"] > 20 or local in ("fcfs", "edf")


def steps_and_batch(engine):
    """Return the number of steps of 48 requests that start in four steps, and the mean batch."""
    for number in range(48):
        prompt = range(128 * number, 128 * number + 128)
        engine.scheduler.add_request(
            engine.request(number, prompt, [7] * 40, client=f"c{number % 4}")
        )
    sizes = []
    while (step := engine.step()) is not None:
        sizes.append(len(step[0]))
    return len(sizes), sum(sizes) / len(sizes)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_batch_is_as_large_as_without_the_plugin(asynchronous):
    """A synchronous class under asynchronous scheduling would need about twice the steps."""
    limits = VLLMLimits(100_000, 12 * 128, async_scheduling=asynchronous)
    stock = steps_and_batch(RealEngine(limits))
    for local in SCHEDULERS:
        assert steps_and_batch(fair_engine(limits, local, {}, lambda: 0.0)) == stock
    assert stock[0] < 1.2 * 40


@pytest.mark.parametrize("asynchronous", [False, True])
def test_charges_and_counts_have_no_placeholders(asynchronous):
    limits = replace(LIMITS, async_scheduling=asynchronous)
    engine = fair_engine(limits, "vtc", {}, lambda: 0.0)
    scheduler, booked = engine.scheduler, []
    for number in range(3):
        output = [7, 7, 7, 7, 8]
        scheduler.add_request(engine.request(number, range(16), output, client="a", spare=number))
    while engine.step() is not None:
        known = sum(one.num_output_tokens for one in scheduler.requests.values())
        gone = 5 * (3 - len(scheduler.requests))
        booked.append(scheduler.counters["output_tokens"])
        assert booked[-1] == known + gone
    # then a step in which two requests are computed in vain
    assert booked == [3, 6, 9, 12, 15, *[15] * asynchronous]


def test_the_time_of_a_step_in_flight_begins_when_the_step_before_it_ends():
    """Costs are fitted to steps of 1 s, although each is scheduled 1 s earlier."""
    clock, seen = [0.0], []
    engine = fair_engine(
        replace(LIMITS, async_scheduling=True), "vtc", {"vtc.charge": "gpu-time"}, lambda: clock[0]
    )
    home, complete = engine.scheduler.home, engine.complete
    home.costs.observe_decode = lambda *observed: seen.append(observed)

    def completed(plan):
        clock[0] += bool(plan.num_scheduled_tokens)
        return complete(plan)

    engine.complete = completed
    engine.scheduler.add_request(engine.request(0, range(16), [7] * 5, client="a"))
    while engine.step() is not None:
        pass
    assert seen == [(1, 17 + number, 1.0) for number in range(4)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_class_that_does_not_fit_the_configuration_ends_the_server(asynchronous, capsys):
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from fairbench_engines.vllm.scheduler import FairScheduler

    class Ahead(FairScheduler, AsyncScheduler):
        pass

    limits = replace(LIMITS, async_scheduling=asynchronous)
    made = fair_engine(limits, "vtc", {}, lambda: 0.0).scheduler
    assert isinstance(made, AsyncScheduler) == asynchronous
    if not asynchronous:
        with pytest.raises(SystemExit) as ended:
            RealEngine(limits, scheduler_cls=Ahead)
        said = capsys.readouterr().err
        assert ended.value.code == 2
        assert "Ahead does not fit this server: with async_scheduling = False" in said
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, ""),
        (
            {"data_parallel_size": 4, "data_parallel_size_local": 2},
            "--data-parallel-size 4 is not supported",
        ),
        ({"data_parallel_size": 2}, ""),
        ({"enable_lora": True}, ""),
        (
            {
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 3,
                    "prompt_lookup_max": 4,
                }
            },
            "",
        ),
        ({"runner": "pooling"}, "--runner pooling: requests are served in order of arrival"),
        ({"scheduling_policy": "priority"}, ""),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_server_with_an_unsupported_option_ends_before_it_loads_a_model(
    asked, says, monkeypatch, tmp_path, capsys
):
    from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs

    from fairbench_engines.vllm.start import register

    monkeypatch.setattr(EngineArgs, "create_engine_config", EngineArgs.create_engine_config)
    for name, value in plugin_config("vtc", {}).environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(FOLDER, "")  # restored after the test
    monkeypatch.delenv(FOLDER)
    register()
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    arguments = AsyncEngineArgs(
        model=str(tmp_path), skip_tokenizer_init=True, scheduler_cls="any.Scheduler", **asked
    )
    refused = "not supported" in says
    with pytest.raises(SystemExit) if refused else nullcontext() as ended:
        arguments.create_engine_config()
    assert not refused or ended.value.code == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fairbench:")]
    assert len(said) == bool(says)
    assert not says or says in said[0]
    several = asked.get("data_parallel_size", 1) > 1
    assert (FOLDER in os.environ) == (several and not says)


@pytest.mark.parametrize("local", ["vtc", "dlpm"])
def test_fair_preemption_takes_the_memory_of_the_same_requests(local):
    settings = SETTINGS.get(local, {}) | {f"{local}.preempt": "fair"}
    seen = sum((compare_plugin(local, seed, settings) for seed in (6, 7, 10, 11)), Counter())
    assert seen["preemptions"] > 10


def test_another_quantum_changes_the_decisions():
    """The quantum differs only in the simulator, so the comparison must fail."""
    differ = 0
    for seed in range(10):
        try:
            compare_plugin("dlpm", seed, {"dlpm.quantum": 50}, {"dlpm.quantum": 100_000})
        except AssertionError:
            differ += 1
    assert differ > 3


def test_an_aborted_request_is_forgotten_wherever_it_was():
    engine = fair_engine(LIMITS, "vtc", {}, lambda: 0.0)
    scheduler = engine.scheduler
    for number in range(6):
        scheduler.add_request(engine.request(number, range(20), [7] * 9, client="a"))
    engine.step()
    assert (len(scheduler.running), len(scheduler.waiting)) == (4, 2)
    aborted = engine.vllm.request.RequestStatus.FINISHED_ABORTED
    scheduler.finish_requests([scheduler.running[0].request_id, "5"], aborted)
    assert (len(scheduler.waiting), len(scheduler.home.view)) == (1, 1)
    while engine.step():
        pass
    counters = scheduler.counters
    assert scheduler.home.idle
    assert (counters["arrivals"], counters["finished"], counters["admissions"]) == (6, 6, 5)
    assert counters["output_tokens"] == 4 * 9 + 1


def test_a_request_that_vllm_cannot_admit_yet_delays_no_others():
    """An example is a request whose grammar is being compiled. It keeps its position."""
    engine = fair_engine(LIMITS, "vtc", {}, lambda: 0.0)
    scheduler = engine.scheduler
    statuses = engine.vllm.request.RequestStatus
    first, second = (engine.request(n, range(20 * n, 20 * n + 20), [7] * 3) for n in range(2))
    first.status = statuses.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    ready = False
    scheduler._handle_blocked_waiting_request = lambda request: request is second or ready
    for request in (first, second):
        scheduler.add_request(request)
    engine.step()
    assert ([one is second for one in scheduler.running], len(scheduler.waiting)) == ([True], 1)
    ready, first.status = True, statuses.WAITING
    engine.step()
    assert len(scheduler.running) == 2
    assert scheduler.counters["admissions"] == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"FAIRBENCH_LOCAL": ""}, "FAIRBENCH_LOCAL is not set"),
        ({"FAIRBENCH_LOCAL": "dlmp", "FAIRBENCH_SETTINGS": "{}"}, "dlpm"),
        (plugin_config("rpm", {"rpm.limit": 5}).environment(), "rpm refuses requests"),
        (plugin_config("edf-textbook", {}).environment(), "edf-textbook preempts"),
        (
            plugin_config("edf", {"edf.preempt": "no", "edf.chunks": True}).environment(),
            "edf sizes steps",
        ),
        (
            plugin_config("dlpm", {"dlpm.no_room": "skip"}).environment(),
            "tries requests other than the first",
        ),
    ],
)
def test_impossible_settings_end_the_server_with_a_line(change, says, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        fair_engine(LIMITS, "vtc", {}, lambda: 0.0, environment=change)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("ec_transfer_config", object()),
        ("model_config.is_encoder_decoder", True),
        ("model_config.is_diffusion", True),
    ],
)
def test_settings_that_would_escape_the_scheduler_are_refused(path, value, capsys):
    with pytest.raises(SystemExit):
        fair_engine(LIMITS, "vtc", {}, lambda: 0.0, configured={path: value})
    assert path in capsys.readouterr().err


def test_an_unknown_release_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("fairbench_engines.vllm.release.SUPPORTED", ("0.1.0",))
    with pytest.raises(SystemExit):
        fair_engine(LIMITS, "vtc", {}, lambda: 0.0)
    assert "inside 0.1.0 to 0.1.0" in capsys.readouterr().err


def test_kept_matches_follow_the_cache_and_its_reset():
    engine = fair_engine(LIMITS, "lpm", {}, lambda: 0.0)
    scheduler = engine.scheduler
    scheduler.add_request(engine.request(0, range(40), [7], client="a"))
    while engine.step():
        pass
    for number, first in ((1, 100), (2, 0)):
        scheduler.add_request(engine.request(number, range(first, first + 40), [7], client="a"))
    view = scheduler.home.view
    assert isinstance(view, BlockQueue)

    def order():
        return [(view.matched_tokens(one), one.request_id) for one in view.match_order()]

    assert order() == [(32, 2), (0, 1)]
    engine.hits.clear()
    assert order() == [(32, 2), (0, 1)]
    assert engine.hits == {}  # no request was looked up again
    for _ in range(2):
        assert scheduler.reset_prefix_cache()
        assert order() == [(0, 2), (0, 1)]
    while engine.step():
        pass
    assert scheduler.home.idle


def test_a_reset_of_an_idle_cache_starts_afresh():
    engine = fair_engine(LIMITS, "vtc", {}, lambda: 0.0)
    scheduler = engine.scheduler
    scheduler.add_request(engine.request(0, range(20), [7] * 9, client="a"))
    engine.step()
    home = scheduler.home
    scheduler.reset_prefix_cache()
    assert scheduler.home is home
    while engine.step():
        pass
    assert home.scheduler.balances()["a"] > 0
    assert scheduler.reset_prefix_cache()
    assert scheduler.home.scheduler.balances().get("a", 0) == 0
