"""Test gateways of several routers that exchange totals: knowledge, dispatch and a bound.

The oracle keeps each message that a router received, and computes its own sums.
"""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.gateway.registry import policy_class, policy_names
from fairbench.schedulers.peers import Terms, shares_counters
from tests.schedulers.gateway.gateway_helpers import Desk
from tests.strategies import examples

CLIENTS = ("a", "b", "c")
BAND = 0


class Net:
    """Gateways of routers 0, 1, ... whose messages are delivered when a test says so."""

    def __init__(self, number=2, *, ahead_tok_s=100.0, forget_s=1e9, weights=(), requests=1):
        self.terms = Terms(ahead_tok_s, forget_s)
        self.weights = dict(weights)
        self.desks = [
            Desk("vtc", concurrency__requests=requests, terms=self.terms, weights=self.weights)
            for _ in range(number)
        ]
        self.messages = []  # (origin, totals)
        self.known = [{} for _ in self.desks]  # for each router: origin -> totals, time received
        self.now_s = 0.0

    def counters(self, r):
        return self.desks[r].gateway._band(BAND).scheduler.counters

    def tell(self, r):
        self.messages.append((r, self.desks[r].gateway.export_totals()))
        return len(self.messages) - 1

    def deliver(self, message, to):
        origin, totals = self.messages[message]
        if origin == to:
            return
        self.desks[to].gateway.merge_totals(str(origin), totals, self.now_s)
        before = self.known[to].get(origin)
        if before is None or before[0].version < totals.version:
            self.known[to][origin] = totals, self.now_s
        self.go()

    def exchange(self):
        for r in range(len(self.desks)):
            message = self.tell(r)
            for to in range(len(self.desks)):
                self.deliver(message, to)

    def go(self):
        for desk in self.desks:
            desk.now_s = self.now_s
            desk.go()

    def charged(self, client):
        """Return the charges of a client at all routers, and its highest lift."""
        charged = [self.own(desk, client) for desk in self.desks]
        return sum(charged) + max(self.raised(desk, client) for desk in self.desks)

    def own(self, desk, client):
        return desk.gateway.charged_totals().get(client, {}).get(BAND, 0.0)

    def raised(self, desk, client):
        return desk.gateway._band(BAND).shared.raised.get(client, 0.0)

    def known_counter(self, r, client):
        """Return the counter that a router can know: its own sum, and the others' latest sums."""
        told = [totals for totals, _ in self.known[r].values()]
        levels = [one.raised.get(client, {}).get(BAND, 0.0) for one in told]
        sums = [one.charged.get(client, {}).get(BAND, 0.0) for one in told]
        desk = self.desks[r]
        return self.own(desk, client) + sum(sums) + max([*levels, self.raised(desk, client)])

    def waits(self, r, client):
        """Return the time since which a router knows that the client waits, or None."""
        here = any(request.client == client for request in self.desks[r].gateway)
        told = [at for totals, at in self.known[r].values() if client in totals.waiting]
        return self.now_s if here else max(told, default=None)


def held(net, r):
    return [request.client for request in net.desks[r].gateway]


def test_after_an_exchange_all_routers_know_all_charges():
    net = Net(2, ahead_tok_s=10.0, requests=8)
    net.desks[1].arrive("b", 10)  # charged 10 at the other router
    net.desks[0].arrive("a", 100)
    net.exchange()
    assert net.counters(0) == net.counters(1) == {"a": 100, "b": 10}


def full(net, r):
    """Return a router whose only slot is in use, so that arrivals are queued."""
    net.desks[r].arrive(f"warm-{r}", 1)
    return net


def test_a_client_ahead_waits_until_it_is_permitted():
    net = full(Net(2, ahead_tok_s=10.0), 1)
    net.desks[0].arrive("a", 100)
    net.desks[0].arrive("a", 100)
    net.desks[1].arrive("b", 10)
    net.exchange()
    net.desks[0].answer(output_tokens=0)  # there is room, but b waits at the other router
    assert held(net, 0) == ["a"]
    assert net.desks[0].gateway.wake_s(0.0) == pytest.approx(9.9)  # 99 tokens ahead, 10 a second
    net.now_s = 9.8
    net.go()
    assert held(net, 0) == ["a"]
    net.now_s = 9.9
    net.go()
    assert held(net, 0) == []


def test_a_request_goes_once_the_other_client_is_served_or_gone():
    net = full(Net(2, ahead_tok_s=0.0), 1)
    net.desks[0].arrive("a", 100)
    net.desks[0].arrive("a", 100)
    net.desks[1].arrive("b", 150)
    net.exchange()
    net.desks[0].answer(output_tokens=0)
    assert held(net, 0) == ["a"]
    net.desks[1].answer(output_tokens=0)  # b is dispatched there, and is charged 150
    net.exchange()
    assert held(net, 0) == []


def test_a_silent_router_delays_others_only_briefly():
    net = full(Net(2, ahead_tok_s=0.0, forget_s=3.0), 1)
    net.desks[0].arrive("a", 100)
    net.desks[0].arrive("a", 100)
    net.desks[1].arrive("b", 10)
    net.exchange()
    net.desks[0].answer(output_tokens=0)
    net.now_s = 2.9
    net.go()
    assert held(net, 0) == ["a"]
    net.now_s = 3.1
    net.go()
    assert held(net, 0) == []


