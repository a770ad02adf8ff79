"""Queues before the simulated cluster: routers that hold requests, and gateways."""

from dataclasses import replace

import pytest
from sim_helpers import small_spec

from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.queue import GatewayQueue
from fairbench.schedulers.gateway.room import InFlightLimit
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.routing.least_loaded import LeastLoaded
from fairbench.sim.fleet import SimFleet
from fairbench.sim.ingress import Ingress
from fairbench.sim.run import Simulation, source_of
from invariants import check_all


class Choosy(Router):
    """At most ``limit`` requests at each worker; the first that has a place."""

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
    spec = small_spec("fcfs", "chat", dp=2, flags={"num_programs": 6, "request_rate": 50.0})
    return Simulation(spec, spec.client_plans(), source_of(spec), **kwargs)


def held_by(router):
    """A simulation behind this router instead of its own."""
    made = simulation()
    workers = made.cluster.workers
    made.router = made.cluster.router = router
    router.prepare(replace(made.setup, fleet=SimFleet(workers)))
    made.cluster.ingress = Ingress.of_router(made.clock, router, workers)
    return made


def test_a_router_may_hold_requests_until_something_changes():
    router = Choosy()
    made = held_by(router)
    assert made.run()
    result = made.result(True, None)
    assert result.summary["completed"] == result.summary["num_requests"] > 20
    assert router.most == 3
    assert router.asked > result.summary["num_requests"]
    assert router.sent == sorted(router.sent)  # numbered as they arrived


def test_what_is_held_at_the_end_is_recorded_without_a_worker():
    class Closed(Choosy):
        limit = 0

    made = held_by(Closed())
    made.run()
    result = made.result(True, None)
    requests = result.requests
    assert len(requests["worker"])
    assert (requests["worker"] == -1).all()
    assert result.summary["failed"] == result.summary["num_requests"]


@pytest.mark.parametrize("make", [lambda: VTC(VTC.Params()), lambda: DLPM(DLPM.Params())])
def test_a_gateway_drives_any_local_scheduler_and_fills_the_cluster_to_its_limit(make):
    made = simulation()
    workers = made.cluster.workers
    fleet = SimFleet(workers)
    queue = GatewayQueue(make(), LeastLoaded(LeastLoaded.Params(), 2), InFlightLimit(4, fleet))
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
    # Everything was charged: input at release, outputs at the end.
    requests = result.requests
    charged = int(requests["input_tokens"].sum() + 2 * requests["output_tokens"].sum())
    if isinstance(queue.scheduler, VTC):
        assert sum(queue.scheduler.counters.values()) >= charged


def test_without_a_queue_nothing_changes():
    made = simulation()
    assert made.cluster.ingress is None
    made.run()
    check_all(made.result(True, None))
