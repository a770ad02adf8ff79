"""Jain's index and max-min entitlement, applied to clients and tenants of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np
from numpy.typing import ArrayLike

from fairbench.metrics.catalogue import CLIENTS, Notes, Part
from fairbench.metrics.contention import contended
from fairbench.metrics.due import shortfall
from fairbench.metrics.max_min import max_min
from fairbench.metrics.metric import NOT_CONTENDED
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
from fairbench.metrics.tables import ServiceLog
from fairbench.metrics.totals import ratio
from fairbench.tenants import ROOT, SEPARATOR, lineage, named_below, parent_of, tenants_of


def jain(allocations: ArrayLike) -> float:
    """Return Jain's index (sum x)^2 / (n * sum x^2), from 1/n to 1 ([DLPM] §6.1).

    The result is NaN if undefined: no clients, or no service at all.
    """
    x = np.asarray(allocations, dtype=np.float64)
    assert np.all(x >= 0)
    if x.size == 0 or x.max() == 0:
        return float("nan")
    x = x / x.max()  # squares of very small or large numbers must not underflow or overflow
    return float(x.sum() ** 2 / (x.size * (x**2).sum()))


def entitlement_ratios(service: Floats, entitlement: Floats) -> Floats:
    """Return service over entitlement; NaN for a client without entitlement."""
    ratios = np.full(len(service), np.nan)
    np.divide(service, entitlement, out=ratios, where=entitlement > 0)
    return ratios


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Service and fair shares of each client in one window, in both views of service.

    Amounts are weighted tokens of the ``booked`` service. ``demand`` is its due service in the
    window: the received service, plus the shortfall at the end (``due.shortfall``). ``entitlement``
    is the max-min allocation of the total delivered service over ``demand``. To judge against
    another total, call ``max_min`` with that total. Unless ``contended``, no client was short of
    service, and the ratios have no meaning.
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
        """The ratios of the clients with an entitlement; none unless ``contended``."""
        kept: Floats = self.ratio[(self.entitlement > 0) & self.contended]
        return kept

    @property
    def not_judged(self) -> str:
        """The reason why ratios are withheld, although they exist."""
        return NOT_CONTENDED if not self.contended and np.any(self.entitlement > 0) else ""


def shares(
    requests: Requests, programs: Programs, log: ServiceLog, facts: Facts, window: Window
) -> Shares:
    """Return each client's service in the window, and its entitlement."""
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
    """Return the paper's window "during which all clients are active" ([DLPM] §6.1).

    The window runs from the latest first arrival to the earliest last completion of a client.
    Unfinished work keeps a client active to the horizon. The result is None if a client has no work
    or the window is empty.
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


NAN = float("nan")


def tenant_shares(got: Shares, facts: Facts, notes: Notes) -> Part:
    """Return each node's entitlement in a fair tree, and the fraction that it received.

    From the top down, a tenant's entitlement is shared max-min, by weight, according to the demands
    inside it. Owners that names do not reveal are tenants too.
    """
    places = named_below({one.name: one.owner for one in facts.clients})
    if not tenants_of(places.values()):
        return Part()
    tree = _Tree(list(places.values()), got.demand, facts)
    entitled = tree.entitlement(float(got.service.sum()))
    had = {node: tree.of(node, got.service) for node in tree.members}
    shares = {
        node: had[node] / entitled[node] if got.contended and entitled[node] > 0 else NAN
        for node in had
    }
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
    clients = []
    for one in facts.clients:
        place, key = places[one.name], f"{CLIENTS}{one.name}.tree_share"
        share = notes.value(key, shares[lineage(place)[-1]], got.not_judged)
        owner = {} if place == one.name else {"owner": place.partition(SEPARATOR)[0]}
        clients.append({"tree_share": share, **owner})
    run = {
        "tree_jain_index": notes.value("tree_jain_index", even),
        "tree_worst_share": notes.value("tree_worst_share", worst, got.not_judged),
        "tenants": rows,
    }
    return Part(run, clients)


class _Tree:
    """The tree of tenants and clients, with the entitlement of each node."""

    def __init__(self, places: Sequence[str], demand: Floats, facts: Facts) -> None:
        self.tenants = list(tenants_of(places))
        self._demand = demand
        self._weights = dict(facts.tenant_weights)
        self.members: dict[str, list[int]] = defaultdict(list)  # numbers of clients by node
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
