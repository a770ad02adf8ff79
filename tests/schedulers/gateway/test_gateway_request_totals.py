"""Test that running totals equal the totals of a walk over the requests."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.schedulers.gateway.admission import RequestTotals

dues = st.none() | st.sampled_from([0.5, 1.0, 1.0, 2.5, 9.0])
requests = st.tuples(st.sampled_from("abc"), dues, dues, st.floats(0, 10))


def request(number, client, first_s, end_s):
    prompt = (Segment(f"p{number}", 9),)
    return Request(number, client, number, 0, prompt, 9, 9, 0.0, end_s, first_token_by_s=first_s)


def by_a_walk(request, others):
    """Sum the requests by a walk, which is the oracle of the running totals."""
    mine_s = inf if request.next_deadline_s is None else request.next_deadline_s
    theirs = (one.next_deadline_s for one in others)
    return sum(their_s is not None and their_s <= mine_s for their_s in theirs)


@given(st.lists(requests, max_size=30), st.randoms(use_true_random=False), requests)
def test_totals_equal_those_of_a_walk(made, draw, asked):
    totals, here = RequestTotals(), {}
    asking = request(99, *asked[:3])
    for number, (client, first_s, end_s, prefill_s) in enumerate(made):
        one = request(number, client, first_s, end_s)
        totals.add_request(one, prefill_s)
        here[one] = prefill_s
        if draw.random() < 0.4:
            gone = draw.choice(list(here))
            totals.remove_request(gone)
            del here[gone]
        assert (len(totals), one in totals) == (len(here), one in here)
        assert totals.due_before(asking) == by_a_walk(asking, here)
        assert totals.prefill_s == pytest.approx(sum(here.values()))
        names = [one.client for one in here]
        assert dict(totals.clients) == {name: names.count(name) for name in names}
    for one in list(here):
        totals.remove_request(one)
    assert (len(totals), totals.prefill_s, dict(totals.clients)) == (0, 0.0, {})
    with pytest.raises(KeyError):
        totals.remove_request(asking)
