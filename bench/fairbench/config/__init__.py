"""Conversion of flags, ``--set`` and TOML files to an experiment, and back.

To make ``--help`` start fast, a module of this package is imported only when a name from the module
is used.
"""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.config.defaults import preset_names as preset_names
    from fairbench.config.defaults import read_preset as read_preset
    from fairbench.config.resolve import experiment as experiment
    from fairbench.config.settings import MACHINE as MACHINE
    from fairbench.config.spec import MAX_REPLICAS as MAX_REPLICAS
    from fairbench.config.spec import ExperimentSpec as ExperimentSpec
    from fairbench.config.spec import experiment_tables as experiment_tables
    from fairbench.config.spec import identity as identity
    from fairbench.config.spec import to_toml as to_toml
    from fairbench.config.sweep import parse_axis as parse_axis
    from fairbench.config.sweep import points as points
    from fairbench.config.sweep import sweep_of as sweep_of

__getattr__ = lazy_names(
    __name__,
    {
        "defaults": "preset_names read_preset",
        "resolve": "experiment",
        "settings": "MACHINE",
        "spec": "ExperimentSpec MAX_REPLICAS experiment_tables identity to_toml",
        "sweep": "parse_axis points sweep_of",
    },
)
