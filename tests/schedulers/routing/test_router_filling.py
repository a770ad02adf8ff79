"""Test ``d2lpm.fill_below``: a worker that joins or idles gets work while others queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.parts.fleet import QUEUES_FROM
from fairbench.schedulers.routing.d2lpm import D2LPM
from tests.schedulers.routing.router_helpers import answer, request

QUANTUM = 10_000
DOCUMENT = ("document", 100)


def make(workers=2, **params):
    return D2LPM(D2LPM.Params(**{"worker_quantum": QUANTUM, **params}), workers)


def flood(router, count, *, first=0, client="a"):
    """Return the workers of requests for one document, none of which ends."""
    made = [request(n, client, DOCUMENT, (f"q{n}", 1)) for n in range(first, first + count)]
    return [router.route(one, 0.0) for one in made]


@pytest.mark.parametrize("params", [{}, {"fill_below": 0}])
def test_in_the_published_form_a_new_worker_gets_no_requests_while_there_is_credit_elsewhere(
    params,
):
    router = make(1, **params)
    flood(router, 30)
    router.on_worker_join(1, 0.0)
    assert router.credit["a"][1] == 0
    assert flood(router, 60, first=30) == [0] * 60  # 90 x 101 tokens of 10,000


def test_a_new_worker_is_filled_and_then_shares_the_prefix():
    router = make(1, fill_below=2)
    flood(router, 30)
    router.on_worker_join(1, 0.0)
    assert router.credit["a"][1] == QUANTUM
    # It is filled up to two requests; from its first request on it holds the document as well, and
    # the shorter queue of the two holders wins.
    assert flood(router, 20, first=30) == [1] * 20


def test_a_worker_is_filled_only_while_the_chosen_one_queues():
    router = make(2, fill_below=2)
    assert flood(router, QUEUES_FROM * 2) == [0] * QUEUES_FROM * 2
    assert flood(router, 1, first=50) == [1]


def test_credit_is_respected_at_an_idle_worker():
    router = make(1, fill_below=2)
    flood(router, 20)
    router.on_worker_join(1, 0.0)
    router.credit["a"][1] = 0.0
    assert set(flood(router, 5, first=50)) == {0}
    assert flood(router, 1, first=60, client="b") == [1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["route", "route", "route", "finish", "leave", "join"]),
            st.integers(0, 99),
        ),
        max_size=80,
    ),
    st.integers(1, 3),
    st.integers(20, 200),
)
def test_no_credit_leaves_the_range_of_algorithm_2(steps, below, quantum):
    """A credit is at most a quantum, and its debt at most a prompt and the outputs there."""
    router = make(3, fill_below=below, worker_quantum=quantum)
    running, outputs, live = [], dict.fromkeys(range(3), 0), {0, 1, 2}
    for number, (what, draw) in enumerate(steps):
        if what == "route":
            sent = request(number, "xyz"[draw % 3], (f"d{draw % 4}", 15), (f"q{number}", 1))
            worker = router.route(sent, 0.0)
            assert worker in live
            running.append((sent, worker))
        elif what == "finish" and running:
            sent, worker = running.pop(draw % len(running))
            router.on_finish(sent, worker, answer(draw % 7), 0.0)
            outputs[worker] += draw % 7
        elif what == "leave" and len(live) > 1:
            worker = sorted(live)[draw % len(live)]
            live.discard(worker)
            router.on_worker_leave(worker, 0.0)
        elif what == "join" and len(live) < 3:
            worker = min({0, 1, 2} - live)
            live.add(worker)
            router.on_worker_join(worker, 0.0)
        for credit in router.credit.values():
            assert set(credit) == live
            assert all(-16 - 2 * outputs[w] < left <= quantum for w, left in credit.items())
