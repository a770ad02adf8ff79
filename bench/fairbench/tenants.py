"""The tree of tenants, whose leaves are clients with names such as ``org/team/user``.

A node of the tenant tree is a text: a client's name, a tenant's name that ends in / (``org/``,
``org/team/``), or "" for the root. Clients and tenants never share a name, so one mapping can hold
the weights of both. If no client's name contains a separator, schedulers ignore tenants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

SEPARATOR = "/"
ROOT = ""
Tenants: TypeAlias = Literal["tree"]
"""The type of the parameter ``tenants``: ``tree`` for fair shares at each level, or None."""

# maximum number of client names whose tenants are cached
REMEMBERED = 2**16


@lru_cache(maxsize=REMEMBERED)
def lineage(client: str) -> tuple[str, ...]:
    """Return a client's tenants, the outermost first, followed by the client's own node."""
    ends = [at + 1 for at, letter in enumerate(client) if letter == SEPARATOR]
    # A client may be called ``org/``, like the node of a tenant. A null character at the end
    # distinguishes a client ``org/`` from the tenant ``org/``.
    leaf = client + "\0" if client.endswith(SEPARATOR) else client
    return (*(client[:end] for end in ends), leaf)


def owner_of(client: str) -> str:
    """Return a client's outermost tenant, or the client itself if it has no tenant."""
    return client.partition(SEPARATOR)[0]


def named_below(owners: Mapping[str, str]) -> dict[str, str]:
    """Return each client's name in the tree of tenants.

    ``owners`` maps clients to their owners, or to "" for none. In the tree of tenants, a client's
    name begins with its owner's name. If a client ``a`` owns other clients, its name in the tree is
    ``a/a``.
    """
    said = {name: owner or owner_of(name) for name, owner in owners.items()}
    hidden = {owner for name, owner in said.items() if owner != owner_of(name)}
    return {
        name: f"{owner}{SEPARATOR}{name}" if owner in hidden and owner_of(name) == name else name
        for name, owner in said.items()
    }


def child_of(tenant: str, client: str) -> str | None:
    """Return the child of ``tenant`` on the path to a client, or None without such a path."""
    nodes, depth = lineage(client), tenant.count(SEPARATOR)
    below = tenant == ROOT or (len(nodes) > depth and nodes[depth - 1] == tenant)
    return nodes[depth] if below else None


@lru_cache(maxsize=REMEMBERED)
def parent_of(node: str) -> str:
    """Return the parent tenant of a node (a client or tenant)."""
    return node[: node.rfind(SEPARATOR, 0, -1) + 1]


def children_of(tenant: str, clients: Iterable[str]) -> dict[str, None]:
    """Return the tenant's children that are among the given clients or contain one of them."""
    children = (child_of(tenant, client) for client in clients)
    return {child: None for child in children if child is not None}


def with_tenants(clients: Iterable[str]) -> list[str]:
    """Return the names that can have a weight: the given clients, then their tenants."""
    names = list(clients)
    return [*names, *tenants_of(names)]


def tenants_of(clients: Iterable[str]) -> dict[str, None]:
    """Return all tenants of the given clients, the outer tenants first."""
    return {tenant: None for client in clients for tenant in lineage(client)[:-1]}
