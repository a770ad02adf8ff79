"""What each client was promised: targets of the workload, of its classes, and from the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fairbench.targets import Targets, laid_over, named_targets, parse_targets

if TYPE_CHECKING:
    from fairbench.workloads.model import WorkloadSpec


def class_of_client(spec: WorkloadSpec) -> dict[str, str]:
    """The class of each client that is in one."""
    classes = spec.classes or {}
    return {client: name for name, one in classes.items() for client in one.clients}


def client_targets(
    spec: WorkloadSpec, given: Mapping[str, str], names: Sequence[str]
) -> dict[str, Targets]:
    """The targets of each client of a run, by name.

    Latency by latency counts most what is ``given`` (``named_targets``), then what the client's
    class has, then what the workload has for all. Raises UsageError.
    """
    classes = class_of_client(spec)
    for_all = parse_targets(spec.targets or {}, "targets")
    of_class = {
        name: laid_over(for_all, parse_targets(one.targets, f"classes.{name}.targets"))
        for name, one in (spec.classes or {}).items()
    }
    usual = {name: of_class.get(classes.get(name, ""), for_all) for name in names}
    return named_targets(given, names, classes, usual)
