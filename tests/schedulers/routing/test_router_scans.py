"""Test that routers with sets of workers decide like a loop over all workers."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.parts.fleet import as_bits, members
from fairbench.schedulers.routing.d2lpm import D2LPM
from fairbench.schedulers.routing.least_loaded import LeastLoaded
from fairbench_studies.preble.memserve import MemServe
from tests.schedulers.routing.router_helpers import answer, request
from tests.strategies import examples

WORKERS = 5


def go_over(router, candidates):
    """Return the least loaded worker of a set, by the number of requests in flight at each."""
    fleet = router._fleet
    return fleet.cheapest({w: fleet.unfinished_at(w) for w in fleet.workers if candidates >> w & 1})


class ScanningLeastLoaded(LeastLoaded):
    def __init__(self, params, workers):
        super().__init__(params, workers)
        self._fleet.least_loaded = lambda candidates: go_over(self, candidates)


class ScanningMemServe(MemServe):
    def __init__(self, params, workers):
        super().__init__(params, workers)
        self._fleet.least_loaded = lambda candidates: go_over(self, candidates)


class ScanningD2LPM(D2LPM):
    """D2LPM by lines 3 to 8 as printed, which lists the workers in credit for every request."""

    def __init__(self, params, workers):
        super().__init__(params, workers)
        self.credits.available = self._available

    def _available(self, client):
        within = self._fleet.workers
        for node in self.credits.nodes(client):
            credit = self.credits.credit_of(node)
            available = [worker for worker in within if credit[worker] > 0]
            if not available:
                credit.refill(self.credits.quantum_of(node), as_bits(within))
                available = [worker for worker in within if credit[worker] > 0]
            within = available
        return as_bits(within)

    def _select(self, available, preferred):
        return go_over(self, available & preferred or available)


ROUTERS = [
    (LeastLoaded, ScanningLeastLoaded, {}),
    (MemServe, ScanningMemServe, {}),
    (D2LPM, ScanningD2LPM, {"worker_quantum": 20}),
    (D2LPM, ScanningD2LPM, {"worker_quantum": 50, "charge": "uncached"}),
    (D2LPM, ScanningD2LPM, {"worker_quantum": 30, "tenants": "tree"}),
]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("route"),
            st.sampled_from(["a/x", "a/y", "b/x", "c"]),
            st.sampled_from("pqr"),
            st.integers(1, 40),
        ),
        st.tuples(st.sampled_from(["finish", "fail"]), st.integers(0, 9), st.integers(0, 30)),
        st.tuples(st.sampled_from(["join", "leave"]), st.integers(0, WORKERS + 1)),
    ),
    max_size=80,
)


def play(router, steps):
    """Return the worker of every request."""
    sent, up, went = [], set(range(WORKERS)), []
    for number, (what, *more) in enumerate(steps):
        if what == "route":
            client, key, tokens = more
            made = request(number, client, ("system", 4), (key, tokens))
            sent.append((made, router.route(made, 0.0)))
            went.append(sent[-1][1])
        elif what in ("finish", "fail") and sent:
            made, worker = sent.pop(more[0] % len(sent))
            if what == "finish":
                router.on_finish(made, worker, answer(more[1]), 0.0)
            elif hasattr(router, "on_failure"):
                router.on_failure(made, worker, 0.0)
        elif what == "join":
            up.add(more[0])
            router.on_worker_join(more[0], 0.0)
        elif what == "leave" and len(up - {more[0]}) > 0:
            up.discard(more[0])
            router.on_worker_leave(more[0], 0.0)
    return went


@examples(200)
@given(st.sampled_from(ROUTERS), STEPS)
def test_decisions_equal_those_of_a_scan(router, steps):
    kept, scanning, params = router
    one, other = kept(kept.Params(**params), WORKERS), scanning(kept.Params(**params), WORKERS)
    assert play(one, steps) == play(other, steps)
    if isinstance(one, D2LPM):
        assert one.credit == other.credit
        for credit in one.credit.values():
            assert set(members(credit.positive)) == {w for w, left in credit.items() if left > 0}


@given(st.sets(st.integers(0, 200)))
def test_a_set_of_workers_iterates_in_order(workers):
    assert list(members(as_bits(workers))) == sorted(workers)
