"""Test that a restarted peer does not forget the charges of its predecessor."""

from collections import defaultdict
from types import SimpleNamespace

import msgspec
import pytest

from fairbench.schedulers.peers import Terms
from fairbench_load.http_server import Problem
from fairbench_serve.peers import ALL_EVERY_S, RELAYED_S, Peering, PeerKnowledge, PeerMessage
from tests.schedulers.gateway.gateway_helpers import Desk

TERMS = Terms(ahead_tok_s=100.0, forget_s=1.0)


class Process:
    """A router's gateway and its messenger of totals, at a time that the test sets."""

    def __init__(self, clock, name, fleet="same"):
        self.desk = Desk("vtc", concurrency__requests=1, terms=TERMS)
        self.up = {0}
        dispatcher = SimpleNamespace(now_s=lambda: clock.now_s, release=self._release, up=self.up)
        parts = {"gateway": self.desk.gateway}
        self.peering = Peering(
            parts, fleet, "key", dispatcher, TERMS.forget_s, {"gateway": {0}}, name
        )
        self._clock = clock
        self.of_others = defaultdict(PeerKnowledge)  # name -> totals that this router has confirmed

    def _release(self):
        self.desk.now_s = self._clock.now_s
        self.desk.go()

    def serve(self, client, tokens):
        self.desk.arrive(client, tokens)
        self.desk.answer(output_tokens=0)

    @property
    def counters(self):
        return self.desk.gateway._band(0).scheduler.counters


def exchange(clock, processes, times, every_s=0.1):
    for _ in range(times):
        clock.now_s += every_s
        for one in processes:
            for other in processes:
                if other is not one:
                    tell(one, other)


def tell(one, other, address=None):
    """Send the current message to an address, which may have belonged to an earlier process."""
    known = one.of_others[address or other.peering.origin]
    message = one.peering.message(known)
    known.answered(other.peering.take_in(message))
    return msgspec.json.decode(message, type=PeerMessage)


def restarted():
    """Start ``c`` in place of ``a``, which served f and died. ``b`` served g and knows both."""
    clock = SimpleNamespace(now_s=0.0)
    a, b = Process(clock, "a"), Process(clock, "b")
    a.serve("f", 1100)
    b.serve("g", 1000)
    exchange(clock, [a, b], 3)
    return clock, b, Process(clock, "c")


def test_a_restarted_router_learns_earlier_charges():
    clock, b, c = restarted()
    exchange(clock, [b, c], 20)
    assert c.counters == b.counters == {"f": 1100, "g": 1000}


def test_two_clients_never_wait_for_each_other_permanently():
    clock, b, c = restarted()
    for process, client in ((b, "f"), (c, "g")):
        process.desk.arrive(client, 10)  # one is dispatched, and the next waits for its slot
        process.desk.arrive(client, 10)
    exchange(clock, [b, c], 1)
    for process in (b, c):
        process.desk.answer(output_tokens=0)
    exchange(clock, [b, c], 60)
    assert [len(one.desk.sent) for one in (b, c)] == [1 + 2, 2]


def test_totals_of_a_dead_peer_reach_a_third_router_for_a_limited_time():
    clock, b, c = restarted()
    exchange(clock, [b, c], 20)
    d = Process(clock, "d")
    exchange(clock, [c, d], 12)  # b is gone, too
    assert d.counters == {"f": 1100, "g": 1000}
    clock.now_s += RELAYED_S
    exchange(clock, [c, d], 1)
    assert not c.peering._gone()


def test_a_dead_routers_clients_do_not_wait():
    clock, b, c = restarted()
    a = Process(clock, "e")
    for _ in range(2):
        a.desk.arrive("g", 10)
    exchange(clock, [a, b], 1)
    assert "g" in b.peering.parts["gateway"].heard_totals()["e"].waiting
    exchange(clock, [b, c], 20)
    assert c.peering.parts["gateway"].heard_totals()["e"].waiting == {}


def test_confirmed_totals_are_repeated_only_occasionally():
    clock, b, c = restarted()
    exchange(clock, [b, c], 12)
    b.serve("h", 5)
    told = tell(b, c)
    assert told.parts["gateway"].charged == {"h": {0: 5.0}}
    assert told.gone == {}  # the totals of a, because c has confirmed them
    assert tell(b, c).parts["gateway"].charged == {}
    b.of_others["c"].forget_sometimes(clock.now_s)  # sent the first time
    assert tell(b, c).parts["gateway"].charged.keys() == {"f", "g", "h"}
    b.of_others["c"].forget_sometimes(clock.now_s + ALL_EVERY_S - 1)
    assert tell(b, c).parts["gateway"].charged == {}


def test_a_router_restarted_at_its_address_gets_everything_after_its_answer():
    clock, b, c = restarted()
    exchange(clock, [b, c], 12)
    assert c.counters == {"f": 1100, "g": 1000}
    d = Process(clock, "d")  # in place of c
    b.serve("h", 5)
    assert tell(b, d, "c").parts["gateway"].charged.keys() == {"h"}
    assert d.counters == {}  # the earlier changes are missing
    told = tell(b, d, "c")
    assert told.parts["gateway"].charged.keys() == {"f", "g", "h"}
    assert told.gone.keys() == {"a"}
    assert d.counters == b.counters


def test_totals_of_a_dead_peer_for_unknown_parts_are_refused():
    clock, b, _ = restarted()
    exchange(clock, [b, Process(clock, "c")], 15)
    message = b.peering.message()
    assert b'"gone":{"a":{"gateway"' in message
    stranger = Process(clock, "d")
    with pytest.raises(Problem):
        stranger.peering.take_in(message.replace(b'"gone":{"a":{"gateway"', b'"gone":{"a":{"x"'))
    assert stranger.counters == {}


def test_clients_at_a_router_without_workers_delay_no_others():
    clock = SimpleNamespace(now_s=0.0)
    a, b = Process(clock, "a"), Process(clock, "b")
    for one, client in ((a, "f"), (b, "g")):
        one.desk.arrive(client, 10)
        one.desk.arrive(client, 10)
    a.desk.arrive("f", 5000)
    for _ in range(2):
        a.desk.answer(output_tokens=0)
    exchange(clock, [a, b], 20)
    a.desk.arrive("f", 10)
    a.desk.answer(output_tokens=0)
    assert [one.client for one in a.desk.gateway] == ["f"]  # g waits at b
    exchange(clock, [a, b], 20)
    assert [one.client for one in a.desk.gateway] == ["f"]
    b.up.clear()
    exchange(clock, [a, b], 1)
    assert not len(a.desk.gateway)
