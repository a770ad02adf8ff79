"""Names that a driver sends: of clients, and of their objectives (latency targets).

A client with an owner from ``client_owners`` is sent as its path in the tree of tenants,
``owner/client``, as simulated schedulers know it. An objective is named in a header, as in llm-d;
the router has the targets of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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


def objectives(spec: ExperimentSpec) -> Mapping[str, str]:
    """Return client -> name of its objective, for clients with latency targets."""
    return {client: name for client, name, _ in _named(spec)}


def time_scale_of(spec: ExperimentSpec) -> float:
    """Return the seconds of the run in a second of a clock."""
    return float(getattr(spec.backend, "time_scale", 1.0))


def objective_flags(spec: ExperimentSpec) -> list[str]:
    """Return ``serve`` flags for the latency objectives, in seconds of a clock.

    Objectives given only as a multiple of the unloaded latency are left out, because the router
    does not know that latency.
    """
    flags, time_scale = [], time_scale_of(spec)
    for _, name, times_s in _named(spec):
        for latency, time_s in times_s.items():
            flags += ["--goodput", f"{name}.{latency}:{time_s / time_scale * 1000:.12g}ms"]
    return flags


def _named(spec: ExperimentSpec) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    for number, plan in enumerate(spec.client_plans()):
        given = plan.targets.given()
        times_s = {latency: one.amount for latency, one in given if not one.of_alone}
        if times_s:
            yield plan.client, f"client-{number}", times_s
