"""Test runs on engines by name: the registry, whole runs, and refusals."""

import pytest

from fairbench.config.resolve import resolve
from fairbench.config.spec import to_toml
from fairbench.engine.clock import ARRIVE
from fairbench.engine.contract import CONTRACTS
from fairbench.errors import UsageError
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engine_params import VLLMParams, vllm_limits
from fairbench.hardware.engines import ENGINES
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.alone import simulate_alone
from fairbench.sim.run import Simulation, simulate
from tests.invariants import assert_same_records, check_all
from tests.sim.sim_helpers import US, Home, small_spec
from tests.sim.test_sim_lightllm import Server
from tests.sim.test_sim_vllm import VLLMHome
from tests.sim.vllm_invariants import watch_vllm
from tests.slow_params import slow

# omits what a minibatch costs beyond the timing profile
LIGHTLLM = {
    "lightllm__max_total_tokens": 6_000,
    "lightllm__prefill_overhead_ms": 0.0,
    "lightllm__prefill_tile": 1,
    "lightllm__idle_poll_ms": 0.0,
}
VLLM = {"vllm__num_gpu_blocks_override": 200, "vllm__max_num_seqs": 8}


def vllm_spec(scheduler, workload="chat", **more):
    return small_spec(scheduler, workload, flags={"engine": "vllm"}, **{**VLLM, **more})


def test_every_engine_has_a_contract():
    assert list(CONTRACTS) == list(ENGINES)


@pytest.mark.parametrize(
    ("home", "later"),
    [
        (lambda: Home(max_running_requests=1), {"at_ps": 2_000 * US}),
        (lambda: VLLMHome(max_num_seqs=1), {"at_ps": 2_000 * US}),
        (Server, {"at_us": 2_000}),  # admits the next minibatch when its batch is empty
    ],
)
def test_a_worker_is_saturated_only_while_a_request_waits_for_a_slot(home, later):
    """A request takes 1,000 + 10 * 10 us of prefill and two steps of 1,010 us."""
    home, seen = home(), []

    def look():
        worker = home.worker
        seen.append((worker.queued_count, worker.running_count, worker.saturated))

    home.send(10, 3)
    home.send(10, 3, **later)
    for at_us in (1_500, 2_500, 4_000, 7_000):
        home.clock.at(at_us * US, ARRIVE, 0, look)
    home.run()
    assert [one.finish_ps // US for one in home.sent] == [3_120, 6_240]
    assert seen == [(0, 1, False), (1, 1, True), (0, 1, False), (0, 0, False)]


class Told(FCFS):
    """A scheduler that records the ends of requests, in order."""

    def __init__(self):
        super().__init__(FCFS.Params())
        self.heard = []

    def on_output(self, request, tokens):
        self.heard.append((request.request_id, tokens))

    def on_finish(self, request):
        self.heard.append(request.request_id)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_scheduler_learns_outputs_before_the_end(engine, monkeypatch):
    sglang = {"pool": 2_000, "engine__max_running_requests": 2_048}
    more = {"sglang": sglang, "vllm": VLLM, "lightllm": LIGHTLLM}[engine]
    flags = {"engine": engine, "num_programs": 4, "request_rate": 50.0}
    spec = small_spec("fcfs", "chat", seed=3, flags=flags, **more)
    told = Told()
    monkeypatch.setattr("fairbench.sim.run.build_local", lambda *_: told)
    requests = simulate(spec).requests
    assert requests["retractions"].sum() > 0 or engine == "lightllm"
    produced = dict(zip(requests["request_id"], requests["output_tokens"], strict=True))
    outputs, ends = told.heard[::2], told.heard[1::2]
    assert [request for request, _ in outputs] == ends
    assert sorted(outputs) == sorted(produced.items())


def test_the_default_engine_leaves_no_trace_in_an_experiment():
    plain, named = resolve({}), resolve({"engine": "sglang"})
    assert plain == named
    assert "engine =" not in to_toml(plain)
    assert not any(key.startswith("vllm.") for key in plain.settings)


def test_a_vllm_experiment_holds_the_parameters_of_that_engine_alone():
    spec = vllm_spec("fcfs")
    assert spec.settings["vllm.num_gpu_blocks_override"] == 200
    assert not any(key.startswith("engine.") for key in spec.settings)


@pytest.mark.parametrize("scheduler", ["fcfs", "d2lpm", *slow("vtc")])
def test_a_run_on_vllm_keeps_its_invariants_and_is_reproducible(scheduler):
    spec = vllm_spec(scheduler, dp=2)
    simulation = Simulation(spec, spec.client_plans(), None)
    watch_vllm(simulation.clock, simulation.cluster.workers)
    simulation.run()
    result = simulation.result(True, None)
    assert result.summary["engine"] == "vllm"
    assert result.summary["pool_tokens"] == 199 * 16
    assert_same_records(result, simulate(spec))


def test_a_run_is_the_same_in_closed_form_and_step_by_step():
    # Routers are told of evictions, and the local scheduler of every token.
    spec = vllm_spec("d2lpm", dp=2)
    slow = spec.model_copy(update={"settings": {**spec.settings, "vllm.step_by_step": True}})
    assert_same_records(simulate(spec), simulate(slow))


def test_a_lone_client_is_simulated_on_the_same_engine():
    (row, *_) = simulate_alone(vllm_spec("fcfs", vllm__num_gpu_blocks_override=2_000))
    assert row["p50_s"] > 0


@pytest.mark.parametrize("scheduler", ["fcfs", "vtc", "d2lpm"])
def test_a_run_on_lightllm_keeps_its_records_right_and_computes_every_prompt(scheduler):
    spec = small_spec(scheduler, "chat", dp=2, flags={"engine": "lightllm"}, **LIGHTLLM)
    result = simulate(spec)
    check_all(result)
    assert result.summary["engine"] == "lightllm"
    assert result.summary["pool_tokens"] == 6_000
    assert result.summary["cache_hit_rate"] == 0
    assert result.summary["completed"] == result.summary["num_requests"] > 8
    assert_same_records(result, simulate(spec))


def test_a_run_on_lightllm_that_is_cut_off_keeps_its_records_right():
    flags = {"engine": "lightllm", "max_drain_s": 0.5}
    result = simulate(small_spec("vtc", "chat", flags=flags, **LIGHTLLM))
    check_all(result)
    assert 0 < result.summary["unfinished"] < result.summary["num_requests"]


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        ({"engine": "vlm"}, {}, "vllm"),
        ({"engine": "vllm"}, {"engine.max_total_tokens": 9}, "engine vllm has no such setting"),
        ({}, {"vllm.block_size": 32}, "engine sglang has no such setting"),
        ({"engine": "vllm", "backend": {"kind": "emulator"}}, {}, "backend emulator has its own"),
    ],
)
def test_settings_that_no_engine_supports_are_refused(given, settings, said):
    with pytest.raises(UsageError, match=said):
        resolve(given, settings)


def test_settings_that_vllm_would_refuse_are_refused():
    with pytest.raises(UsageError, match="max_num_batched_tokens = 64: must be at least"):
        simulate(vllm_spec("fcfs", vllm__max_num_batched_tokens=64, vllm__max_num_seqs=65))


@pytest.mark.parametrize(
    ("gpu", "tokens", "sequences"), [("h100", 8_192, 1_024), ("a100", 2_048, 256)]
)
def test_defaults_equal_those_of_the_api_servers(gpu, tokens, sequences):
    limits = vllm_limits(VLLMParams(), load_profile(resolve({"gpu": gpu}).gpu))
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (tokens, sequences)