def test_clients_waiting_at_peers_are_not_lifted_and_simultaneous_lifts_count_once():
    net = full(full(Net(2, requests=1), 0), 1)
    net.desks[0].arrive("a", 100)
    net.desks[1].arrive("a", 100)
    for desk in net.desks:
        desk.answer(output_tokens=0)  # a is dispatched at both, and lifted to 1: 201 in all
    net.exchange()
    for r in range(2):  # a waits again, and b comes to both routers at the same time
        net.desks[r].arrive("a", 1)
        net.desks[r].arrive("b", 1)
    assert [net.counters(r)["b"] for r in range(2)] == [201, 201]
    net.exchange()
    assert [net.counters(r)["b"] for r in range(2)] == [201, 201]


def test_without_waiting_clients_the_lift_is_to_the_client_served_last_anywhere():
    net = Net(2)
    alone = Desk("vtc", concurrency__requests=1)
    for r, client, tokens in ((0, "a", 10), (1, "b", 1000), (1, "c", 1)):
        for desk in (net.desks[r], alone):
            desk.arrive(client, tokens)
            desk.answer(output_tokens=0)  # a 10, b 10 + 1000, c 1010 + 1
        net.exchange()
    net.desks[0].arrive("d", 1)
    alone.arrive("d", 1)
    counters = alone.gateway._band(BAND).scheduler.counters
    assert net.counters(0)["d"] == counters["d"] == 1011 + 1


ROUTER = st.integers(0, 2)
ARRIVAL = st.tuples(st.just("arrive"), ROUTER, st.sampled_from(CLIENTS), st.integers(1, 90))
EVENTS = st.lists(
    st.one_of(
        ARRIVAL,
        ARRIVAL,
        st.tuples(st.just("answer"), ROUTER, st.integers(0, 9), st.integers(0, 40)),
        st.tuples(st.just("tell"), ROUTER, st.just(0), st.just(0)),
        st.tuples(st.just("deliver"), ROUTER, st.integers(0, 99), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 20), st.just(0), st.just(0)),
    ),
    max_size=80,
)


class Watch:
    """A checker of each choice when it is made, and of the theorem after every event."""

    def __init__(self, net):
        self.net = net
        self.since = {}  # pair -> clients chosen since both were known to wait at all workers
        self.gained = {}  # client -> charge since it was last chosen
        self.last = dict.fromkeys(CLIENTS, 0.0)
        self.most = self.unheard = self.ahead = 0.0
        for r, desk in enumerate(net.desks):
            self._wrap(r, desk)

    def _wrap(self, r, desk):
        policy = desk.gateway._band(BAND).scheduler
        admitted = policy.on_admitted

        def on_admitted(request, extend_tokens, recompute):
            self.chosen(r, request.client)
            admitted(request, extend_tokens, recompute)

        policy.on_admitted = on_admitted

    def chosen(self, r, client):
        net = self.net
        self.count()
        known = net.known_counter(r, client)
        self.unheard = max(self.unheard, net.charged(client) - known)
        for totals, _ in net.known[r].values():
            for other in totals.waiting:
                lead = known - net.known_counter(r, other)
                latest = net.waits(r, other)
                assert lead <= net.terms.ahead_tok_s * (net.now_s - latest) + 1e-6 or lead <= 0
                self.ahead = max(self.ahead, lead)
        self.gained[client] = 0.0
        for pair in self.since.values():
            pair.add(client)

    def count(self):
        """Return the charges of clients since the last call."""
        for client in CLIENTS:
            now = self.net.charged(client)
            if client in self.gained:
                self.gained[client] += now - self.last[client]
                self.most = max(self.most, self.gained[client])
            self.last[client] = now

    def check(self):
        net = self.net
        self.count()
        for r in range(len(net.desks)):
            for client in CLIENTS:
                assert net.counters(r).get(client, 0.0) == pytest.approx(
                    net.known_counter(r, client)
                )
        everywhere = {
            client: all(net.waits(r, client) is not None for r in range(len(net.desks)))
            and any(client == request.client for desk in net.desks for request in desk.gateway)
            for client in CLIENTS
        }
        for pair in combinations(CLIENTS, 2):
            if not all(everywhere[client] for client in pair):
                self.since.pop(pair, None)
                continue
            chosen = self.since.setdefault(pair, set())
            if set(pair) <= chosen:
                one, other = (net.charged(client) for client in pair)
                assert abs(one - other) <= self.most + self.unheard + self.ahead + 1e-6


@examples(150)
@given(
    events=EVENTS,
    number=st.integers(1, 3),
    ahead=st.sampled_from([0.0, 5.0, 1000.0]),
    weights=st.sampled_from([{}, {"a": 4.0, "c": 0.5}]),
)
def test_knowledge_dispatch_and_the_bound_of_several_routers(events, number, ahead, weights):
    net = Net(number, ahead_tok_s=ahead, weights=weights)
    for r in range(number):
        net.desks[r].arrive("a", 1)
        net.desks[r].answer(output_tokens=0)
    net.exchange()
    watch = Watch(net)
    for what, which, value, tokens in events:
        r = which % number
        if what == "arrive":
            net.desks[r].arrive(value, tokens)
        elif what == "answer" and net.desks[r].at:
            net.desks[r].answer(list(net.desks[r].at)[value % len(net.desks[r].at)], tokens)
        elif what == "tell":
            net.tell(r)
        elif what == "deliver" and net.messages:
            net.deliver(value % len(net.messages), r)
        elif what == "wait":
            net.now_s += which
            net.go()
        watch.check()


def test_only_vtc_like_policies_share_their_counters():
    assert [name for name in policy_names() if shares_counters(policy_class(name))] == [
        "vtc",
        "vtc-predict",
        "vtc-match",
        "lcf",
    ]
