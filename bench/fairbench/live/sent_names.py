"""Sent names: the names of clients in requests to routers and servers.

One whose owner only the workload tells (``client_owners``) goes by where it is in the tree of
tenants, ``owner/client``, as simulated schedulers know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.live.plugins.config import Evicting
from fairbench.tenants import named_below


def sent_names(spec: ExperimentSpec) -> Mapping[str, str]:
    """Return client -> name in its requests, for clients with a different name there."""
    owners = spec.workload.client_owners or {}
    clients = spec.workload.name_clients(spec.clients)
    sent = named_below({client: owners.get(client, "") for client in clients})
    return {client: name for client, name in sent.items() if name != client}


def sent_evicting(spec: ExperimentSpec) -> Evicting:
    """Return the eviction policy with the clients by the names in their requests."""
    names = sent_names(spec)
    clients = spec.workload.name_clients(spec.clients)
    return Evicting(spec.eviction, tuple(names.get(one, one) for one in clients))


def sent_settings(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the settings, with the clients of quotas by the names in their requests."""
    names, quotas = sent_names(spec), f"{spec.eviction}.percent"
    settings = dict(spec.settings)
    if names and quotas in settings:
        settings[quotas] = {names.get(one, one): of for one, of in settings[quotas].items()}
    return settings


def sent_weights(spec: ExperimentSpec) -> dict[str, float]:
    """Return the weights of clients and tenants by the names in their requests."""
    names = sent_names(spec)
    return {names.get(one, one): weight for one, weight in (spec.weights or {}).items()}
