"""Schedulers that are pure state machines; the module ``base`` defines their interfaces."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.schedulers.eviction.registry import DEFAULT_EVICTION as DEFAULT_EVICTION
    from fairbench.schedulers.eviction.registry import MEMORY as MEMORY
    from fairbench.schedulers.eviction.registry import MemoryParams as MemoryParams
    from fairbench.schedulers.eviction.registry import eviction_class as eviction_class
    from fairbench.schedulers.params import default_settings as default_settings
    from fairbench.schedulers.registry import PAIRS as PAIRS
    from fairbench.schedulers.registry import local_class as local_class
    from fairbench.schedulers.registry import locals_by_name as locals_by_name
    from fairbench.schedulers.registry import router_class as router_class
    from fairbench.schedulers.registry import routers_by_name as routers_by_name

__getattr__ = lazy_names(
    __name__,
    {
        "eviction.registry": "DEFAULT_EVICTION MEMORY MemoryParams eviction_class",
        "params": "default_settings",
        "registry": "PAIRS local_class locals_by_name router_class routers_by_name",
    },
)
