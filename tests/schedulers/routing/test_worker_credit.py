"""Test that sparse credits equal credits stored for each worker."""

import gc
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.accounts.account import rounds_to_credit
from fairbench.schedulers.base import Setup
from fairbench.schedulers.parts import worker_credits
from fairbench.schedulers.parts.fleet import as_bits, members
from fairbench.schedulers.parts.worker_credits import WorkerCredit
from fairbench.schedulers.routing import d2lpm
from tests.schedulers.routing.router_helpers import answer, request
from tests.strategies import examples

WORKERS = 6


class Dense(dict):
    """An oracle with a number for each worker."""

    def __init__(self, workers):
        super().__init__(dict.fromkeys(members(workers), 0.0))

    @property
    def positive(self):
        return as_bits(worker for worker, left in self.items() if left > 0)

    def total(self):
        return sum(self.values())

    def spend(self, worker, cost):
        self[worker] -= cost

    def refill(self, quantum, available):
        rounds = min(rounds_to_credit(self[worker], quantum) for worker in members(available))
        for worker, left in self.items():
            if left <= 0:
                self[worker] = left + min(rounds, rounds_to_credit(left, quantum)) * quantum
        return rounds

    def shift(self, more, less):
        for worker in self:
            self[worker] += more - less.get(worker, 0.0)

    def cap(self, most):
        for worker in self:
            self[worker] = min(self[worker], most)


workers = st.integers(0, WORKERS - 1)
amounts = st.one_of(st.integers(-90, 90), st.floats(-90, 90))
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("spend"), workers, st.one_of(st.integers(0, 90), st.floats(0, 90))),
        st.tuples(st.just("refill"), st.sets(workers, min_size=1)),
        st.tuples(st.just("shift"), amounts, st.dictionaries(workers, amounts)),
        st.tuples(st.just("cap"), amounts),
        st.tuples(st.just("join"), workers),
        st.tuples(st.just("leave"), workers),
    ),
    max_size=40,
)


def change(credit, quantum, what, *more):
    """Apply one change; return its result."""
    if what == "spend" and more[0] in credit:
        credit[more[0]] -= more[1]
    elif what == "refill":
        available = as_bits(more[0] & set(credit))
        if available and not available & credit.positive:
            return credit.refill(quantum, available)
    elif what == "shift":
        credit.shift(*more)
    elif what == "cap":
        credit.cap(*more)
    elif what == "join":
        credit[more[0]] = 0.0
    elif what == "leave" and more[0] in credit:
        del credit[more[0]]
    return None


@given(CHANGES, st.one_of(st.integers(1, 60), st.floats(0.1, 60)))
def test_each_credit_equals_a_number_stored_for_each_worker(changes, quantum):
    everyone = (1 << WORKERS) - 1
    credit, dense = WorkerCredit(everyone), Dense(everyone)
    for one in changes:
        assert change(credit, quantum, *one) == change(dense, quantum, *one)
        assert credit == dense  # to the last bit
        assert len(credit) == len(dense)
        assert credit.positive == dense.positive
        assert credit.total() == pytest.approx(dense.total())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("route"), st.integers(0, 1), st.sampled_from("abc"), st.integers(1, 90)),
        st.tuples(st.just("end"), st.integers(0, 99), st.integers(0, 60)),
        st.tuples(st.just("fail"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("tell"), st.integers(0, 1)),
        st.tuples(st.sampled_from(["join", "leave"]), workers),
    ),
    max_size=60,
)


def play(steps, quantum, weights):
    """Return all decisions and credits of two routers that exchange their charges."""
    made = [d2lpm.D2LPM(d2lpm.D2LPM.Params(worker_quantum=quantum), WORKERS) for _ in range(2)]
    for one in made:
        one.prepare(Setup(tuple(weights), weights))
        one.join_peers()
    flights, up, went = [], set(range(WORKERS)), []
    for number, (what, which, *more) in enumerate(steps):
        if what == "route":
            client, tokens = more
            sent = request(number, client, (f"p{tokens % 7}", 9), (f"t{number}", tokens))
            went.append(made[which].route(sent, 0.0))
            flights.append((made[which], sent, went[-1]))
        elif what in ("end", "fail") and flights:
            router, sent, worker = flights.pop(which % len(flights))
            if what == "fail":
                router.on_failure(sent, worker, 0.0)
            else:
                router.on_finish(sent, worker, answer(more[0]), 0.0)
        elif what == "tell":
            made[1 - which].merge_totals(str(which), made[which].export_totals(), 0.0)
        elif what == "join" or (what == "leave" and up - {which}):
            (up.add if what == "join" else up.discard)(which)
            for one in made:
                (one.on_worker_join if what == "join" else one.on_worker_leave)(which, 0.0)
    return went, [{client: dict(of) for client, of in one.credit.items()} for one in made]


@examples(200)
@given(
    STEPS,
    st.integers(1, 80),
    st.fixed_dictionaries({client: st.floats(0.1, 3) for client in "abc"}),
)
def test_decisions_equal_those_with_a_number_for_each_worker(steps, quantum, weights):
    """Equality holds to the last bit, also for fractional quanta and exchanged sums."""
    kept = play(steps, quantum, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_credits, "WorkerCredit", Dense)
        assert play(steps, quantum, weights) == kept


def test_a_worker_without_requests_of_a_client_costs_no_memory():
    """10,000 clients at 1,000 workers take little memory and little work for garbage collection."""

    def held(workers):
        credit = WorkerCredit((1 << workers) - 1)
        credit.refill(40_000, (1 << workers) - 1)
        for worker in range(3):
            credit[worker] -= 500
        parts = gc.get_referents(credit)
        return sys.getsizeof(credit) + sum(map(sys.getsizeof, parts))

    # one bit, instead of a number, in three sets of workers
    assert held(1000) < held(10) + 3 * 1000 / 7
