"""Test how many requests must wait at an engine whose gateway learns late that an answer ended.

The engine produces one token per step.
"""

import random
from collections import Counter, deque
from itertools import islice

import pytest

from tests.schedulers.gateway.gateway_helpers import Desk

LATE = 5  # mean number of steps from an answer's end until the next request can arrive
PROMPT, OUTPUT, SPREAD = 48, 64, 32
STEPS = {4: 6_000, 64: 1_000}  # steps of a run, by number of places


class Engine:
    """A first-come, first-served engine with ``places`` slots. Clients send again immediately.

    ``filled`` is the used fraction of its slots, and ``waited`` the most requests in its own queue.
    """

    def __init__(self, desk, places, clients):
        self.desk, self.places = desk, places
        self.random = random.Random(1)
        self.waiting, self.running, self.ended = deque(), {}, []
        self.served, self.used, self.waited, self.seen = Counter(), 0, 0, 0
        for client, number in clients.items():
            for _ in range(number):
                desk.arrive(client, PROMPT)

    def run(self, steps):
        for now in range(steps):
            for end in [end for end in self.ended if end[0] <= now]:
                self.ended.remove(end)
                self.hear(*end[1:])
            self.step(now)
        self.filled = self.used / steps / self.places
        return self

    def hear(self, request, output):
        self.served[request.client] += PROMPT + output
        self.desk.answer(request, output)
        self.desk.arrive(request.client, PROMPT)

    def step(self, now):
        arrived = list(islice(self.desk.sent, self.seen, None))
        self.seen += len(arrived)
        self.waiting.extend(arrived)
        while self.waiting and len(self.running) < self.places:
            output = OUTPUT + self.random.randint(-SPREAD, SPREAD)
            self.running[self.waiting.popleft()] = [output, output]
        self.used += len(self.running)
        self.waited = max(self.waited, len(self.waiting))
        for request, left in list(self.running.items()):
            left[0] -= 1
            if not left[0]:
                del self.running[request]
                heard = now + 1 + self.random.expovariate(1 / LATE)
                self.ended.append((heard, request, left[1]))

    @property
    def modest_share(self):
        return self.served["modest"] / self.served.total()


def engine(policy, places, headroom, outputs="ahead", **settings):
    """Run the requests of a heavy and a well-behaved client, to each of which half is due."""
    desk = Desk(
        policy, concurrency__requests=places, concurrency__headroom=headroom,
        gateway__outputs=outputs, **settings,
    )  # fmt: skip
    return Engine(desk, places, {"flooder": 8 * places, "modest": places}).run(STEPS[places])


@pytest.mark.parametrize(("places", "headroom"), [(4, 1), (64, 4)])
def test_a_few_requests_waiting_at_the_engine_keep_its_slots_full(places, headroom):
    """Without waiting requests, a slot is empty for 5 of 64 steps."""
    exact, more = (engine("vtc", places, room) for room in (0, headroom))
    assert exact.filled < 0.95
    assert more.filled > 0.97
    assert (exact.waited, more.waited) == (0, headroom)


POLICIES = [("vtc", {}), ("lcf", {}), ("wfq", {}), ("dlpm", {"dlpm__quantum": 176})]


@pytest.mark.parametrize(("policy", "settings"), POLICIES)
def test_the_modest_client_keeps_its_share(policy, settings):
    assert engine(policy, 4, 1, **settings).modest_share > 0.9 / 2


def test_an_engine_with_many_slots_stays_full_too():
    assert engine("vtc", 64, 4).modest_share > 0.9 / 2


@pytest.mark.parametrize(("policy", "settings"), [POLICIES[0], POLICIES[3]])
def test_charging_outputs_at_the_end_costs_a_client_with_few_requests_its_share(policy, settings):
    """A client whose requests are all dispatched has none waiting, so its counter is lifted."""
    assert engine(policy, 4, 1, "end", **settings).modest_share < 0.88 / 2
