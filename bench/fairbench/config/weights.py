"""The clients' weights, merged from workload, file, settings and flags."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from fairbench.config.spec import MAX_CLIENTS
from fairbench.errors import UsageError
from fairbench.tenants import with_tenants
from fairbench.workloads.model import WorkloadSpec

# Weights belong to the experiment. These parameters of local schedulers were there before, and are
# another spelling: what they say is moved.
SPELLINGS = frozenset({"vtc.weights", "vtc-predict.weights", "lcf.weights"})


class MovedWeights(NamedTuple):
    """Settings without weights, and the weights."""

    settings: dict[str, Any]
    weights: dict[str, Any]


def moved_weights(
    settings: Mapping[str, Any], weights: Mapping[str, Any], assigned: Container[str]
) -> MovedWeights:
    """Return the settings of the parts in use without weights, and all weights in one table.

    Weights of an ``assigned`` setting override the file's ``weights``; the file's override those of
    all other settings.
    """
    kept, found = dict(settings), dict(weights)
    for key in SPELLINGS.intersection(settings):
        moved, kept[key] = settings[key], {}
        found = found | moved if key in assigned else moved | found
    return MovedWeights(kept, found)


def table_of(keys: Mapping[str, Any], key: str = "weights") -> dict[str, Any]:
    """Return the table under a key, if present. Raises UsageError for another type."""
    value = keys.get(key) or {}
    if not isinstance(value, Mapping):
        shape = "NAME = WEIGHT" if key == "weights" else "LATENCY = TIME"
        raise UsageError(f"{key} = {value!r}: must be a table of {shape}").of(key)
    return dict(value)


def resolve_weights(
    workload: WorkloadSpec, clients: Any, given: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return a run's weights: the workload's own, overridden by ``given``.

    Clients without a weight have 1. A given weight of 1 is omitted unless the workload has another
    one. The result is None if there are no weights. Errors in ``clients`` or ``given`` are left to
    the spec.
    """
    own = workload.client_weights or {}
    if not (given or own):
        return None
    count = min(clients, MAX_CLIENTS) if isinstance(clients, int) else workload.clients
    names = dict.fromkeys(with_tenants(workload.name_clients(count)))
    said = {name: one for name, one in own.items() if name in names}
    silent = {name for name, one in given.items() if one == 1 and name in names} - own.keys()
    said |= {name: one for name, one in given.items() if name not in silent}
    # In the order of the clients, so that the same weights make the same experiment.
    return {name: said[name] for name in (names | said) if name in said} or None
