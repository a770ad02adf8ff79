"""Sent names: the names of clients in requests to routers and servers.

One whose owner only the workload tells (``client_owners``) goes by where it is in the tree of
tenants, ``owner/client``, as simulated schedulers know it.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairbench.config import ExperimentSpec
from fairbench.tenants import named_below


def sent_names(spec: ExperimentSpec) -> Mapping[str, str]:
    """Return client -> name in its requests, for clients with a different name there."""
    owners = spec.workload.client_owners or {}
    clients = spec.workload.name_clients(spec.clients)
    sent = named_below({client: owners.get(client, "") for client in clients})
    return {client: name for client, name in sent.items() if name != client}


def sent_weights(spec: ExperimentSpec) -> dict[str, float]:
    """Return the weights of clients and tenants by the names in their requests."""
    names = sent_names(spec)
    return {names.get(one, one): weight for one, weight in (spec.weights or {}).items()}
