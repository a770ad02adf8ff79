"""Loading of workload files, and changes of their parameters by ``--set``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fairbench.errors import DataError, UsageError, explain, unknown_name
from fairbench.files.formats import bundled_names, file_of, is_path, read_toml
from fairbench.workloads.model import SPECS, FileTable, WorkloadSpec, rebased
from fairbench.workloads.programs import make_params, program_class

_MISBEHAVING = "misbehaving."


def workload_names() -> list[str]:
    """Return the names of the bundled workloads, in alphabetical order."""
    return bundled_names(SPECS)


def load_workload(ref: str) -> WorkloadSpec:
    """Load a workload from a bundled name, or from a path (with a slash, or ending in .toml).

    Raises UsageError for an unknown name, and DataError (file, line or key) for an invalid file.
    """
    file, shown = file_of("workload", ref, SPECS)
    data = read_toml(file, shown)
    if is_path(ref):
        data = rebased(data, Path(ref).parent)
    try:
        _check_keys(data, WorkloadSpec)
        return WorkloadSpec.model_validate(data)
    except ValidationError as error:
        raise DataError(f"{shown}: {explain(error)}") from None
    except UsageError as error:
        raise DataError(f"{shown}: {error}") from None


def settable_params(spec: WorkloadSpec) -> list[str]:
    """Return the keys that ``with_settings`` accepts: ``PARAM`` and ``misbehaving.PARAM``."""
    names = [field.name for field in fields(program_class(spec.program).Params)]
    return names + [_MISBEHAVING + name for name in [*names, "rate_multiple"]]


def with_settings(spec: WorkloadSpec, overrides: Mapping[str, Any]) -> WorkloadSpec:
    """Return a copy of the workload with changed parameters, as for ``--set tot.branches=3``.

    ``PARAM`` changes a parameter of all clients, except heavy clients that set the parameter
    themselves. ``misbehaving.PARAM`` changes a parameter of heavy clients only. Raises UsageError
    with the name of an invalid parameter.
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
    scenario["params"] = {k: v for k, v in scenario["params"].items() if k not in plain}
    params = dict(wrong)
    multiple = params.pop("rate_multiple", None)
    for client in scenario["misbehaving"]:
        client["params"].update(params)
        if multiple is not None:
            client["rate_multiple"] = multiple


def _check_keys(data: Any, model: type[BaseModel], where: str = "") -> None:
    """Raise UsageError for an unknown key in any table, with the nearest known key.

    ``where`` is the path of ``data`` in the file.
    """
    for one in data if isinstance(data, list) else ():
        _check_keys(one, model, where)
    if not isinstance(data, Mapping):
        return
    for key in data:
        if key not in model.model_fields:
            raise unknown_name(f"key in {where or 'the workload'}", key, model.model_fields)
    for key, value in data.items():
        inner = _tables_in(model.model_fields[key].annotation)
        if inner is None:
            continue
        path = f"{where}.{key}" if where else key
        if not inner.by_name:
            _check_keys(value, inner.model, path)
        elif isinstance(value, Mapping):
            for name, one in value.items():
                _check_keys(one, inner.model, f"{path}.{name}")


class _Tables(NamedTuple):
    """The class of a field's tables; ``by_name`` is True if the field maps names to tables."""

    model: type[FileTable]
    by_name: bool


def _tables_in(annotation: Any, *, by_name: bool = False) -> _Tables | None:
    if isinstance(annotation, type) and issubclass(annotation, FileTable):
        return _Tables(annotation, by_name)
    by_name = by_name or get_origin(annotation) is dict
    inside = (_tables_in(one, by_name=by_name) for one in get_args(annotation))
    return next(filter(None, inside), None)
