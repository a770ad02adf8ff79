"""Test Niyama: orders of a few requests by hand, and the effects of relegation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Setup
from fairbench_rivals.local.niyama import Niyama
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_server import Server
from tests.strategies import examples


class Costs:
    """Costs: a prompt token takes 0.01 s."""

    def prefill_s(self, cached_tokens, new_tokens):
        return new_tokens / 100

    def decode_step_s(self, requests, context_tokens):
        return 0.1


def niyama(costs=True, **params):
    scheduler = Niyama(Niyama.Params(**params))
    scheduler.prepare(Setup(costs=Costs() if costs else None))
    return scheduler


def request(number, tokens=100, first=None, end=None, *, client="a", new=1000, at_s=0.0):
    prompt = (Segment(f"p{number}", tokens),)
    return Request(number, client, number, 0, prompt, tokens, new, at_s, end,
                   first_token_by_s=first)  # fmt: skip


def order(scheduler, *requests, at_most=None):
    desk = Desk(scheduler)
    desk.arrive(*requests)
    return [one.request_id for one in desk.run_pass(at_most=at_most or 100)]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        # at 8 ms per token, due at 20 + 0.8, 18 + 4 and 19 + 0.8
        ([request(0, 100, 20), request(1, 500, 18), request(2, 100, 19)], [2, 0, 1]),
        ([request(0, 100, 20), request(1, 100, 20)], [0, 1]),  # ties in order of arrival
        ([request(0, 100, end=30), request(1, 100, 29.9)], [1, 0]),  # output lengths are unknown
        ([request(0), request(1, 200, end=1801), request(2, 100, 1799)], [2, 0, 1]),
        # the earlier of both deadlines counts
        ([request(0, 100, 50, end=10), request(1, 100, 20)], [0, 1]),
        ([request(0, at_s=3.0), request(1, at_s=1.0)], [1, 0]),
    ],
)
def test_the_order_of_a_few_requests_equals_a_hand_computed_one(requests, expected):
    assert order(niyama(), *requests) == expected


def test_the_mix_ranges_from_edf_to_shortest_first():
    requests = [request(0, 100, 20), request(1, 500, 18), request(2, 300, 19)]
    assert order(niyama(alpha_s=0), *requests) == [1, 2, 0]
    assert order(niyama(alpha_s=100), *requests) == [0, 2, 1]


def test_late_requests_go_after_all_others():
    late, tight, easy = request(0, 500, 4.99), request(1, 500, 5.0), request(2, 1000, 100)
    assert order(niyama(), late, tight, easy) == [1, 2, 0]
    assert order(niyama(relegate=False), late, tight, easy) == [0, 1, 2]


def test_relegated_requests_follow_the_same_rule_among_themselves():
    late = [request(0, 500, 3.0), request(1, 100, 0.5), request(2, 500, 2.0)]
    assert order(niyama(), *late, request(3, 100, 50)) == [3, 1, 2, 0]


def test_without_costs_a_rate_replaces_the_prefill_time():
    late, tight = request(0, 500, 4.99), request(1, 500, 5.0)
    assert order(niyama(costs=False, prefill_tok_s=100), late, tight) == [1, 0]
    assert order(niyama(costs=False), late, tight) == [0, 1]


def finished(scheduler, client, *outputs):
    """Return the requests of a client that have ended."""
    for number, tokens in enumerate(outputs):
        one = request(1000 + number, client=client)
        scheduler.on_arrival(one, None, 0.0)
        scheduler.on_admitted(one, 100, False)
        scheduler.on_request_tokens(one, tokens)
        scheduler.on_finish(one)


@pytest.mark.parametrize(
    ("params", "outputs", "due"),
    [
        # outputs of 80 and 120 tokens: mean and two deviations, at 50 ms per token
        ({}, 100 + 2 * 20, 30 - 7.0),
        ({"sigmas": 0.0}, 100, 30 - 5.0),
        ({"outputs": "none"}, 0, 30.0),
        ({"step_s": 0.1}, 140, 30 - 14.0),
    ],
)
def test_a_deadline_for_the_end_leaves_time_for_the_usual_outputs_of_the_client(
    params, outputs, due
):
    scheduler = niyama(**params)
    finished(scheduler, "a", 80, 120)
    finished(scheduler, "b", 5)
    for slack, expected in ((0.001, [1, 0]), (-0.001, [0, 1])):
        pair = request(0, end=30), request(1, first=due - slack, client="b")
        assert order(scheduler, *pair) == expected


def test_no_more_outputs_are_expected_than_allowed():
    scheduler = niyama()
    finished(scheduler, "a", 400)
    for first, expected in ((25.1, [0, 1]), (24.9, [1, 0])):  # 100 tokens take 5 s
        pair = request(0, end=30, new=100), request(1, first=first, client="b")
        assert order(scheduler, *pair) == expected


def test_a_request_that_has_run_is_not_relegated():
    scheduler = niyama()
    desk = Desk(scheduler)
    retracted, other = request(0, 500, 4.0), request(1, 100, 50)
    scheduler.on_arrival(retracted, desk.view, 0.0)
    scheduler.on_admitted(retracted, 500, False)
    desk.retract(retracted)
    desk.arrive(other)
    assert desk.run_pass() == [retracted, other]


def flooded(scheduler, seconds, due_s):
    """Tell whether a request relegated for a missed deadline still waits behind others in time."""
    home = Server(scheduler, slots=1)
    late = request(10**6, 100, 0.5, client="b", new=1)
    home.arrive(late)
    for second in range(seconds):
        home.step()
        home.arrive(request(second, 1, home.now_s + due_s, new=2, at_s=home.now_s))
        home.run_pass()
        if late in home.admitted:
            return False
    return True


def test_a_relegated_request_starves_while_others_can_be_in_time():
    assert flooded(niyama(), 300, 60.0)


def test_without_relegation_no_request_starves():
    assert not flooded(niyama(relegate=False), 300, 60.0)


CALLS = st.lists(
    st.tuples(
        st.sampled_from([1, 50, 300]),
        st.sampled_from([None, 0.2, 1.0, 3.0, 40.0]),
        st.sampled_from([None, 2.0, 50.0]),
        st.sampled_from([0.0, 1.0, 5.0]),
    ),
    max_size=8,
)


@examples(100)
@given(CALLS, st.sampled_from([0.0, 0.008, 1.0]), st.booleans())
def test_every_order_follows_the_rule(calls, alpha_s, relegate):
    """The oracle finds the late requests first, and then sorts all."""
    requests = [
        request(number, tokens, first, end, at_s=at_s)
        for number, (tokens, first, end, at_s) in enumerate(calls)
    ]

    def key(one):
        dues = [due for due in (one.first_token_by_s, one.deadline_s) if due is not None]
        due_s = min(dues, default=one.arrival_s + 1800)
        late = relegate and one.input_tokens / 100 > due_s
        return late, due_s + alpha_s * one.input_tokens, one.request_id

    expected = [one.request_id for one in sorted(requests, key=key)]
    assert order(niyama(alpha_s=alpha_s, relegate=relegate), *requests) == expected
