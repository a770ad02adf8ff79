"""Test that charges of GPU time add up to busy time, and that reading a context is not free."""

from dataclasses import replace
from math import isclose

import pytest

from fairbench.core import PS_PER_S
from fairbench.errors import UsageError
from fairbench.hardware.timing import ProfileCosts
from fairbench.schedulers.base import Setup
from fairbench.schedulers.gateway.rerouting import rerouting
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.routing.round_robin import RoundRobin
from fairbench.sim.run import Simulation, simulate
from tests.invariants import assert_same_records
from tests.sim.sim_helpers import PLAIN, US, Home, prompt, small_spec
from tests.slow_params import slow

READS = replace(PLAIN, coefficients_ms=PLAIN.coefficients_ms | {"c_K": 0.01})  # 10 us per token
VLLM = {"vllm__max_num_batched_tokens": 256, "vllm__num_gpu_blocks_override": 200}
ENGINES = {
    "sglang": {"pool": 2_500, "engine__chunked_prefill_size": 128},
    "vllm": {"flags": {"engine": "vllm"}} | VLLM,
}


def charging(local, engine="sglang", workload="chat", **more):
    """Return a small overloaded run with chunks, evictions and retractions."""
    settings = dict(ENGINES[engine])
    flags = settings.pop("flags", {}) | more.pop("flags", {}) | {"num_programs": 6}
    key = {f"{local}__charge": "gpu-time"}
    flags = {"router": "least-loaded", "local": local} | flags
    return small_spec("lpm", workload, flags=flags, **(settings | key | more))


def ran(spec):
    simulation = Simulation(spec, spec.client_plans(), None)
    simulation.run()
    return simulation


