"""Test VTC and DLPM in a tree of tenants: shares at every level, and unchanged without tenants."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from fairbench.core import NoBound, Request
from fairbench.schedulers.base import Setup
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.dlpm_hold import HoldingDLPM
from fairbench.schedulers.local.lcf import LCF
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.local.vtc_predict import PredictiveVTC
from fairbench.tenants import ROOT, children_of, lineage, parent_of, tenants_of, with_tenants
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls
from tests.schedulers.local.local_toy_load import (
    DEPTH,
    DLPM_UNIT,
    QUANTUM,
    VTC_UNIT,
    Mix,
    on_and_off,
    overload,
    toy,
)
from tests.schedulers.local.local_trace import runs
from tests.slow_params import slow

FLAT = [
    (VTC, {}),
    (VTC, {"charge": "input"}),
    (LCF, {}),
    (DLPM, {"quantum": QUANTUM}),
    (DLPM, {"quantum": 7, "no_room": "skip"}),
    (DLPM, {"quantum": QUANTUM, "no_room": "skip", "refill": "relaxed", "rejoin": "min0"}),
    (DLPM, {"quantum": QUANTUM, "rejoin": "paper_zero"}),
    (HoldingDLPM, {"quantum": QUANTUM, "floor": 100}),
]
DEEP = ("a/x/1", "a/x/2", "a/y", "b/1", "c")


def make(kind, weights=None, **params):
    scheduler = kind(kind.Params(**params))
    scheduler.prepare(Setup(weights=weights or {}))
    return scheduler


@pytest.mark.parametrize(("kind", "params"), FLAT)
def test_without_tenants_the_tree_changes_nothing(kind, params):
    """Clients come and go. Decisions, service and balances are compared at each step."""
    weights = {"a": 0.7, "b": 1.1}
    logs = []
    for tenants in ({}, {"tenants": "tree"}):
        engine = toy(make(kind, weights, **params, **tenants))
        log: list[object] = []
        engine.on_instant = lambda engine=engine, log=log: log.append(
            (list(engine.view.waiting), dict(engine.scheduler.balances()))
        )
        on_and_off(engine, Mix(3, "abcd"), 3, 25)
        logs.append([*log, engine.trace.rows().tolist()])
    flat, tree = ([_ids(one) for one in log[:-1]] + log[-1:] for log in logs)
    assert flat == tree
    assert len(flat) > 200


def _ids(instant):
    waiting, balances = instant
    return [request.request_id for request in waiting], balances


# by hand


def order_of(scheduler, *names, each=4, tail=10, at_most=10_000):
    """Return the order of a pass with room for all, given equal requests of each client."""
    desk, call = Desk(scheduler), Calls()
    for name in names:
        desk.arrive(*(call(name, tail=tail) for _ in range(each)))
    return [request.client for request in desk.run_pass(at_most=at_most)]


@pytest.mark.parametrize(
    ("kind", "params"), [(VTC, {}), (LCF, {}), (PredictiveVTC, {"predictor": "none"})]
)
def test_tenants_and_their_clients_take_turns(kind, params):
    names = ("a/x", "a/y", "b")
    assert order_of(make(kind, **params, tenants="tree"), *names) == [
        *("a/x", "b", "a/y", "b", "a/x", "b", "a/y", "b"),
        *("a/x", "a/y", "a/x", "a/y"),  # b has no requests left, so a gets the rest
    ]
    assert order_of(make(kind, **params), *names)[:6] == ["a/x", "a/y", "b"] * 2


def test_weights_count_among_siblings_at_every_level():
    """a has a third of b's weight, and y twice x's. Of 12 requests, a gets 3, of which y gets 2."""
    weights = {"b": 3.0, "a/y": 2.0}
    order = order_of(make(VTC, weights, tenants="tree"), "a/x", "a/y", "b", each=50, at_most=48)
    assert Counter(order) == {"b": 36, "a/y": 8, "a/x": 4}
    order = order_of(make(VTC, {"a/": 3.0}, tenants="tree"), "a/x", "a/y", "b", each=50, at_most=48)
    assert Counter(order) == {"b": 12, "a/y": 18, "a/x": 18}


def test_dlpm_grants_quanta_level_by_level():
    """At 15 per request and a quantum of 10, every second quantum of a node pays a debt of 5."""
    scheduler = make(DLPM, quantum=10, tenants="tree")
    desk, call = Desk(scheduler), Calls()
    desk.arrive(call("a/x", tail=15), call("a/y", tail=15), call("b", tail=15))
    assert [one.client for one in desk.run_pass(at_most=1)] == ["a/x"]
    # a and b each got a quantum at the top level, and so did x and y within a.
    assert scheduler.credit == {"a/": -5, "a/x": -5, "a/y": 10, "b": 10}
    assert [one.client for one in desk.run_pass(at_most=1)] == [
        "b"
    ]  # a is in debt, although y is not
    assert scheduler.credit == {"a/": -5, "a/x": -5, "a/y": 10, "b": -5}
    assert [one.client for one in desk.run_pass(at_most=1)] == ["a/y"]  # b no longer waits
    assert scheduler.credit == {"a/": -10, "a/x": -5, "a/y": -5, "b": 5}


def test_a_client_that_returns_to_a_busy_tenant_is_lifted_only_there():
    scheduler = make(VTC, tenants="tree")
    desk, call = Desk(scheduler), Calls()
    desk.arrive(call("a/x", tail=30), call("a/x", tail=30), call("b", tail=100))
    assert [one.client for one in desk.run_pass(at_most=2)] == ["a/x", "b"]
    assert scheduler.counters == {"a/": 30, "a/x": 30, "b": 100}
    desk.arrive(call("a/new"), call("b"))
    # A new id starts at the counter of its siblings. Its tenant's counter does not change.
    assert scheduler.counters == {"a/": 30, "a/x": 30, "a/new": 30, "b": 100}
    desk.run_pass()
    # no client waits, so it is lifted to the client that left last, at the top level to b's counter
    desk.arrive(call("c/1"))
    assert scheduler.counters["c/"] == scheduler.counters["b"]
    assert scheduler.counters["c/1"] == 0


def test_a_hold_within_a_tenant_delays_no_other():
    """x runs in credit, y of the same tenant waits in debt, and b continues."""
    scheduler = make(HoldingDLPM, quantum=100, floor=1, tenants="tree")
    desk, call = Desk(scheduler), Calls()
    first = [call("a/x", tail=10), call("a/y", tail=120)]
    desk.arrive(*first)
    assert desk.run_pass() == first
    assert scheduler.credit["a/x"] == 90
    assert scheduler.credit["a/y"] == -20
    scheduler.credit["a/"] = 50
    desk.arrive(call("a/y", tail=10), call("b", tail=10))
    scheduler.credit["b"] = 10
    assert [one.client for one in desk.run_pass()] == ["b"]
    scheduler.on_finish(first[0])
    assert [one.client for one in desk.run_pass()] == ["a/y"]


# comparison with a literal reading


class Literal:
    """DLPM in a tree, one quantum at a time, with every request checked and none skipped."""

    def __init__(self, scheduler: DLPM, idle: set[str]) -> None:
        self.q = dict(scheduler.credit)
        self.scheduler, self.idle = scheduler, idle

    def select(self, order: list[Request], fits) -> list[Request]:
        queue, admitted, left_out = list(order), [], set()
        params = self.scheduler.params
        progressed = True
        while progressed and queue:
            progressed = False
            for r in list(queue):
                path = lineage(r.client)
                for node in path:
                    if self.q[node] <= 0:
                        progressed |= self.check_refill(queue, left_out, parent_of(node))
                    if self.q[node] <= 0:
                        break
                else:
                    if fits(r):
                        for node in path:
                            self.q[node] -= r.input_tokens
                        queue.remove(r)
                        admitted.append(r)
                        progressed = True
                    elif params.no_room == "stop":
                        return admitted
                    elif params.refill == "relaxed":
                        left_out.add(r.client)
        return admitted

    def check_refill(self, queue: list[Request], left_out: set[str], tenant: str) -> bool:
        waiting = children_of(tenant, [r.client for r in queue if r.client not in left_out])
        refilled = False
        while waiting and all(self.q[node] <= 0 for node in waiting):
            for node in [one for one in self.q if parent_of(one) == tenant]:
                if self.q[node] <= 0:
                    self.q[node] += self.scheduler.credits.quantum_of(node)
                    if node in self.idle and self.q[node] > 0:
                        del self.q[node]
            refilled = True
        return refilled


@pytest.mark.parametrize("rules", [("strict", "stop"), ("strict", "skip"), ("relaxed", "skip")])
@pytest.mark.parametrize("seed", range(40))
def test_dlpm_in_a_tree_equals_the_literal_reading(rules, seed):
    rng = random.Random(f"{rules} {seed}")
    weights = {node: rng.choice([1, 2, 3]) for node in with_tenants(DEEP)}
    refill, no_room = rules
    scheduler = make(
        DLPM, weights, quantum=rng.choice([3, 40]), refill=refill, no_room=no_room, tenants="tree"
    )
    at, call = Desk(scheduler), Calls()
    requests = [call(rng.choice(DEEP), tail=rng.randint(1, 40)) for _ in range(rng.randint(1, 12))]
    at.arrive(*requests)
    gone = [one for one in requests if rng.random() < 0.3]
    for one in gone:
        at.view.leave(one)
    busy = {node for one in requests if one not in gone for node in lineage(one.client)}
    for node in scheduler.credit:
        scheduler.credit[node] = rng.randint(-90, 20)
    for one in gone:
        scheduler.on_finish(one)
    literal = Literal(scheduler, set(scheduler.credit) - busy)
    too_long = rng.choice([15, 30, 99])

    def fits(request):
        return request.input_tokens <= too_long

    expected = literal.select(list(at.view.queue_order()), fits)
    assert at.run_pass(fits) == expected
    assert scheduler.credit == literal.q


# shares on a busy engine


def node_rows(trace, node):
    """Return whether a node waits, and its service, at each instant."""
    backlogged, service, _, _ = trace.rows()
    own = [index for index, name in enumerate(trace.clients) if node in lineage(name)]
    return backlogged[own].any(axis=0), service[own].sum(axis=0)


def sibling_gaps(trace, weights):
    """Return the largest weighted service difference while both wait, by pair of siblings."""
    gaps = {}
    for tenant in [ROOT, *tenants_of(trace.clients)]:
        for f, g in combinations(children_of(tenant, trace.clients), 2):
            (waits_f, got_f), (waits_g, got_g) = node_rows(trace, f), node_rows(trace, g)
            ahead = got_f / weights.get(f, 1) - got_g / weights.get(g, 1)
            gaps[f, g] = max((float(np.ptp(ahead[r])) for r in runs(waits_f & waits_g)), default=0)
    return gaps


def policy_of(name, weights, **more):
    if name == "dlpm":
        return make(DLPM, weights, quantum=QUANTUM, **more), QUANTUM, DLPM_UNIT
    return make(VTC, weights, charge=name, **more), 0, VTC_UNIT


@pytest.mark.parametrize("seed", [0, *slow(*range(1, 8))])
@pytest.mark.parametrize("policy", ["extend", "input", "dlpm"])
def test_two_waiting_siblings_differ_by_no_more_than_two_clients_would(policy, seed):
    """The bound at every level is 2 Q + U/w_f + U/w_g. Without the tree, it does not hold."""
    rng = random.Random(f"{policy} {seed}")
    weights = {node: 2 ** rng.uniform(-1, 1) for node in with_tenants(DEEP)}
    scheduler, quantum, unit = policy_of(policy, weights, tenants="tree")
    engine = toy(scheduler, DEEP)
    overload(engine, Mix(seed, DEEP), DEEP, 100)
    for (f, g), gap in sibling_gaps(engine.trace, weights).items():
        assert 0 < gap <= 2 * quantum + unit / weights[f] + unit / weights[g]
    assert isinstance(scheduler.service_bound(), NoBound)


@pytest.mark.parametrize("policy", ["extend", "dlpm"])
def test_without_the_tree_five_ids_exceed_that_bound(policy):
    clients = ("a", *(f"b/{number}" for number in range(5)))
    scheduler, quantum, unit = policy_of(policy, {})
    engine = toy(scheduler, clients)
    overload(engine, Mix(1, clients), clients, 150, depth=20)
    assert sibling_gaps(engine.trace, {})["a", "b/"] > 2 * (quantum + unit)


@pytest.mark.parametrize("policy", ["extend", "dlpm"])
@pytest.mark.parametrize("ids", [1, 5])
def test_the_share_of_an_owner_does_not_depend_on_how_many_ids_it_has(policy, ids):
    """Two owners send the same requests. The second spreads them over several ids."""
    names = tuple(f"b/{number}" for number in range(ids))
    scheduler, quantum, unit = policy_of(policy, {}, tenants="tree")
    engine, rng = toy(scheduler, ("a/0", *names)), random.Random(5)
    mix = Mix(5, ("a/0", *names))
    mix._inputs.update(dict.fromkeys(mix._inputs, 60))
    mix._outputs.update(dict.fromkeys(mix._outputs, 20))
    for _ in range(150):
        for owner in (("a/0",), names):
            while sum(engine.waiting(name) for name in owner) < DEPTH:
                engine.submit(mix(rng.choice(owner)))
        engine.step()
    mine, theirs = (node_rows(engine.trace, owner)[1][-1] for owner in ("a/", "b/"))
    assert abs(mine - theirs) <= 2 * (quantum + unit)
    assert theirs / mine == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("policy", ["extend", "dlpm"])
def test_all_clients_are_served_and_no_slot_is_idle(policy):
    """Tenants and clients come and go with requests of one size. No slot idles while one waits."""
    scheduler, _, _ = policy_of(policy, {"a/": 5.0, "a/y": 0.2}, tenants="tree")
    engine, rng, call = toy(scheduler, DEEP), random.Random(2), Calls()
    sent: Counter[str] = Counter()
    for _ in range(60):
        for client in rng.sample(DEEP, 3):
            engine.submit(call(client, tail=60, max_new=20))
            sent[client] += 1
        engine.step()
    waited = len(engine.view)
    for _ in range(1_000):
        if not any(engine.waiting(one) + engine.running(one) for one in DEEP):
            break
        engine.step()
    assert waited > 30
    assert engine.idle_steps == 0
    assert {one: engine.trace.service_of(one) for one in DEEP} == {
        one: sent[one] * (60 + 2 * 20) for one in DEEP
    }


@pytest.mark.parametrize(("kind", "params"), [(VTC, {}), (DLPM, {"quantum": 10})])
def test_an_explicit_owner_that_the_host_knows_is_a_tenant(kind, params):
    """The decisions are those of clients whose names contain the tenant."""
    call, orders = Calls(), []
    for names in (("a/x", "a/y", "b"), ("x", "y", "b")):
        scheduler = kind(kind.Params(**params, tenants="tree"))
        scheduler.prepare(Setup(tenant_paths={"x": "a/x", "y": "a/y"}, weights={"a/y": 3.0}))
        desk = Desk(scheduler)
        for name in names:
            desk.arrive(*(call(name, tail=10) for _ in range(8)))
        orders.append([names.index(one.client) for one in desk.run_pass()])
    assert orders[0] == orders[1]
    assert orders[0] != sorted(orders[0])
