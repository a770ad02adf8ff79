"""The eviction policy of a run as its servers get it, with clients by the names in requests."""

from __future__ import annotations

from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.live.plugins.config import Evicting
from fairbench.live.sent_names import sent_names


def sent_evicting(spec: ExperimentSpec) -> Evicting:
    """Return the eviction policy and the clients that it tells apart."""
    names = sent_names(spec)
    clients = spec.workload.name_clients(spec.clients)
    return Evicting(spec.eviction, tuple(names.get(one, one) for one in clients))


def sent_settings(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the settings of the run, with the clients of quotas by the names in requests."""
    names, quotas = sent_names(spec), f"{spec.eviction}.percent"
    settings = dict(spec.settings)
    if names and quotas in settings:
        settings[quotas] = {names.get(one, one): of for one, of in settings[quotas].items()}
    return settings
