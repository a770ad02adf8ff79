"""Test shares in a tree of tenants by hand, and that runs without tenants have none."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.fairness import Shares, entitlement_ratios, max_min, tenant_shares
from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.metrics.records import Client, Facts, Window
from fairbench.metrics.service import Booked
from fairbench.report.result_lines import tenant_lines


def facts_of(clients, **more):
    return Facts(tuple(clients), Window(0.0, 10.0), 10.0, 1, 1000, **more)


def shares_of(service, demand, contended=True):
    service, demand = (np.array(one, dtype=np.float64) for one in (service, demand))
    fair = max_min(float(service.sum()), demand)
    ratios = entitlement_ratios(service, fair)
    booked = Booked(service, service, service, 0 * service)
    return Shares(Window(0.0, 10.0), booked, service, service, demand, fair, ratios, contended)


def clients_of(*names, **owners):
    return [Client(name, False, owner=owners.get(name, "")) for name in names]


def test_five_ids_are_one_owner():
    """Two owners want all of 1,000. Each is entitled to 500, and each of five ids to 100."""
    names = ("ann", *(f"mal/{number}" for number in range(5)))
    got = shares_of([1000 / 6] * 6, [1000] * 6)
    found = tenant_shares(got, facts_of(clients_of(*names)))
    (row,) = found.tenants
    assert (row["tenant"], row["clients"], row["weight"]) == ("mal/", 5, 1)
    assert row["service_rate_tok_s"] == pytest.approx(1000 * 5 / 6 / 10)
    assert row["entitlement_tok_s"] == pytest.approx(50)
    assert found.client_shares[0] == pytest.approx(1 / 3)
    assert found.client_shares[1] == pytest.approx(5 / 3)
    assert found.worst == pytest.approx(1 / 3)
    assert found.even == pytest.approx(1 / (2 * (25 + 1) / 36))


def test_an_explicit_owner_counts_like_an_owner_in_the_name():
    service, demand = [10, 30, 20, 40], [50] * 4
    told = clients_of("ann", "mal/x", "mal/y", "bob")
    hidden = clients_of("ann", "mal", "y", "bob", y="mal")
    runs = [tenant_shares(shares_of(service, demand), facts_of(c)) for c in (told, hidden)]
    assert replace(runs[0], owners=[]) == replace(runs[1], owners=[])
    assert runs[1].owners == ["", "mal", "mal", ""]


def test_weights_and_unused_shares_stay_within_the_tenant():
    """a has weight 3 and is entitled to 900 of 1,200. x wants 100, so y gets 800; b gets 300."""
    clients = clients_of("a/x", "a/y", "b")
    facts = facts_of(clients, tenant_weights={"a/": 3.0})
    found = tenant_shares(shares_of([100, 400, 700], [100, 2000, 2000]), facts)
    assert found.tenants[0]["entitlement_tok_s"] == 90
    assert found.client_shares == [1, 0.5, pytest.approx(7 / 3)]
    assert found.worst == 0.5


def test_without_tenants_no_values_and_without_contention_no_share():
    plain = tenant_shares(shares_of([1, 2], [3, 3]), facts_of(clients_of("a", "b")))
    assert plain is None
    got = shares_of([1, 2], [1, 2], False)
    calm = tenant_shares(got, facts_of(clients_of("a/x", "b/y")))
    assert np.isnan([calm.worst, *calm.client_shares]).all()
    assert got.not_judged == NOT_CONTENDED
    tenants = [row | {"tree_share": None} for row in calm.tenants]
    summary = {"tenants": tenants, "tree_worst_share": None, "tree_jain_index": calm.even}
    assert json.dumps(dict(tenant_lines(summary)))


PLACES = st.lists(st.sampled_from(["a/x/1", "a/x/2", "a/y", "b/1", "c"]), unique=True, min_size=1)


@given(PLACES, st.data())
def test_entitlements_add_up_at_every_level_within_due_service(names, data):
    amounts = st.lists(st.integers(0, 1000), min_size=len(names), max_size=len(names))
    service = data.draw(amounts)
    demand = [had + more for had, more in zip(service, data.draw(amounts), strict=True)]
    weights = {"a/": data.draw(st.sampled_from([0.5, 1.0, 4.0]))}
    facts = facts_of(clients_of(*names), tenant_weights=weights)
    found = tenant_shares(shares_of(service, demand), facts)
    if found is None:
        return
    entitled = {row["tenant"]: 10 * row["entitlement_tok_s"] for row in found.tenants}
    for tenant, amount in entitled.items():
        own = [index for index, name in enumerate(names) if name.startswith(tenant)]
        assert amount <= sum(demand[index] for index in own) + 1e-6
        within = [
            service[index] / share for index in own if (share := found.client_shares[index]) > 0
        ]
        assert sum(within) <= amount + 1e-6
