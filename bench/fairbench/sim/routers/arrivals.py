"""Ingress: at which of several routers a request arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random

from fairbench.core import Request
from fairbench.schedulers.peers.params import RoutersParams, shares
from fairbench.streams import stream

Arrives = Callable[[Request], int]
"""The number of the router at which a request arrives; asked once for each, in order of arrival."""


def arrivals(params: RoutersParams, number: int, clients: Sequence[str], seed: int) -> Arrives:
    """Return a function that assigns requests of these clients to ``number`` routers.

    A client's n-th request arrives at the same router whatever the others do.
    """
    bounds = list(accumulate(shares(params.skew, number)))
    if params.form == "sticky":
        homes = {client: _drawn(stream(0, f"home/{client}"), bounds) for client in clients}
        return lambda request: homes[request.client]
    turned = params.favourite == "each"
    favourites = {client: place if turned else 0 for place, client in enumerate(clients)}
    draws = {client: stream(seed, f"ingress/{client}") for client in clients}

    def arrives(request: Request) -> int:
        client = request.client
        return (favourites[client] + _drawn(draws[client], bounds)) % number

    return arrives


def _drawn(rng: Random, bounds: Sequence[float]) -> int:
    """Draw the index of a part, given the upper ``bounds`` of the parts."""
    drawn = rng.random()
    return next((at for at, bound in enumerate(bounds) if drawn < bound), len(bounds) - 1)