def busy_ps(simulation, worker=0):
    """Return the worker's computing time by the service log."""
    simulation.cluster.settle()
    log = simulation.log
    columns = (log.column(name).tolist() for name in ("worker", "start_ps", "end_ps"))
    return sum(
        end - start for index, start, end in set(zip(*columns, strict=True)) if index == worker
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_the_charges_of_vtc_are_the_busy_time_to_the_picosecond(engine):
    """INV-23 for counters without lift, which are sums of charges."""
    flags = {"request_rate": 30.0}  # so that requests lose their memory
    simulation = ran(charging("vtc", engine, flags=flags, vtc__lift="none"))
    scheduler = simulation.cluster.workers[0].scheduler
    assert sum(scheduler.counters.values()) == busy_ps(simulation)
    result = simulation.result(True, None)
    assert engine == "sglang" or result.requests["retractions"].sum() > 0
    for row in result.summary["clients"]:
        assert isclose(row["gpu_s"], scheduler.counters[row["client"]] / PS_PER_S)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_charges_of_dlpm_are_the_busy_time(engine):
    """INV-23: the granted quanta less the remaining credit."""
    spec = charging("dlpm", engine, dlpm__quantum=300)
    simulation = Simulation(spec, spec.client_plans(), None)
    scheduler = simulation.cluster.workers[0].scheduler
    credits_ = scheduler.credits
    credits_.drop_if_idle = lambda client: None  # remaining credit stays in the books
    granted, refill = [], credits_.refill

    def watched(*told):
        before = sum(scheduler.credit.values())
        done = refill(*told)
        granted.append(sum(scheduler.credit.values()) - before)
        return done

    credits_.refill = watched
    simulation.run()
    spent = sum(granted) - sum(scheduler.credit.values())
    assert len(granted) > 3
    assert isclose(spent, busy_ps(simulation), rel_tol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_final_charges_of_d2lpm_are_the_busy_time_of_each_worker(engine):
    """INV-23, request by request: charged ahead at dispatch, corrected at the end."""
    more = {"d2lpm__charge": "gpu-time", "d2lpm__worker_quantum": 10**9}
    simulation = ran(charging("vtc", engine, dp=2, flags={"router": "d2lpm"}, **more))
    router = simulation.router
    granted = 10**9 * router._charging.token_ps()  # once per client
    for worker in range(2):
        spent = sum(granted - credit[worker] for credit in router.credit.values())
        assert busy_ps(simulation, worker) > 0
        assert isclose(spent, busy_ps(simulation, worker), rel_tol=1e-6)


@pytest.mark.parametrize("local", ["dlpm", *slow("vtc")])
@pytest.mark.parametrize("engine", ENGINES)
def test_step_by_step_charges_the_same(local, engine):
    fast = simulate(charging(local, engine))
    step = "engine__step_by_step" if engine == "sglang" else "vllm__step_by_step"
    slow = simulate(charging(local, engine, **{step: True}))
    assert_same_records(fast, slow)


def charged(local, weights=None, **params):
    """Run two clients with constant work. x's prompts share 400 cached tokens, and y's share 20.

    Both produce 20 to 26 tokens per request. Reading 400 tokens in every step takes far more time.
    """
    scheduler = local(local.Params(**params))
    scheduler.prepare(Setup(weights=weights or {}, costs=ProfileCosts(READS)))
    home = Home(scheduler, pool=4_000, profile=READS, max_running_requests=6)
    for number in range(500):
        home.send(prompt("shared", 400, f"x{number}", 10), 20 + number % 7, client="x")
        home.send(20, 20 + number % 5, client="y")
    home.run(until_ps=6 * PS_PER_S)
    home.worker.settle()
    spent = dict.fromkeys(("x", "y"), 0)
    for row in home.rows():
        spent["xy"[row["client"]]] += row["gpu_ps"]
    return spent["x"] / spent["y"]


@pytest.mark.parametrize("local", [VTC, DLPM])
def test_a_context_that_is_read_in_every_step_is_paid_for(local):
    more = {"quantum": 100} if local is DLPM else {}
    assert charged(local, **more) > 3
    assert charged(local, charge="gpu-time", **more) == pytest.approx(1, abs=0.1)


def test_charges_obey_weights():
    assert charged(VTC, {"x": 2.0}, charge="gpu-time") == pytest.approx(2, rel=0.1)


def test_predictions_are_corrected_by_hand_computed_values():
    # A prompt of 10 tokens takes 1,100 us, and two together 1,200. Each pays its own 90 and half of
    # the rest.
    scheduler = VTC(VTC.Params(charge="gpu-time"))
    scheduler.prepare(Setup(costs=ProfileCosts(PLAIN)))
    home = Home(scheduler)
    home.send(10, 1, client="x")
    home.send(10, 1, client="y")
    home.run(until_ps=500 * US)
    assert scheduler.counters == {"x": 1_100 * US, "y": 1_100 * US}
    home.run()
    assert scheduler.counters == {"x": 600 * US, "y": 600 * US}


def test_impossible_charging_is_refused():
    with pytest.raises(
        UsageError, match="needs a timing profile, because the time of an iteration"
    ):
        VTC(VTC.Params(charge="gpu-time")).prepare(Setup())
    costs = Setup(costs=ProfileCosts(PLAIN))
    with pytest.raises(UsageError, match=r"\.sharing"):
        DLPM(DLPM.Params(charge="gpu-time", sharing="split")).prepare(costs)
    gateway = {"gateway": "vtc", "saturation": "concurrency"}
    with pytest.raises(
        UsageError,
        match=(
            r"\.charge: GPU time is not supported in a gateway, which does not know the time "
            "of iterations; leave charge out"
        ),
    ):
        simulate(small_spec("lpm", "chat", flags=gateway, vtc__charge="gpu-time"))
    with pytest.raises(
        UsageError, match="not supported, because this scheduler charges by its cost function"
    ):
        simulate(charging("vtc-predict"))


@pytest.mark.parametrize(
    ("charge", "more"),
    [("input", {}), ("gpu-time", {}), ("gpu-time", {"routers": 2})],
    ids=["input", "gpu-time", "of-two-routers"],
)
def test_the_gpu_time_of_each_request_is_counted_if_its_router_asks_for_it(charge, more):
    flags = {"num_programs": 2, "scheduler": "d2lpm"} | more
    simulation = ran(small_spec("d2lpm", "chat", dp=2, flags=flags, d2lpm__charge=charge))
    workers = simulation.cluster.workers
    assert simulation.router.wants_gpu_time == (charge == "gpu-time")
    assert {worker.batch.times_requests for worker in workers} == {charge == "gpu-time"}
    assert any(worker.batch._time.each > 0 for worker in workers) == (charge == "gpu-time")


def test_a_router_with_a_method_for_gpu_time_asks_for_it():
    class Hearing(RoundRobin):
        def on_gpu_time(self, request, worker, gpu_s):
            self.heard_s = gpu_s

    assert Hearing(RoundRobin.Params(), 1).wants_gpu_time
    assert not RoundRobin(RoundRobin.Params(), 1).wants_gpu_time
    assert rerouting(Hearing(RoundRobin.Params(), 1)).wants_gpu_time
