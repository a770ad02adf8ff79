"""Test the credit with which a client joins DLPM's list (``dlpm.join``)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbench.schedulers.accounts.deficit_credits import Credits

QUANTUM, MOST = 100, 60  # MOST is the largest charge, U


def credits_of(*, welcomes=True, rejoin="keep"):
    return Credits(QUANTUM, 2, rejoin, welcomes=welcomes)


def test_a_newcomer_joins_with_one_quantum_or_with_zero():
    for welcomes, credit in ((True, QUANTUM), (False, 0)):
        found = credits_of(welcomes=welcomes)
        found.begin_request("new")
        assert found.of == {"new": credit}


def test_a_client_on_the_list_gets_no_second_quantum():
    found = credits_of()
    found.begin_request("one")
    found.charge("one", 30)
    found.begin_request("one")
    assert found.of["one"] == QUANTUM - 30


@pytest.mark.parametrize("rejoin", ["keep", "min0"])
def test_a_client_that_returns_before_a_refill_has_what_it_left_with(rejoin):
    found = credits_of(rejoin=rejoin)
    found.begin_request("one")
    found.charge("one", 30)
    found.end_request("one")
    assert "one" not in found.of
    found.begin_request("one")
    assert found.of["one"] == QUANTUM - 30


def test_a_client_that_returns_after_a_refill_has_one_quantum():
    found = credits_of()
    found.begin_request("busy")
    found.begin_request("one")
    found.charge("one", 30)
    found.end_request("one")
    found.charge("busy", QUANTUM)
    assert found.refill("", ["busy"])
    found.begin_request("one")
    assert found.of == {"busy": QUANTUM, "one": QUANTUM}


def test_a_debt_is_kept_and_forgetting_a_client_forgets_its_credit():
    found = credits_of(rejoin="min0")
    found.begin_request("one")
    found.charge("one", QUANTUM + 5)
    found.end_request("one")
    found.begin_request("one")
    assert found.of["one"] == QUANTUM - 5
    found.end_request("one")
    found.forget("one")
    found.begin_request("one")
    assert found.of["one"] == QUANTUM


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, MOST)), max_size=120)


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_a_busy_client_is_never_far_below_a_client_that_comes_and_goes(events):
    """Check the bound 2 (U + Q) of Theorem 4.2 for a client that is always backlogged."""
    found = credits_of()
    found.begin_request("a")  # keeps one more request at all times
    served = dict.fromkeys("abc", 0)
    for client, cost in events:
        waiting = {"a", client}
        found.begin_request(client)
        if not any(found.in_credit(one) for one in waiting):
            found.refill("", waiting)
        one = client if found.in_credit(client) else "a"
        if found.in_credit(one):
            found.charge(one, cost)
            served[one] += cost
        found.end_request(client)
        assert max(served.values()) - served["a"] <= 2 * (MOST + QUANTUM)
