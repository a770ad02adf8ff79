"""Test by hand the output tokens that a gateway charges at dispatch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedulers.gateway.gateway_helpers import Desk, one_at_a_time


def desk(policy="vtc", at_once=9, **settings):
    """Return a desk. Prompts have 10 tokens, output tokens cost two, and first answers had 20."""
    made = Desk(policy, concurrency__requests=at_once, gateway__outputs="ahead", **settings)
    made.arrive("a")
    made.answer(output_tokens=20)
    return made


def balance(made, client="a"):
    return made.gateway.balances[0][client]


def test_expected_output_is_charged_at_dispatch_and_corrected_at_the_end():
    made = desk()
    assert balance(made) == 10 + 2 * 20  # no length was known before
    made.arrive("a")
    assert balance(made) == 50 + 10 + 2 * 20
    made.answer(output_tokens=23)
    assert balance(made) == 50 + 10 + 2 * 23
    first, second = made.arrive("a"), made.arrive("a")  # 21.5 on average, rounded to even
    assert balance(made) == 106 + 2 * (10 + 2 * 22)
    made.answer(second, output_tokens=1)
    made.answer(first, output_tokens=22)
    assert balance(made) == 106 + 10 + 2 + 10 + 2 * 22


def test_charges_of_unserved_requests_are_refunded_and_count_as_no_answer():
    made = desk()
    made.arrive("a")
    made.answer(output_tokens=0)
    assert balance(made) == 50 + 10
    made.arrive("a")
    assert balance(made) == 60 + 10 + 2 * 20


def test_expected_outputs_stay_within_limits():
    made = Desk("vtc", gateway__outputs="ahead")
    made.arrive("a")
    made.answer(output_tokens=500)
    assert balance(made) == 10 + 2 * 500
    made.arrive("a")  # at most 100
    assert balance(made) == 1_010 + 10 + 2 * 100


def test_a_client_without_answers_is_expected_to_be_like_the_others():
    made = desk()
    made.arrive("b")
    assert balance(made, "b") == 50 + 10 + 2 * 20  # lifted to the client that left last


def test_refunded_credit_does_not_exceed_a_quantum():
    """Otherwise, 60 and 110 for each of three requests would be refunded together."""
    made = Desk("dlpm", concurrency__requests=9, gateway__outputs="ahead", dlpm__quantum=60)
    made.arrive("a")
    made.answer(output_tokens=50)
    assert balance(made) == 60 - 10 - 2 * 50
    requests = []
    for granted in (60, 120, 120, 120):  # as many quanta as are needed to be in credit
        before = balance(made)
        requests.append(made.arrive("a"))
        assert balance(made) == before + granted - 10 - 2 * 50
    for credit in (-70 + 98, 60, 60):
        made.answer(requests.pop(), output_tokens=1)
        assert balance(made) == credit


def test_turns_paid_for_answers_that_never_came_do_not_accumulate():
    """A lone client gets one turn after the other until it owes nothing (mdrr)."""
    made = Desk("mdrr", concurrency__requests=9, gateway__outputs="ahead", mdrr__quantum=60)
    made.arrive("a")
    made.answer(output_tokens=50)
    assert balance(made) == 60 - 10 - 2 * 50
    requests = []
    for granted in (180, 120, 120, 120):
        before = balance(made)
        requests.append(made.arrive("a"))
        assert balance(made) == before + granted - 10 - 2 * 50
    assert balance(made) == 50
    for _ in range(4):
        made.answer(requests.pop(), output_tokens=1)
        assert balance(made) == 60


@pytest.mark.parametrize(("outputs", "charged"), [(None, 10), ("end", 10), ("ahead", 50)])
def test_without_the_option_outputs_are_charged_at_the_end(outputs, charged):
    settings = {} if outputs is None else {"gateway__outputs": outputs}
    made = Desk("vtc", concurrency__requests=9, **settings)
    made.arrive("a")
    made.answer(output_tokens=20)
    made.arrive("a")
    assert balance(made) == 50 + charged


@pytest.mark.parametrize("outputs", ["end", "ahead"])
def test_schedulers_that_know_the_true_output_learn_it_in_both_cases(outputs):
    made = Desk("dlpm-hold", gateway__outputs=outputs)
    made.arrive("a")
    made.answer(output_tokens=70)
    made.arrive("a")
    lengths = made.gateway._band(0).scheduler._batch.lengths
    assert lengths.expected("a") == 70


@pytest.mark.parametrize(
    "policy", ["fcfs", "drr", "wfq", "llm-d-vtc", "vtc-predict", "fairserve", "lpm", "autellix"]
)
def test_other_policies_are_unchanged(policy):
    """These policies charge in advance themselves, charge nothing, or cannot refund."""
    orders = []
    for settings in ({}, {"gateway__outputs": "ahead"}):
        made = one_at_a_time(policy, **settings)
        for number in range(24):
            made.arrive("abc"[number % 7 % 3], 10 + number)
        orders.append([made.serve(1, output_tokens=5 + 7 * n % 11) for n in range(24)])
        orders[-1].append(dict(made.gateway.balances[0]))
    assert orders[0] == orders[1]


STEPS = st.lists(
    st.one_of(
        # an arrival, with the given number of tokens
        st.tuples(st.sampled_from("abc"), st.integers(1, 50)),
        st.tuples(st.none(), st.integers(0, 3)),  # one running request ends
    ),
    max_size=40,
)


@given(steps=STEPS, at_once=st.integers(1, 5))
def test_in_the_end_each_client_is_charged_its_true_cost(steps, at_once):
    """This holds for any estimate and any order of requests."""
    made = Desk("vtc", concurrency__requests=at_once, gateway__outputs="ahead", vtc__lift="none")
    had = dict.fromkeys("abc", 0)

    def over(place):
        request = list(made.at)[place % len(made.at)]
        output = request.request_id * 37 % 90  # 0: no worker has served the request
        had[request.client] += request.input_tokens + 2 * output
        made.answer(request, output)

    for client, number in steps:
        if client is not None:
            made.arrive(client, number)
        elif made.at:
            over(number)
    while made.at:
        over(0)
    paid = made.gateway.balances.get(0, {})
    assert {client: paid.get(client, 0) for client in had} == had
