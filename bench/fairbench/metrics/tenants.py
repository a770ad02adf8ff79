"""Tenants in a summary: shares of siblings at each level; empty without tenants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import numpy as np

from fairbench.metrics.fairness import Shares, entitlement_ratios, jain, max_min
from fairbench.metrics.notes import Notes
from fairbench.metrics.records import Facts, Floats
from fairbench.metrics.totals import ratio
from fairbench.tenants import ROOT, SEPARATOR, lineage, named_below, parent_of, tenants_of

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class TenantShares:
    """Values by key: of the run, and of each client by its name."""

    run: Mapping[str, Any] = field(default_factory=dict)
    clients: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def tenant_shares(got: Shares, facts: Facts, notes: Notes) -> TenantShares:
    """Return each node's entitlement in a fair tree, and the fraction that it received.

    From the top down, a tenant's entitlement is shared max-min, by weight, according to the demands
    inside it. Owners that names do not reveal are tenants too.

    Args:
        got: Service and fair share of each client in the window.
        facts: Facts about the run that the tables do not contain.
        notes: Notes of the summary under construction, to which new ones are added.
    """
    places = named_below({one.name: one.owner for one in facts.clients})
    if not tenants_of(places.values()):
        return TenantShares()
    tree = _Tree(list(places.values()), got.demand, facts)
    entitled = tree.entitlement(float(got.service.sum()))
    had = {node: tree.of(node, got.service) for node in tree.members}
    shares = {node: _share(had[node], entitled[node]) if got.contended else NAN for node in had}
    even = jain([had[node] / tree.weight(node) for node in tree.children[ROOT]])
    worst = min((one for one in shares.values() if not isnan(one)), default=NAN)
    length_s = got.window.length_s
    rows = [
        {
            "tenant": tenant,
            "clients": len(tree.members[tenant]),
            "weight": tree.weight(tenant),
            "service_rate_tok_s": ratio(had[tenant], length_s),
            "demand_tok_s": ratio(tree.of(tenant, got.demand), length_s),
            "entitlement_tok_s": ratio(entitled[tenant], length_s),
            "tree_share": shares[tenant],
        }
        for tenant in tree.tenants
    ]
    clients: dict[str, dict[str, Any]] = {}
    for one in facts.clients:
        place, key = places[one.name], f"clients.{one.name}.tree_share"
        share = notes.value(key, shares[lineage(place)[-1]], got.not_judged)
        clients[one.name] = {"tree_share": share}
        if place != one.name:
            clients[one.name]["owner"] = place.partition(SEPARATOR)[0]
    run = {
        "tree_jain_index": notes.value("tree_jain_index", even),
        "tree_worst_share": notes.value("tree_worst_share", worst, got.not_judged),
        "tenants": rows,
    }
    return TenantShares(run, clients)


def _share(service: float, entitlement: float) -> float:
    return float(entitlement_ratios(np.array([service]), np.array([entitlement]))[0])


class _Tree:
    """The tree of tenants and clients, with the entitlement of each node."""

    def __init__(self, places: Sequence[str], demand: Floats, facts: Facts) -> None:
        self.tenants = list(tenants_of(places))
        self._demand = demand
        self._weights = dict(facts.tenant_weights)
        self.members: dict[str, list[int]] = defaultdict(list)  # clients by node, by number
        self.children: dict[str, dict[str, None]] = defaultdict(dict)
        for index, place in enumerate(places):
            self._weights[lineage(place)[-1]] = facts.clients[index].weight
            for node in lineage(place):
                self.members[node].append(index)
                self.children[parent_of(node)][node] = None

    def weight(self, node: str) -> float:
        return self._weights.get(node, 1.0)

    def of(self, node: str, amounts: Floats) -> float:
        """Return the sum over a node's clients."""
        return float(amounts[self.members[node]].sum())

    def entitlement(self, capacity: float) -> dict[str, float]:
        """Return each node's entitlement to a total capacity."""
        found = {ROOT: capacity}
        for tenant in [ROOT, *self.tenants]:
            below = list(self.children[tenant])
            demands = [self.of(node, self._demand) for node in below]
            parts = max_min(found[tenant], demands, [self.weight(node) for node in below])
            found |= dict(zip(below, parts.tolist(), strict=True))
        return found
