"""Test earliest deadline first: by hand, and against every possible order."""

from itertools import permutations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Setup
from fairbench.schedulers.local.edf import EDF
from fairbench.schedulers.output_lengths import MAX_CLIENTS, MeanAnswers
from fairbench.schedulers.views import ListView, Running
from tests.schedulers.local.local_server import Server
from tests.strategies import examples


class Costs:
    """Costs: a prompt token takes 1 s, and a decode step of any batch 0.1 s."""

    def prefill_s(self, cached_tokens, new_tokens):
        return float(new_tokens)

    def decode_step_s(self, requests, context_tokens):
        return 0.1


def edf(**params):
    scheduler = EDF(EDF.Params(**params))
    scheduler.prepare(Setup(costs=Costs()))
    return scheduler


def request(number, tokens=1, first=None, end=None, new=1, at_s=0.0):
    prompt = (Segment(f"p{number}", tokens),)
    return Request(number, "a", number, 0, prompt, tokens, new, at_s, end, first_token_by_s=first)


def served(scheduler, requests):
    """Run prefills one after the other. Return their order, and which first tokens were in time."""
    queue, now_s, order, in_time = [], 0.0, [], set()
    view = ListView(queue, lambda request: 0)
    for one in requests:
        scheduler.on_arrival(one, view, now_s)
        view.enter(one)
    while queue:
        chosen = first_choice(scheduler, view, now_s)
        queue.remove(chosen)
        scheduler.on_admitted(chosen, chosen.input_tokens, False)
        now_s += chosen.input_tokens
        order.append(chosen.request_id)
        if chosen.first_token_by_s is None or now_s <= chosen.first_token_by_s:
            in_time.add(chosen.request_id)
        scheduler.on_finish(chosen)
    return order, in_time


def first_choice(scheduler, view, now_s):
    """Return the request that the scheduler would admit next."""
    selection = scheduler.select(view, now_s)
    chosen = next(selection)
    selection.close()
    return chosen


@pytest.mark.parametrize(
    ("requests", "order"),
    [
        ([request(0, first=9.0), request(1, first=5.0), request(2, first=7.0)], [1, 2, 0]),
        ([request(0, first=5.0), request(1, first=5.0)], [0, 1]),  # ties in order of arrival
        ([request(0, end=50.0), request(1, first=20.0)], [1, 0]),
        # 101 tokens take ten seconds after the first one, which is then due at 19
        ([request(0, first=20.0), request(1, end=29.0, new=101)], [1, 0]),
        # The first request can no longer be in time, and would make the second late.
        ([request(0, tokens=10, first=8.0), request(1, tokens=10, first=12.0)], [1, 0]),
        # without a deadline, a request is due 30 s after its arrival
        ([request(0), request(1, first=25.0), request(2, first=31.0)], [1, 0, 2]),
    ],
)
def test_the_order_equals_a_hand_computed_one(requests, order):
    assert served(edf(), requests)[0] == order


def test_long_waiting_requests_go_first_in_order_of_arrival():
    scheduler, queue = edf(aging_s=10.0), []
    view = ListView(queue, lambda request: 0)
    old = [request(0, first=-5.0, at_s=1.0), request(1, first=-9.0, at_s=0.0)]
    for one in (request(2, first=15.0, at_s=9.0), *old):
        scheduler.on_arrival(one, view, one.arrival_s)
        view.enter(one)
    assert first_choice(scheduler, view, 9.5).request_id == 2
    # late if the limit of ten seconds did not apply
    assert first_choice(scheduler, view, 10.0).request_id == 1
    queue.remove(old[1])
    assert first_choice(scheduler, view, 11.0).request_id == 0


JOBS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 16)), min_size=1, max_size=5)


@given(JOBS)
@examples(60)
def test_edf_meets_every_feasible_set(jobs):
    requests = [request(i, tokens, first=float(due)) for i, (tokens, due) in enumerate(jobs)]
    _, in_time = served(edf(), requests)
    best = max(kept(order, jobs) for order in permutations(range(len(jobs))))
    assume(best == len(jobs))
    assert len(in_time) == best


def kept(order, jobs):
    """Return how many requests are in time in this order."""
    now = count = 0
    for index in order:
        tokens, due = jobs[index]
        now += tokens
        count += now <= due
    return count


def test_without_costs_only_deadlines_decide():
    home = Server(EDF(EDF.Params()), slots=1)
    for one in (request(0, first=9.0), request(1, first=3.0), request(2, end=5.0, new=2)):
        home.arrive(one)
    home.run_pass()
    home.run(10)
    assert [one.request_id for one in home.admitted] == [1, 2, 0]


def test_lengths_are_forgotten_for_the_clients_seen_longest_ago():
    lengths = MeanAnswers()

    def of(client):
        return Request(0, client, 0, 0, (), 1, 100, 0.0)

    lengths.learn("known", 3)
    for number in range(MAX_CLIENTS - 1):
        lengths.learn(f"client-{number}", 5)
    lengths.learn("known", 3)
    lengths.learn("new", 5)
    assert [lengths.expected_total(of(name), 0) for name in ("known", "new", "client-0")] == [
        3,
        5,
        100,
    ]


def test_requests_that_cannot_be_in_time_go_first_by_the_current_time():
    scheduler = edf()
    late, early = request(0, tokens=2, end=10.0, new=50), request(1, tokens=2, end=90.0, new=50)
    view = ListView([], lambda request: 0)
    for one in (late, early):
        scheduler.on_arrival(one, view, 0.0)
        scheduler.on_admitted(one, 2, False)
    running = [Running(one, 2, 4, 48) for one in (late, early)]
    assert scheduler.retraction_order(running, 0.0) == [early, late]
    assert scheduler.retraction_order(running, 20.0) == [late, early]
