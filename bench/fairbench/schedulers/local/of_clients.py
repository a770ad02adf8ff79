"""Settings of single clients in a scheduler's parameters, such as priorities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairbench.core import Request
from fairbench.errors import unknown_name
from fairbench.schedulers.setup import Setup


def check_clients(owner: str, of: Iterable[str], setup: Setup) -> None:
    """Raise UsageError for an unknown client, if all clients are known in advance.

    Args:
        owner: Name of the setting, for the message.
        of: Names of the clients in the setting.
        setup: Facts of the experiment, with its clients if they are known.
    """
    for client in of:
        if setup.clients and client not in setup.clients:
            raise unknown_name(f"client in {owner}", client, setup.clients)


def priority_of(request: Request, of: Mapping[str, int]) -> int:
    """Return the priority of the request's client, or the request's own."""
    return of.get(request.client, request.priority)
