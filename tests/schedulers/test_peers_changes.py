"""Test that peers learn as much from incremental messages as from full messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Setup
from fairbench.schedulers.parts import worker_credits
from fairbench.schedulers.peers import Changes, Heard, RoutersParams, Terms, Totals
from fairbench.schedulers.routing.d2lpm import D2LPM
from tests.schedulers.gateway.gateway_helpers import Desk
from tests.strategies import examples

CLIENTS = ("a", "b", "c", "d")


class Router:
    """A d2lpm router with peers."""

    def __init__(self) -> None:
        self.part = D2LPM(D2LPM.Params(worker_quantum=50), 3)
        self.part.prepare(Setup())
        self.part.join_peers()
        self.flights: list[tuple[Request, int]] = []
        self.number = 0

    def serve(self, client, tokens):
        sent = Request(self.number, client, 0, 0, (Segment(f"p{tokens}", tokens),), tokens, 9)
        self.number += 1
        self.flights.append((sent, self.part.route(sent, 0.0)))

    def end(self, tokens):
        if self.flights:
            sent, worker = self.flights.pop(0)
            if tokens % 3:
                self.part.on_finish(sent, worker, Segment("o", tokens), 0.0)
            else:
                self.part.on_failure(sent, worker, 0.0)

    def state(self):
        return {client: dict(credit) for client, credit in self.part.credit.items()}


class Gate:
    """A vtc gateway with peers. Weights are 1, so that sums of whole numbers are exact."""

    def __init__(self) -> None:
        self.desk = Desk("vtc", concurrency__requests=2, terms=Terms(1e9, 1e9))
        self.part = self.desk.gateway

    def serve(self, client, tokens):
        self.desk.arrive(client, tokens, priority=tokens % 2)

    def end(self, tokens):
        if self.desk.at:
            self.desk.answer(output_tokens=tokens)

    def state(self):
        """Return the state without clients of zero balance, which only full messages name."""
        return {
            band: {client: counter for client, counter in counters.items() if counter}
            for band, counters in self.part.balances.items()
            if any(counters.values())
        }


class Mesh:
    """Routers that receive full messages, beside routers that receive only changes."""

    def __init__(self, kind, number, *, whole):
        self.nodes = [kind() for _ in range(number)]
        self.whole = whole
        self.told = []  # origin -> listener -> totals after each message
        self.known = {}  # (origin, listener) -> the version in the last answer received

    def tell(self, origin):
        part = self.nodes[origin].part
        self.told.append(
            {
                to: (
                    origin,
                    part.export_totals(0 if self.whole else self.known.get((origin, to), 0)),
                )
                for to in range(len(self.nodes))
                if to != origin
            }
        )

    def deliver(self, message, to, *, answered):
        if to in self.told[message]:
            origin, totals = self.told[message][to]
            part = self.nodes[to].part
            part.merge_totals(f"{origin}", totals, 0.0)
            if answered:
                self.known[origin, to] = part.heard_totals()[f"{origin}"].version


@pytest.mark.parametrize("kind", [Router, Gate])
@given(rng=st.randoms(use_true_random=True))
@examples(40)
def test_lost_late_and_repeated_messages_lead_to_the_same_knowledge(kind, rng):
    """Messages are delivered in any order, and answers may be lost, too."""
    meshes = [Mesh(kind, 3, whole=whole) for whole in (True, False)]
    for _ in range(60):
        what = rng.choice(["serve", "serve", "end", "tell", "pass", "pass", "pass", "late"])
        node, client, tokens = rng.randrange(3), rng.choice(CLIENTS), rng.randint(0, 90)
        back, answered = rng.randrange(9), rng.random() < 0.7
        for mesh in meshes:
            if what == "serve":
                mesh.nodes[node].serve(client, 1 + tokens)
            elif what == "end":
                mesh.nodes[node].end(tokens)
            if what in ("tell", "pass"):
                mesh.tell(node)
            if what == "pass":
                mesh.deliver(-1, (node + 1 + tokens % 2) % 3, answered=answered)
            elif what == "late" and mesh.told:
                mesh.deliver(max(0, len(mesh.told) - 1 - back), node, answered=answered)
        for whole, changed in zip(*(mesh.nodes for mesh in meshes), strict=True):
            assert whole.state() == changed.state()


class Told:
    """A router and its peer, whose answers may be late and which may restart."""

    def __init__(self):
        self.origin, self.listener = Router(), Heard()
        self.known, self.answers = 0, [0]
        self.messages: list[Totals] = []
        self.had: dict[int, Totals] = {0: Totals(0, {}, {})}

    def tell(self):
        self.messages.append(self.origin.part.export_totals(self.known))
        self.had[self.messages[-1].version] = self.origin.part.export_totals()

    def hear(self, back=0):
        """Receive a message. What is known of an origin must equal its export at that version."""
        self.listener.newer("0", self.messages[-1 - back % len(self.messages)])
        now = self.listener.latest.get("0", self.had[0])
        assert (now.charged, now.raised) == self.had[now.version][1:3]
        self.answers.append(now.version)

    def answer(self, back=0):
        self.known = self.answers[-1 - back % len(self.answers)]


@pytest.mark.parametrize("most", [100, 2])
@given(rng=st.randoms(use_true_random=True))
@examples(40)
def test_a_restarted_peer_gets_everything_and_clients_may_be_forgotten(most, rng):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairbench.schedulers.parts.worker_credits.MAX_CLIENTS", most)
        patch.setattr(worker_credits, "BATCH", 1)
        told = Told()
        for _ in range(80):
            what = rng.choice(["serve", "end", "end", "tell", "hear", "answer", "pass", "pass"])
            if what == "serve":
                told.origin.serve(rng.choice(CLIENTS), rng.randint(1, 90))
            elif what == "end":
                told.origin.end(rng.randint(0, 40))
            if what in ("tell", "pass"):
                told.tell()
            if what in ("hear", "pass") and told.messages:
                told.hear(rng.randrange(4) if what == "hear" else 0)
            if what in ("answer", "pass"):
                told.answer(rng.randrange(4) if what == "answer" else 0)
            if rng.random() < 0.03:
                told.listener = Heard()
        for _ in range(2):  # the first message says what the other router knows
            told.tell()
            told.hear()
            told.answer()
        assert told.known == told.messages[-1].version


def test_forgotten_changes_lead_to_a_full_message():
    changes = Changes(most=2)
    for client in "ab":
        changes.note(client)
    assert changes.exported(0) is None
    changes.note("b")
    changes.note("c")  # a changed before version 1
    assert changes.exported(1) == ["b", "c"]
    changes.note("d")  # b changed before version 2, so a router with version 1 may not know of it
    assert changes.exported(1) is None
    assert changes.exported(2) == ["d"]
    assert changes.exported(99) is None  # no router has this version


def test_changes_of_one_origin_are_separate_from_those_of_another():
    heard = Heard()
    assert heard.newer("x", Totals(1, {"a": {0: 5.0}}, {}, since=-1)) == {"a": {0: 5.0}}
    assert heard.newer("y", Totals(1, {"a": {0: 7.0}}, {})) == {"a": {0: 7.0}}


def test_only_changed_clients_of_ten_thousand_are_sent():
    one = Router()
    for number in range(10_000):
        one.serve(f"c{number}", 10)
    version = one.part.export_totals().version
    for client in ("c5", "c7", "c5"):
        one.serve(client, 10)
    assert list(one.part.export_totals(version).charged) == ["c7", "c5"]


@pytest.mark.parametrize(
    ("given", "forget_s"),
    [({}, 1.0), ({"every_s": 1.0, "delay_s": 0.5}, 9.0), ({"delay_s": 2.0, "forget_s": 3.0}, 3.0)],
)
def test_a_silent_router_is_forgotten_after_six_intervals_and_delays(given, forget_s):
    assert RoutersParams(ahead_tok_s=50.0, **given).terms(4) == Terms(200.0, forget_s)
