"""Tenants: a tree whose leaves are clients with names such as ``org/team/user``.

A node of the tree is a text: a client's node is its name, a tenant's ends in the separator, as a
folder does (``org/``, ``org/team/``), and the root is empty. Names of clients and tenants therefore
never collide, and one mapping holds the weights of both. A name without a separator is a tree of
one level, in which tenants change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

SEPARATOR = "/"
ROOT = ""
Tenants: TypeAlias = Literal["tree"]
"""A scheduler's parameter: ``tree`` shares between tenants first, level by level; None does not."""

REMEMBERED = 2**16  # limit on names, if clients are not known in advance


@lru_cache(maxsize=REMEMBERED)
def lineage(client: str) -> tuple[str, ...]:
    """Return the nodes of a client: its tenants from the outermost, then the client."""
    ends = [at + 1 for at, letter in enumerate(client) if letter == SEPARATOR]
    # At a server any name is allowed; a name with an empty last part is not its own tenant.
    leaf = client + "\0" if client.endswith(SEPARATOR) else client
    return (*(client[:end] for end in ends), leaf)


def owner_of(client: str) -> str:
    """Return a client's owner by its name: the outermost tenant, or the client itself."""
    return client.partition(SEPARATOR)[0]


def named_below(owners: Mapping[str, str]) -> dict[str, str]:
    """Return the position of clients in the tree, given the owner of each ("" for itself).

    A client whose name does not contain its owner is placed below the owner, and so is a client
    that owns others.
    """
    said = {name: owner or owner_of(name) for name, owner in owners.items()}
    hidden = {owner for name, owner in said.items() if owner != owner_of(name)}
    return {
        name: f"{owner}{SEPARATOR}{name}" if owner in hidden and owner_of(name) == name else name
        for name, owner in said.items()
    }


def child_of(tenant: str, client: str) -> str | None:
    """Return the node below a tenant that leads to a client; None for other clients."""
    nodes, depth = lineage(client), tenant.count(SEPARATOR)
    below = tenant == ROOT or (len(nodes) > depth and nodes[depth - 1] == tenant)
    return nodes[depth] if below else None


@lru_cache(maxsize=REMEMBERED)
def parent_of(node: str) -> str:
    """Return the tenant of a node."""
    return node[: node.rfind(SEPARATOR, 0, -1) + 1]


def children_of(tenant: str, clients: Iterable[str]) -> dict[str, None]:
    """Return the nodes below a tenant that lead to these clients, in their order."""
    children = (child_of(tenant, client) for client in clients)
    return {child: None for child in children if child is not None}


def with_tenants(clients: Iterable[str]) -> list[str]:
    """Return the names that can have a weight: these clients, then their tenants."""
    names = list(clients)
    return [*names, *tenants_of(names)]


def tenants_of(clients: Iterable[str]) -> dict[str, None]:
    """Return all tenants of these clients, outer before inner; none for plain names."""
    return {tenant: None for client in clients for tenant in lineage(client)[:-1]}
