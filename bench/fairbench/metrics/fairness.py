"""Fair shares of clients and tenants: Jain's index, max-min allocations, and entitlements.

An allocation is max-min fair if no client's part can grow unless a client with an equal or smaller
part gets less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairbench.metrics.arrays import ratio
from fairbench.metrics.contention import contended
from fairbench.metrics.due import shortfall
from fairbench.metrics.reasons import NAN, NOT_CONTENDED
from fairbench.metrics.records import (
    FINISHED,
    UNFINISHED,
    Facts,
    Floats,
    Programs,
    Requests,
    Window,
)
from fairbench.metrics.service import Booked, View, booked_in
from fairbench.metrics.tables import ServiceRows
from fairbench.tenants import ROOT, SEPARATOR, lineage, named_below, parent_of, tenants_of


def max_min(capacity: float, demands: ArrayLike, weights: ArrayLike | None = None) -> Floats:
    """Return the max-min fair allocation, which sums to min(capacity, total demand).

    No client gets more than it demands. Allocations are compared after division by the clients'
    positive ``weights``; None means equal weights. ``demands`` and the result have the shape
    (n_clients,).
    """
    wanted = np.asarray(demands, dtype=np.float64)
    weight = np.ones(len(wanted)) if weights is None else np.asarray(weights, dtype=np.float64)
    assert capacity >= 0
    assert np.all(wanted >= 0)
    assert np.all(weight > 0)
    allocation = np.zeros(len(wanted))
    left = float(capacity)
    order = np.argsort(wanted / weight, kind="stable")
    # ``claims[i]`` is the total weight of the i-th client in ``order`` and of all later clients.
    claims = np.cumsum(weight[order][::-1])[::-1]
    for rank, client in enumerate(order):
        share = left / claims[rank]
        if wanted[client] >= share * weight[client]:
            allocation[order[rank:]] = share * weight[order[rank:]]
            break
        allocation[client] = wanted[client]
        left -= wanted[client]
    return allocation


def max_min_each(capacity: Floats, demands: Floats, weights: Floats) -> Floats:
    """Return the max-min fair allocation for each column of demands.

    ``demands`` and the result have the shape (n_clients, n_columns). ``capacity``, the amount to
    divide in each column, has the shape (n_columns,). ``weights`` has the shape (n_clients,).
    """
    weight = weights[:, np.newaxis]
    order = np.argsort(demands / weight, axis=0, kind="stable")
    wanted = np.take_along_axis(demands, order, axis=0)
    own = np.take_along_axis(np.broadcast_to(weight, demands.shape), order, axis=0)
    before = np.cumsum(wanted, axis=0) - wanted
    claims = np.cumsum(own[::-1], axis=0)[::-1]
    level = np.maximum(0.0, capacity - before) / claims
    # Clients are sorted by demand divided by weight. Clients with low demand get their whole
    # demand. For all other clients, service divided by weight equals the fair level.
    unmet = wanted >= level * own
    first = np.where(unmet.any(axis=0), unmet.argmax(axis=0), len(wanted) - 1)
    fixed = np.where(
        unmet.any(axis=0), np.take_along_axis(level, first[np.newaxis], axis=0)[0], np.inf
    )
    allocation: Floats = np.minimum(demands, fixed * weight)
    return allocation


def jain(allocations: ArrayLike) -> float:
    """Return Jain's index (sum x)^2 / (n * sum x^2), from 1/n to 1 ([DLPM] §6.1).

    Jain's index is NaN if there are no clients, or if all allocations are 0.
    """
    x = np.asarray(allocations, dtype=np.float64)
    assert np.all(x >= 0)
    if x.size == 0 or x.max() == 0:
        return float("nan")
    x = x / x.max()  # Squares of numbers up to 1 cannot overflow.
    return float(x.sum() ** 2 / (x.size * (x**2).sum()))


def entitlement_ratios(service: Floats, entitlement: Floats) -> Floats:
    """Return each client's service divided by its entitlement; NaN where the entitlement is 0."""
    ratios = np.full(len(service), np.nan)
    np.divide(service, entitlement, out=ratios, where=entitlement > 0)
    return ratios


def least(shares: Floats) -> float:
    """Return the lowest part of a fair share that any client got; NaN if all parts are NaN."""
    known = shares[~np.isnan(shares)]
    return float(known.min()) if len(known) else NAN


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The service and the fair shares of all clients in a window.

    Amounts are weighted tokens, and arrays have the shape (n_clients,).

    - ``booked`` holds the token counts of each client, from which service is computed.
    - ``service`` is the input + 2 x output tokens of each client.
    - ``actual`` is the computed service of each client, which leaves out cached input.
    - ``demand`` is the due service in the window: the service received in the window, plus the
      shortfall at the window's end (``due.shortfall``).
    - ``entitlement`` is the client's max-min fair share of the total service, given all demands.
    - ``ratio`` is service divided by entitlement; NaN for a client without an entitlement.
    - ``contended`` is True if some client got too little service; otherwise, ``ratio`` has no
      meaning.
    """

    window: Window
    booked: Booked
    service: Floats
    actual: Floats
    demand: Floats
    entitlement: Floats
    ratio: Floats
    contended: bool

    @property
    def entitled_ratios(self) -> Floats:
        """The ``ratio`` of each client whose entitlement is above 0; empty if not ``contended``."""
        kept: Floats = self.ratio[(self.entitlement > 0) & self.contended]
        return kept

    @property
    def not_judged(self) -> str:
        """The reason why the clients' fair-share ratios are not reported, or "" if they are."""
        return NOT_CONTENDED if not self.contended and np.any(self.entitlement > 0) else ""


