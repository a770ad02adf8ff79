"""Test queues before the simulated cluster: routers that queue requests, and gateways."""

from dataclasses import replace

import numpy as np
import pytest

from fairbench.results.run_facts import cluster_bound
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.gateway.queue import GatewayQueue
from fairbench.schedulers.gateway.saturation import Concurrency
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.rpm import RPM
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.local.vtc_predict import PredictiveVTC
from fairbench.schedulers.peers import Totals
from fairbench.schedulers.routing.least_loaded import LeastLoaded
from fairbench.sim.front import SimFleet
from fairbench.sim.ingress import Ingress, Peer, Unheard
from fairbench.sim.run import Simulation
from tests.invariants import check_all
from tests.sim.sim_helpers import small_spec


class Choosy(Router):
    """A router that allows ``limit`` requests at each worker and picks the first free worker."""

    name = "choosy"
    holds = True
    limit = 3

    def __init__(self):
        self.asked = 0
        self.most = 0
        self.sent = []

    def route(self, request, now_s):
        self.asked += 1
        for worker in self.setup.fleet.workers():
            load = self.setup.fleet.load(worker)
            self.most = max(self.most, load.in_flight)
            assert load.in_flight == load.queued + load.running
            assert (load.tokens > 0) == (load.running > 0)
            if load.in_flight < self.limit:
                self.sent.append(request.request_id)
                return worker
        return None


def simulation(**kwargs):
    # The profile has no HTTP or tokenizer, so requests reach the engine without delay.
    flags = {"num_programs": 6, "request_rate": 50.0, "gpu": "a100-80gb/llama-3.1-8b/tp1/sglang"}
    spec = small_spec("fcfs", "chat", dp=2, flags=flags)
    return Simulation(spec, spec.client_plans(), spec.source(), **kwargs)


def limit(requests, fleet):
    detector = Concurrency(Concurrency.Params(requests=requests))
    detector.prepare(Setup(fleet=fleet))
    return detector


def held_by(router):
    """Return a simulation behind this router instead of its own."""
    made = simulation()
    workers = made.cluster.workers
    made.router = made.cluster.router = router
    router.prepare(replace(made.setup, fleet=SimFleet(workers)))
    made.cluster.ingress = Ingress.of_router(made.clock, router, workers)
    return made


def test_a_router_may_hold_requests_until_an_event():
    router = Choosy()
    made = held_by(router)
    assert made.run()
    result = made.result(True, None)
    assert result.summary["completed"] == result.summary["num_requests"] > 20
    assert router.most == 3
    assert router.asked > result.summary["num_requests"]
    assert router.sent == sorted(router.sent)  # numbered in order of arrival


def test_requests_queued_at_the_end_are_recorded_without_a_worker():
    class Closed(Choosy):
        limit = 0

    made = held_by(Closed())
    made.run()
    result = made.result(True, None)
    requests = result.requests
    assert len(requests["worker"])
    assert (requests["worker"] == -1).all()
    assert result.summary["unfinished"] == result.summary["num_requests"]


@pytest.mark.parametrize("make", [lambda: VTC(VTC.Params()), lambda: DLPM(DLPM.Params())])
def test_a_gateway_drives_any_local_scheduler_and_fills_the_cluster_to_its_limit(make):
    made = simulation()
    workers = made.cluster.workers
    fleet = SimFleet(workers)
    queue = GatewayQueue(make(), LeastLoaded(LeastLoaded.Params(), 2), limit(4, fleet))
    made.router = made.cluster.router = queue._router
    made.cluster.ingress = Ingress(made.clock, workers, queue)
    most = 0
    step = made.clock.step

    def checked():
        nonlocal most
        step()
        most = max(most, sum(fleet.load(worker).in_flight for worker in range(2)))

    made.clock.step = checked
    assert made.run()
    result = made.result(True, None)
    assert most == 8
    assert not len(queue)
    assert result.summary["completed"] == result.summary["num_requests"]


def test_without_a_queue_nothing_changes():
    made = simulation()
    assert made.cluster.ingress is None
    made.run()
    check_all(made.result(True, None))


class Recording(VTC):
    """A router that records what a gateway tells it, in order."""

    def __init__(self):
        super().__init__(VTC.Params())
        self.heard = []

    def on_arrival(self, request, view, now_s):
        self.heard.append(("arrival", request.program_id, request.depth, now_s))
        super().on_arrival(request, view, now_s)

    def on_finish(self, request):
        self.heard.append(("finish", request.program_id, request.depth))
        super().on_finish(request)


