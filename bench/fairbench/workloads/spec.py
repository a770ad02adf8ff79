"""Loading a workload by name or path, and changing its parameters from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fairbench.errors import DataError, UsageError, explain, unknown_name
from fairbench.files.toml_text import bundled_names, file_of, is_path, read_toml
from fairbench.workloads.inherit import SPECS, rebased
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.programs import make_params, program_class
from fairbench.workloads.shape import Arrivals, Machine, Misbehaving, Other, Scenario, ServiceClass
from fairbench.workloads.table import Presence, Sizes

_MISBEHAVING = "misbehaving."


def workload_names() -> list[str]:
    """Return the names of the bundled workloads, in alphabetical order."""
    return bundled_names(SPECS)


def load_workload(ref: str) -> WorkloadSpec:
    """Load a workload by bundled name, or by path if ``ref`` has a slash or ends in .toml.

    Raises UsageError for an unknown name, DataError (file, line or key) for an invalid file.
    """
    file, shown = file_of("workload", ref, SPECS)
    data = read_toml(file, shown)
    if is_path(ref):
        data = rebased(data, Path(ref).parent)
    try:
        _check_keys(data)
        return WorkloadSpec.model_validate(data)
    except ValidationError as error:
        raise DataError(f"{shown}: {explain(error)}") from None
    except UsageError as error:
        raise DataError(f"{shown}: {error}") from None


def settable_params(spec: WorkloadSpec) -> list[str]:
    """Return the keys of ``with_settings``: each parameter, for all or for heavy clients."""
    names = [field.name for field in fields(program_class(spec.program).Params)]
    return names + [_MISBEHAVING + name for name in [*names, "rate_multiple"]]


def with_settings(spec: WorkloadSpec, overrides: Mapping[str, Any]) -> WorkloadSpec:
    """Return the workload with changed parameters, as from ``--set tot.branches=3``.

    A plain parameter changes for well-behaved clients, and for a heavy client unless that parameter
    is what makes the client heavy. ``misbehaving.PARAM`` changes it for heavy clients only. Raises
    UsageError naming the parameter.
    """
    allowed = settable_params(spec)
    for name in overrides:
        if name not in allowed:
            raise unknown_name(f"parameter of {spec.name}", name, allowed)
    plain = {name: value for name, value in overrides.items() if "." not in name}
    wrong = {
        name.removeprefix(_MISBEHAVING): value for name, value in overrides.items() if "." in name
    }
    changed = spec.model_dump(mode="json", exclude_none=True)
    changed["params"].update(plain)
    for scenario in changed["scenarios"].values():
        _override(scenario, plain, wrong)
    try:
        make_params(spec.program, changed["params"], spec.name)
        return WorkloadSpec.model_validate(changed)
    except ValidationError as error:
        raise UsageError(explain(error, spec.name)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def _override(scenario: dict[str, Any], plain: Mapping[str, Any], wrong: Mapping[str, Any]) -> None:
    """Change a scenario in place: the user's values override the file's."""
    scenario["params"] = {k: v for k, v in scenario["params"].items() if k not in plain}
    params = dict(wrong)
    multiple = params.pop("rate_multiple", None)
    for client in scenario["misbehaving"]:
        client["params"].update(params)
        if multiple is not None:
            client["rate_multiple"] = multiple


def _check_keys(data: Mapping[str, Any]) -> None:
    """Raise UsageError for an unknown key in any table, with the nearest match."""
    _check_table("the workload", data, WorkloadSpec)
    for key, model in (("arrivals", Arrivals), ("machine", Machine)):
        if isinstance(data.get(key), Mapping):
            _check_table(key, data[key], model)
    for name, members in _tables(data.get("classes")):
        _check_table(f"classes.{name}", members, ServiceClass)
    for name, scenario in _tables(data.get("scenarios")):
        _check_table(f"scenarios.{name}", scenario, Scenario)
        _check_population(f"scenarios.{name}", scenario)
        for _, client in _tables(scenario.get("misbehaving")):
            _check_table(f"scenarios.{name}.misbehaving", client, Misbehaving)
            _check_population(f"scenarios.{name}.misbehaving", client)
        for _, client in _tables(scenario.get("others")):
            _check_table(f"scenarios.{name}.others", client, Other)
            _check_population(f"scenarios.{name}.others", client)


def _check_population(where: str, table: Mapping[str, Any]) -> None:
    for key, model in (("sizes", Sizes), ("presence", Presence)):
        if isinstance(table.get(key), Mapping):
            _check_table(f"{where}.{key}", table[key], model)


def _check_table(where: str, table: Mapping[str, Any], model: type[BaseModel]) -> None:
    for key in table:
        if key not in model.model_fields:
            raise unknown_name(f"key in {where}", key, model.model_fields)


def _tables(value: Any) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return the tables in a table or array; the model refuses values of other types."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        pairs = list(enumerate(value)) if isinstance(value, list) else []
    return [(key, table) for key, table in pairs if isinstance(table, Mapping)]
