"""Test routers in a tree of tenants: D2LPM's credits and fair finish's backlogs at each level."""

import random
from fractions import Fraction
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.base import Setup
from fairbench.schedulers.parts.finishes import TenantBacklog
from fairbench.schedulers.routing.d2lpm import D2LPM
from fairbench.schedulers.routing.fair_finish import FairFinish
from fairbench.tenants import ROOT, children_of, lineage, with_tenants
from tests.schedulers.routing.router_helpers import answer, request

NAMES = ("a/x/1", "a/x/2", "a/y", "b/1", "c")


def make(workers=2, weights=None, **params):
    router = D2LPM(D2LPM.Params(**params), workers)
    router.prepare(Setup(weights=weights or {}))
    return router


def driven(router, names, seed, steps=150):
    """Send random requests that arrive, end and fail; return their workers."""
    rng, under_way, went = random.Random(seed), [], []
    for number in range(steps):
        new = request(number, rng.choice(names), (f"doc{rng.randrange(4)}", rng.randint(1, 90)))
        under_way.append((new, router.route(new, 0.0)))
        went.append(under_way[-1][1])
        while under_way and rng.random() < 0.5:
            old, worker = under_way.pop(rng.randrange(len(under_way)))
            if rng.random() < 0.2:
                router.on_failure(old, worker, 0.0)
            else:
                router.on_finish(old, worker, answer(rng.randint(1, 30)), 0.0)
        if number == steps // 2:
            router.on_worker_leave(0, 0.0)
            under_way = [one for one in under_way if one[1] != 0]
            router.on_worker_join(0, 0.0)
    return went


@pytest.mark.parametrize("charge", ["input", "uncached", "split"])
def test_without_tenants_the_tree_changes_nothing(charge):
    flat, tree = (
        make(3, {"a": 2.0}, worker_quantum=200, charge=charge, **more)
        for more in ({}, {"tenants": "tree"})
    )
    assert driven(flat, "abcd", 1) == driven(tree, "abcd", 1)
    assert flat.credit == tree.credit


@pytest.mark.parametrize("seed", range(5))
def test_the_credit_of_a_tenant_is_bounded_like_that_of_a_client(seed):
    """The credit is at most the tenant's quantum, and its debt at most its work in flight there."""
    router = make(3, {"a/": 3.0}, worker_quantum=200, tenants="tree")
    driven(router, NAMES, seed)
    assert set(router.credit) == {node for name in NAMES for node in lineage(name)}
    for node, credit in router.credit.items():
        assert max(credit.values()) <= 200 * (3 if node == "a/" else 1)


@pytest.mark.parametrize(("more", "expected"), [({}, 20), ({"tenants": "tree"}, 4)])
def test_many_ids_keep_a_worker_no_longer_than_one(more, expected):
    """Requests cost 30 and the quantum is 100: four bring one id into debt, and five ids do five
    times as much.
    """
    router = make(worker_quantum=100, **more)
    went = [
        router.route(request(number, f"a/{number % 5}", ("doc", 30)), 0.0) for number in range(30)
    ]
    assert len(list(takewhile(lambda worker: worker == went[0], went))) == expected


def test_a_client_gets_a_quantum_at_workers_that_its_tenant_may_use():
    router = make(worker_quantum=100, tenants="tree")
    first = router.route(request(0, "a/x", ("doc", 130)), 0.0)
    assert router.credit == {
        "a/": {first: -30, 1 - first: 100},
        "a/x": {first: -30, 1 - first: 100},
    }
    # y is new; its tenant is in credit at the other worker only.
    assert router.route(request(1, "a/y", ("doc", 130)), 0.0) == 1 - first
    assert router.credit["a/"] == {first: -30, 1 - first: -30}
    assert router.credit["a/y"] == {first: 100, 1 - first: -30}
    # a gets a quantum at both; y, in credit at the first, stays there.
    assert router.route(request(2, "a/y", ("doc", 10)), 0.0) == first
    assert router.credit["a/"] == {first: 60, 1 - first: 70}
    assert router.credit["a/y"] == {first: 90, 1 - first: -30}


def test_charges_of_a_failed_worker_are_refunded_at_every_level():
    router = make(1, worker_quantum=100, tenants="tree")
    one = request(0, "org/team/user", ("doc", 30))
    router.route(one, 0.0)
    assert [credit[0] for credit in router.credit.values()] == [70, 70, 70]
    router.on_failure(one, 0, 0.0)
    assert [credit[0] for credit in router.credit.values()] == [100, 100, 100]


def fluid(work, weights, client):
    """Return the total service until a client is done, shared between siblings at every moment."""
    left, served = dict(work), Fraction(0)
    while left[client]:
        rates = _rates(ROOT, Fraction(1), [one for one in left if left[one]], weights)
        step = min(left[one] / rate for one, rate in rates.items())
        for one, rate in rates.items():
            left[one] -= step * rate
        served += step
    return served


def _rates(tenant, rate, clients, weights):
    nodes = children_of(tenant, clients)
    total = sum(weights.get(node, 1) for node in nodes)
    found = {}
    for node in nodes:
        own, below = rate * weights.get(node, 1) / total, [c for c in clients if node in lineage(c)]
        found |= {node: own} if node in clients else _rates(node, own, below, weights)
    return found


@given(
    st.fixed_dictionaries({name: st.integers(0, 60) for name in NAMES}),
    st.fixed_dictionaries({node: st.sampled_from([1, 2, 5]) for node in with_tenants(NAMES)}),
    st.sampled_from(NAMES),
    st.integers(1, 60),
)
def test_a_backlog_ends_when_it_would_end_under_fluid_sharing_in_the_tree(
    work, weights, client, more
):
    backlog = TenantBacklog(lambda node: weights.get(node, 1))
    backlog.add_work(99, client, 7)
    backlog.remove_work(99)
    for number, (name, amount) in enumerate(work.items()):
        if amount:
            backlog.add_work(number, name, amount)
    work = {name: Fraction(amount) for name, amount in work.items()}
    expected = fluid({**work, client: work[client] + more}, weights, client)
    assert backlog.finish_of_more(client, more) == pytest.approx(float(expected))


def test_five_ids_delay_others_no_more_than_one():
    """ann's 10 are done after 10 of mal's, however many of mal's ids have work there."""
    for ids in (1, 5):
        backlog = TenantBacklog(lambda node: 1)
        for number in range(ids):
            backlog.add_work(number, f"mal/{number}", 100)
        assert backlog.finish_of_more("ann", 10) == 20
        assert backlog.finish_of_more("mal/0", 10) == 110 + 100 * (ids - 1)


def test_fair_finish_without_tenants_equals_the_form_without_a_tree():
    went = []
    for more in ({}, {"tenants": "tree"}):
        router = FairFinish(FairFinish.Params(slack=2, **more), 3)
        router.prepare(Setup(weights={"a": 2.0}))
        went.append(driven(router, "abcd", 1))
    assert went[0] == went[1]
    assert len(set(went[0])) == 3
