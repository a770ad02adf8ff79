"""The configuration: a frozen experiment spec, from flags, ``--set`` and TOML, and back.

The spec is imported when it is first used: flags and their help need none of it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairbench.config.spec import ExperimentSpec, identity, to_toml

__all__ = ["ExperimentSpec", "identity", "to_toml"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairbench.config import spec

    return getattr(spec, name)