def behind_gateway(scheduler):
    made = simulation()
    workers = made.cluster.workers
    made.router = made.cluster.router = LeastLoaded(LeastLoaded.Params(), 2)
    queue = GatewayQueue(scheduler, made.router, limit(4, SimFleet(workers)))
    made.cluster.ingress = Ingress(made.clock, workers, queue)
    return made


@pytest.mark.parametrize(
    "scheduler",
    [
        VTC(VTC.Params(lift="none")),
        PredictiveVTC(PredictiveVTC.Params(lift="none", predictor="oracle", error=0.5)),
    ],
)
def test_a_gateway_charges_exactly_inputs_and_outputs(scheduler):
    # Without a lift, a counter is the client's total charge: its input and output tokens.
    made = behind_gateway(scheduler)
    assert made.run()
    while made.clock.next_ps() is not None:  # the router does not know of the last end yet
        made.clock.step()
    table = made.result(True, None).requests
    clients = np.array(table["client"].to_pylist())
    service = table["input_tokens"] + 2 * table["output_tokens"]
    assert len(scheduler.counters) > 1
    for client, counter in scheduler.counters.items():
        assert counter == service[clients == client].sum()


def test_a_gateway_learns_of_an_end_before_its_consequences():
    scheduler = Recording()
    made = behind_gateway(scheduler)
    assert made.run()
    order = {event[:3]: number for number, event in enumerate(scheduler.heard)}
    follow_ups = [event for event in order if event[0] == "arrival" and event[2] > 0]
    assert follow_ups
    for _, program, depth in follow_ups:
        assert order["finish", program, depth - 1] < order["arrival", program, depth]


def test_a_router_that_holds_one_client_does_not_hold_the_others():
    class Picky(Choosy):
        def route(self, request, now_s):
            return None if request.client == "client-0" else 0

    made = held_by(Picky())
    made.run()
    result = made.result(True, None)
    done = {row["client"]: row["programs"] for row in result.summary["clients"]}
    status = result.requests["status"].to_pylist()
    clients = result.requests["client"].to_pylist()
    finished = {c for c, s in zip(clients, status, strict=True) if s == "finished"}
    assert finished == set(done) - {"client-0"}


def test_a_rate_limit_before_the_cluster_refuses():
    made = behind_gateway(RPM(RPM.Params(limit=1)))
    made.run()
    summary = made.result(True, None).summary
    assert summary["refused"] > 0
    assert summary["completed"] + summary["refused"] == summary["num_requests"]


def test_a_policy_before_the_cluster_may_wait_for_its_time():
    class Late(VTC):
        work_conserving = False

        def select(self, view, now_s):
            if now_s >= 30:
                yield from super().select(view, now_s)

        def wake_s(self, view, now_s):
            return 30.0 if now_s < 30 else None

    made = behind_gateway(Late(VTC.Params()))
    made.run()
    admitted = made.result(True, None).requests["admitted_s"]
    assert admitted.min() == 30.0


def test_no_bound_is_claimed_where_requests_are_held_back():
    bound, reason = cluster_bound(Choosy(), VTC(VTC.Params()), 1)
    assert bound is None
    assert reason == "choosy queues requests, where vtc does not see them"


def test_the_charges_that_a_router_has_not_heard_add_up_over_all_other_routers():
    class Part:
        """The sums of a router in one place, and the latest sums that it has heard of others."""

        def __init__(self, charged, heard=()):
            self._charged = {"x": {0: charged}, "y": {0: 1.0}}
            self._heard = {origin: Totals(1, {"x": {0: sum_}}, {}) for origin, sum_ in heard}

        def charged_totals(self):
            return self._charged

        def heard_totals(self):
            return self._heard

    parts = [Part(100.0, [("1", 2.0)]), Part(5.0), Part(7.0), Part(4.0, [("0", 100.0)])]
    unheard = Unheard([Peer([part], lambda: None) for part in parts])
    unheard.measure(0)
    assert unheard.tokens == (5 - 2) + 7 + 4
    unheard.measure(3)  # less is unheard there: 5 + 7 and nothing of router 0
    assert unheard.tokens == 14
