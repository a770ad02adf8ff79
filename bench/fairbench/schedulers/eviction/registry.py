"""Eviction policies by name. To add a policy, write its file and add its line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairbench.errors import unknown_name
from fairbench.named import imported
from fairbench.schedulers.params import make_params

if TYPE_CHECKING:
    from fairbench.schedulers.eviction.policy import EvictionPolicy

DEFAULT_EVICTION = "lru"

_HERE = "fairbench.schedulers.eviction"
EVICTIONS = {
    "lru": f"{_HERE}.lru:LRU",
    "lfu": f"{_HERE}.lfu:LFU",
    "quota": f"{_HERE}.quota:Quota",
    "quota-lending": f"{_HERE}.quota_lending:QuotaLending",
    "max-min": f"{_HERE}.max_min:MaxMin",
    "retention": f"{_HERE}.retention:Retention",
}


def eviction_class(name: str) -> type[EvictionPolicy]:
    """Return the class of a policy. Raises UsageError for an unknown name."""
    if name not in EVICTIONS:
        raise unknown_name("eviction", name, EVICTIONS)
    found: type[EvictionPolicy] = imported(EVICTIONS[name])
    return found


def build_eviction(name: str, settings: Mapping[str, Any]) -> EvictionPolicy:
    """Return a fresh policy. Settings and errors are as in ``schedulers.registry.build_local``."""
    policy: Any = eviction_class(name)
    built: EvictionPolicy = policy(make_params(name, policy.Params, settings))
    return built
