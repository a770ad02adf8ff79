"""Eviction policies by name, and the parameter that turns on memory shares.

To add a policy, write a class and add a line to the table in this module. Installed packages add
policies by entry points of the group ``fairbench.evictions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairbench.doors import with_registered
from fairbench.errors import UsageError, unknown_name
from fairbench.named import imported
from fairbench.schedulers.params import make_params

if TYPE_CHECKING:
    from fairbench.schedulers.eviction.policies import EvictionPolicy

DEFAULT_EVICTION = "lru"
EVICTION_GROUP = "fairbench.evictions"
MEMORY = "memory"  # the prefix of the settings that ``MemoryParams`` defines

_HERE = "fairbench.schedulers.eviction"
EVICTIONS = {
    "lru": f"{_HERE}.policies:LRU",
    "lfu": f"{_HERE}.policies:LFU",
    "quota": f"{_HERE}.policies:QuotaEviction",
    "quota-lending": f"{_HERE}.policies:QuotaLending",
    "max-min": f"{_HERE}.policies:MaxMin",
    "retention": f"{_HERE}.policies:Retention",
}
ALL_EVICTIONS = with_registered(EVICTIONS, EVICTION_GROUP)
"""The ``module:class`` of each eviction policy by name, including installed policies."""


@dataclass(frozen=True)
class MemoryParams:
    """The parameter that turns on fair shares of KV memory at admission.

    With ``share``, a client above its share of running and cached tokens waits while another client
    needs the memory.
    """

    share: bool = False


SHARE = f"{MEMORY}.share"


def check_shares(policy: str | None) -> None:
    """Raise UsageError unless the eviction policy defines the shares for ``memory.share``.

    The policy None stands for the engine's own eviction order.
    """
    from fairbench.schedulers.eviction.policies import ClientEviction

    if (
        policy is not None
        and policy in ALL_EVICTIONS
        and issubclass(eviction_class(policy), ClientEviction)
    ):
        return
    by_client = [repr(one) for one in EVICTIONS if issubclass(eviction_class(one), ClientEviction)]
    raise UsageError(
        f"{SHARE} = True: needs an eviction policy with shares: set eviction to "
        f"{' or '.join(by_client)}"
    )


def eviction_class(name: str) -> type[EvictionPolicy]:
    """Return the class of an eviction policy. Raises UsageError for an unknown eviction policy."""
    if name not in ALL_EVICTIONS:
        raise unknown_name("eviction", name, ALL_EVICTIONS)
    found: type[EvictionPolicy] = imported(ALL_EVICTIONS[name])
    return found


def build_eviction(name: str, settings: Mapping[str, Any]) -> EvictionPolicy:
    """Return a new policy with the parameters in ``settings``, whose keys are NAME.PARAM.

    Raises UsageError for an unknown name or an invalid parameter.
    """
    policy = eviction_class(name)
    return policy(make_params(name, policy.Params, settings))
