"""The configuration: an experiment as one frozen spec, from flags, ``--set`` and TOML, and back."""

from fairbench.config.spec import ExperimentSpec, identity, to_toml

__all__ = ["ExperimentSpec", "identity", "to_toml"]
