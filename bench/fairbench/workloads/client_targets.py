"""The latency targets of each client: from the workload, its classes, and the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fairbench.targets import Targets, laid_over, named_targets, parse_targets

if TYPE_CHECKING:
    from fairbench.workloads.model import WorkloadSpec


def class_of_client(spec: WorkloadSpec) -> dict[str, str]:
    """Return the class of each client that belongs to a class."""
    classes = spec.classes or {}
    return {client: name for name, one in classes.items() for client in one.clients}


def client_targets(
    spec: WorkloadSpec, given: Mapping[str, str], names: Sequence[str]
) -> dict[str, Targets]:
    """Return the targets of each client of a run, by name.

    Each latency is taken from ``given`` (``named_targets``) first, then from the client's class,
    then from the workload. Raises UsageError.

    Args:
        spec: Workload with its classes and targets.
        given: Targets that the user chose, such as ``NAME.ttft`` -> time.
        names: Names of the run's clients.
    """
    classes = class_of_client(spec)
    for_all = parse_targets(spec.targets or {}, "targets")
    of_class = {
        name: laid_over(for_all, parse_targets(one.targets, f"classes.{name}.targets"))
        for name, one in (spec.classes or {}).items()
    }
    usual = {name: of_class.get(classes.get(name, ""), for_all) for name in names}
    return named_targets(given, names, classes, usual)