def fair_shares(
    requests: Requests, programs: Programs, log: ServiceRows, facts: Facts, window: Window
) -> Shares:
    """Return the service, the demand and the entitlement of each client in the window."""
    weights = facts.weights
    booked = booked_in(log, window, len(facts.clients)).on_one_clock()
    service, actual = booked.seen(View.CLIENT, weights), booked.seen(View.ACTUAL, weights)
    short = shortfall(requests, programs, facts, window.end_s) if window.length_s else 0 * service
    demand = service + short
    entitlement = max_min(float(service.sum()), demand, facts.client_weights)
    ratio = entitlement_ratios(service, entitlement)
    competed = contended(requests, facts, window, short, demand)
    return Shares(window, booked, service, actual, demand, entitlement, ratio, competed)


def all_active_window(programs: Programs, facts: Facts) -> Window | None:
    """Return the DLPM paper's window "during which all clients are active" ([DLPM] §6.1).

    The window begins when the last client sends its first program, and ends when the first client
    finishes its last program. A client with unfinished work is active until the end of the run. The
    result is None if any client sent no program, or if a client finished before another client
    began.
    """
    clients, own = len(facts.clients), programs.client
    done, pending = programs.status == FINISHED, programs.status == UNFINISHED
    start, end = np.full(clients, np.inf), np.full(clients, -np.inf)
    np.minimum.at(start, own, programs.arrival_s)
    with np.errstate(invalid="ignore"):
        np.maximum.at(end, own[done], programs.finish_s[done])
    end[own[pending]] = facts.horizon_s
    if not clients or np.isneginf(end).any() or start.max() >= end.min():
        return None
    return Window(float(start.max()), float(end.min()))


@dataclass(frozen=True, slots=True)
class TenantShares:
    """The fair division of service in a tree whose nodes are tenants and clients.

    - ``tenants`` has one row for each tenant.
    - ``client_shares`` has each client's service divided by its fair share in the tree.
    - ``owners`` lists each client's owner, or "" if the name contains the owner or there is no
      owner.
    - ``worst`` is the lowest share of a node; ``even`` is Jain's index of top-level nodes' service.
    """

    tenants: list[dict[str, Any]]
    client_shares: list[float]
    owners: list[str]
    worst: float
    even: float


def tenant_shares(got: Shares, facts: Facts) -> TenantShares | None:
    """Return the shares of tenants and clients, or None for a run without tenants.

    From the top of the tree down, each tenant's entitlement is divided among the tenant's members
    (weighted max-min fair shares). The owner of a client counts as a tenant.
    """
    places = named_below({one.name: one.owner for one in facts.clients})
    if not tenants_of(places.values()):
        return None
    tree = _Tree(list(places.values()), got.demand, facts)
    entitled = tree.entitlement(float(got.service.sum()))
    had = {node: tree.sum_over(node, got.service) for node in tree.members}
    shares = {
        node: had[node] / entitled[node] if got.contended and entitled[node] > 0 else NAN
        for node in had
    }
    length_s = got.window.length_s
    rows = [
        {
            "tenant": tenant,
            "clients": len(tree.members[tenant]),
            "weight": tree.weight(tenant),
            "service_rate_tok_s": ratio(had[tenant], length_s),
            "demand_tok_s": ratio(tree.sum_over(tenant, got.demand), length_s),
            "entitlement_tok_s": ratio(entitled[tenant], length_s),
            "tree_share": shares[tenant],
        }
        for tenant in tree.tenants
    ]
    own = [(one.name, places[one.name]) for one in facts.clients]
    return TenantShares(
        rows,
        client_shares=[shares[lineage(place)[-1]] for _, place in own],
        owners=["" if place == name else place.partition(SEPARATOR)[0] for name, place in own],
        worst=min((one for one in shares.values() if one == one), default=NAN),
        even=jain([had[node] / tree.weight(node) for node in tree.children[ROOT]]),
    )


class _Tree:
    """A tree of tenants and clients that divides an amount of service among its nodes."""

    def __init__(self, places: Sequence[str], demand: Floats, facts: Facts) -> None:
        self.tenants = list(tenants_of(places))
        self._demand = demand
        self._weights = dict(facts.tenant_weights)
        # ``members`` maps each tenant to the indices of its clients, and each client to its index.
        self.members: dict[str, list[int]] = defaultdict(list)
        self.children: dict[str, dict[str, None]] = defaultdict(dict)
        for index, place in enumerate(places):
            self._weights[lineage(place)[-1]] = facts.clients[index].weight
            for node in lineage(place):
                self.members[node].append(index)
                self.children[parent_of(node)][node] = None

    def weight(self, node: str) -> float:
        return self._weights.get(node, 1.0)

    def sum_over(self, node: str, amounts: Floats) -> float:
        return float(amounts[self.members[node]].sum())

    def entitlement(self, capacity: float) -> dict[str, float]:
        found = {ROOT: capacity}
        for tenant in [ROOT, *self.tenants]:
            below = list(self.children[tenant])
            demands = [self.sum_over(node, self._demand) for node in below]
            parts = max_min(found[tenant], demands, [self.weight(node) for node in below])
            found |= dict(zip(below, parts.tolist(), strict=True))
        return found
