"""What an experiment is: one frozen spec from flags, ``--set`` and a TOML file, and back."""

from fairbench.config.spec import ExperimentSpec, identity, to_toml

__all__ = ["ExperimentSpec", "identity", "to_toml"]
