"""Test that requests and faults leave nothing in a router once its caches are empty.

The test counts all objects that can be reached from the dispatcher, not MiB.
"""

import gc
import random
import types
from array import array

import pytest

from fairbench.schedulers.base import Setup
from fairbench.schedulers.registry import build_router
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.ingress import AttemptFailure

WORKERS, CLIENTS, POOL = 4, 20, 2_000
PAGE_TOKENS = 16
ROUND = 1_200  # requests, with every fault at every worker
ROUNDS = 4
FEW = 12  # a number of objects smaller than the faults of a round

NO_DATA = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def reachable(root):
    """Return the number of objects that can be reached from an object, excluding code."""
    seen, left = {id(root)}, [root]
    while left:
        for one in gc.get_referents(left.pop()):
            if id(one) not in seen and not isinstance(one, NO_DATA):
                seen.add(id(one))
                left.append(one)
    return len(seen)


class Crowd:
    """Clients whose requests are independent programs, with faults in between."""

    def __init__(self, name):
        self.draw, self.router = random.Random(name), build_router(name, {}, WORKERS)
        self.at_s, self.sent, self.flights = 0.0, 0, []
        self.home = Dispatcher(
            self.router,
            WORKERS,
            POOL,
            lambda: self.at_s,
            page_tokens=PAGE_TOKENS,
            followed=range(0, WORKERS, 2),
        )
        self.router.prepare(Setup(pool_tokens=POOL, fleet=self.home))

    def round(self):
        """Send a round's requests with its faults, and empty the caches. Return the objects."""
        for number in range(ROUND):
            self.at_s += 0.02
            self.send()
            if len(self.flights) > 8:
                self.end(self.flights.pop(0))
            if number % 100 == 99:
                self.fault(number // 100 % WORKERS, number // 400)
        while self.flights:
            self.end(self.flights.pop())
        for worker in range(WORKERS):
            self.home.forget_cache(worker)
        return reachable(self.home)

    def send(self):
        shared = [self.draw.randrange(8)] * 64
        ids = array("I", shared + self.draw.choices(range(16, 32_000), k=self.draw.randint(1, 120)))
        self.sent += 1
        client = f"client-{self.draw.randrange(CLIENTS)}"
        request = self.home.make_request(client, ids, 12, self.sent, 0)
        self.flights.append(self.home.dispatch(request))

    def end(self, flight):
        self.home.began(flight)
        failed = self.draw.random() < 0.05
        self.home.finish(flight, 0 if failed else 8, failed=failed)
        self.home.close_request(flight.request)

    def fault(self, worker, kind):
        """Kill and restart the worker, lose events, or stop following it for a while."""
        if kind == 0:
            lost = [one for one in self.flights if one.worker == worker]
            for flight in lost:
                flight.on_lost = lambda _: None
            self.home.leave(worker, AttemptFailure.DIED)
            self.home.forget_cache(worker)
            self.home.join(worker)
        elif kind == 1:
            self.home.forget_cache(worker)
        else:
            self.home.follow(worker, False)
            self.home.follow(worker, True)


@pytest.mark.parametrize("name", ["fair-finish", "d2lpm", "least-loaded"])
def test_requests_and_faults_leave_no_objects_behind(name):
    crowd = Crowd(name)
    counts = [crowd.round() for _ in range(ROUNDS)]
    assert max(counts[ROUNDS // 2 :]) < max(counts[: ROUNDS // 2]) + FEW, counts
