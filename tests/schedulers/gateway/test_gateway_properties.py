"""Test any policy, order and detector: no request lost or doubled, no idle slot, no starvation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.gateway.orders import ORDERS
from fairbench.schedulers.gateway.registry import (
    DETECTORS,
    needs_sessions,
    policies_by_name,
    policy_class,
    policy_names,
)
from tests.schedulers.gateway.gateway_helpers import Desk
from tests.strategies import examples

CLIENTS = ("a", "b", "c")
# Other policies receive the requests of all priorities, and order them themselves.
WITHIN_BANDS = [
    name for name in policies_by_name() if not getattr(policy_class(name), "orders_bands", False)
]
FIXED_SETS_ARE_SAFE = ("fcfs", "round-robin", "llm-d-vtc", "drr", "wfq")

EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("arrive"), st.sampled_from(CLIENTS), st.integers(1, 300), st.integers(0, 1)
        ),
        st.tuples(st.just("answer"), st.integers(0, 9), st.integers(0, 500), st.just(0)),
        st.tuples(st.just("wait"), st.floats(0.01, 40), st.just(0), st.just(0)),
    ),
    max_size=40,
)


def played(desk, events, check):
    """Send all arrivals, then answer until nothing is queued."""
    arrivals = []
    for what, first, second, third in events:
        if what == "arrive":
            arrivals.append(desk.arrive(first, second, priority=third))
        elif what == "answer" and desk.at:
            desk.answer(list(desk.at)[first % len(desk.at)], second)
        elif what == "wait":
            desk.now_s += first
            desk.go()
        check()
    for _ in range(500):
        if not desk.at and not len(desk.gateway):
            break
        if desk.at:
            desk.answer()
        desk.now_s += 5.0  # a gate for sessions may hold a turn for 1,800 s
        desk.go()
        check()
    return arrivals


@pytest.mark.parametrize("saturation", DETECTORS)
@examples(40)
@given(
    policy=st.sampled_from(
        [
            name
            for name in policy_names()
            if policy_class(name).sort_queue is None and policy_class(name).decodes_first is None
        ]
    ),
    events=EVENTS,
    order=st.sampled_from(list(ORDERS)),
    ttl_s=st.sampled_from([0.0, 30.0]),
)
def test_every_request_is_dispatched_once_or_refused_once(policy, saturation, events, order, ttl_s):
    holds_back = needs_sessions(policy)  # a gate holds turns although the workers have room
    gives_up = getattr(policy_class(policy), "given_up", None) is not None
    desk = Desk(
        policy, saturation, workers=2, concurrency__requests=2, gateway__order=order,
        gateway__ttl_s=ttl_s, matched=lambda request: request.input_tokens // 2,
    )  # fmt: skip

    def conserved():
        held = list(desk.gateway)
        assert len(desk.gateway) == len(held)
        gone = [*desk.sent, *desk.refused, *desk.shed]
        assert len(set(gone)) == len(gone)
        assert not set(gone) & set(held)
        if saturation == "concurrency":
            assert len(desk.at) <= 4
            # work conservation: requests are held only while the pool is full
            assert not held or len(desk.at) == 4 or holds_back
        if saturation == "none":
            assert not held or holds_back

    arrivals = played(desk, events, conserved)
    assert not len(desk.gateway)
    assert set(arrivals) == {*desk.sent, *desk.refused, *desk.shed}
    if not (ttl_s or gives_up):
        assert not desk.shed
    if policy not in ("token-bucket", "rpm"):
        assert not desk.refused


@examples(40)
@given(policy=st.sampled_from(WITHIN_BANDS), events=EVENTS)
def test_a_flow_goes_in_order_of_arrival_and_a_higher_band_before_a_lower_one(policy, events):
    desk = Desk(policy, concurrency__requests=1)
    overtaken = []
    release = desk._send

    def send(request, worker):
        higher = [one for one in desk.gateway if one.priority > request.priority]
        overtaken.extend(higher)
        release(request, worker)

    desk._send = send
    played(desk, events, lambda: None)
    assert not overtaken
    for client in CLIENTS:
        for band in (0, 1):
            flow = [r.request_id for r in desk.sent if (r.client, r.priority) == (client, band)]
            assert flow == sorted(flow)


@pytest.mark.parametrize("policy", FIXED_SETS_ARE_SAFE)
@examples(10)
@given(
    tokens=st.dictionaries(st.sampled_from(CLIENTS[1:]), st.integers(1, 400), min_size=1),
    before=st.integers(0, 5),
)
def test_no_client_of_a_fixed_set_starves(policy, tokens, before):
    desk = Desk(policy, concurrency__requests=1)
    for _ in range(before):  # the client is already behind when its wait begins
        desk.arrive("a", 400)
    desk.serve(before, output_tokens=400)
    desk.arrive("b", 1)
    mine = desk.arrive("a", 400)
    for _ in range(2_000):
        for client, size in tokens.items():  # each dispatched request is replaced immediately
            if not any(request.client == client for request in desk.gateway):
                desk.arrive(client, size)
        if mine in desk.sent:
            break
        desk.answer(output_tokens=0)
    assert mine in desk.sent


def newcomers_before(policy, times=60):
    """Return how many new clients go before the second request of a client that was served."""
    desk = Desk(policy, concurrency__requests=1)
    desk.arrive("old", 100)
    desk.answer(output_tokens=500)
    desk.arrive("other", 100)  # this request is in flight
    desk.arrive("old", 100)
    second = desk.arrive("old", 100)
    for number in range(times):
        desk.now_s += 0.1
        desk.arrive(f"new-{number:02}", 100)
        desk.answer(output_tokens=500)
    before = desk.sent[: desk.sent.index(second)] if second in desk.sent else desk.sent
    return sum(request.client.startswith("new") for request in before)


@pytest.mark.parametrize("policy", ["kthena", "program-aware", "infergrid-drr"])
def test_a_stream_of_newcomers_starves_older_clients_under_some_policies(policy):
    assert newcomers_before(policy) >= 58


@pytest.mark.parametrize("policy", ["fcfs", "drr", "wfq"])
def test_a_stream_of_newcomers_starves_no_client_under_the_other_policies(policy):
    assert newcomers_before(policy) <= 8
