"""Workload files that build on others: the effect of ``workload = "judge"`` in a table.

Its other keys override the inherited ones. All keys are filled in when a file is read, so that a
stored experiment has everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fairbench.errors import UsageError
from fairbench.files.toml_text import file_of, is_path, read_toml

KEY = "workload"
MAX_DEPTH = 8  # limit on files that build on files; beyond it they form a circle
NOT_INHERITED = ("name", "description")
_PACKED, _CHECKOUT = files(__package__) / "specs", Path(__file__).parents[3] / "workloads"
SPECS = _PACKED if _PACKED.is_dir() else _CHECKOUT  # a wheel has a copy of the checkout's folder


def rebased(data: Any, folder: Path) -> Any:
    """Return a file's tables with relative paths of other workloads resolved against ``folder``."""
    if isinstance(data, Mapping):
        return {
            key: str(folder / value)
            if key == KEY and isinstance(value, str) and is_path(value)
            else rebased(value, folder)
            for key, value in data.items()
        }
    return [rebased(one, folder) for one in data] if isinstance(data, list) else data


def whole_workload(data: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return a workload's tables merged key by key with the tables that it inherits.

    ``params`` and ``settings`` are merged in the same way. Parameters of another program kind are
    not inherited. Each scenario of the workload overrides the inherited scenario of that name; a
    workload without scenarios takes all inherited ones. Raises UsageError.
    """
    own = dict(data)
    base = _read(own.pop(KEY), depth)
    if own.get("program", base.get("program")) != base.get("program"):
        base.pop("params", None)
    scenarios = {
        name: _over(_table(base, "scenarios").get(name), scenario)
        for name, scenario in _table(own, "scenarios").items()
    }
    merged = {key: _over(base.get(key), own[key]) for key in ("params", "settings") if key in own}
    inherited = {key: value for key, value in base.items() if key not in NOT_INHERITED}
    return inherited | own | merged | ({"scenarios": scenarios} if scenarios else {})


def whole_client(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of clients that run another program, merged with the workload it inherits.

    Inherited are the program, rate, parameters and arrivals of that workload's well-behaved clients
    in ``s1``, or else in its first scenario. Raises UsageError.
    """
    own = dict(data)
    base = _read(own.pop(KEY), 0)
    scenarios = _table(base, "scenarios")
    scenario: Any = scenarios.get("s1") or next(iter(scenarios.values()), None) or {}
    if own.get("program", base.get("program")) == base.get("program"):
        usual = _over(base.get("params"), scenario.get("params", {}))
        own["params"] = _over(usual, own.get("params", {}))
    inherited: dict[str, Any] = {key: base[key] for key in ("program", "arrivals") if key in base}
    if "rate" in scenario:
        inherited["rate"] = scenario["rate"]
    return inherited | own


def _read(ref: Any, depth: int) -> dict[str, Any]:
    if not isinstance(ref, str):
        raise UsageError(f"{KEY} = {ref!r}: must be a name or a path")
    if depth >= MAX_DEPTH:
        raise UsageError(
            f"{KEY} = {ref!r}: the files refer to each other in a circle, or are nested "
            f"more than {MAX_DEPTH} deep"
        )
    data = read_toml(file_of("workload", ref, SPECS)[0], ref)
    if KEY not in data:
        return data
    return whole_workload(rebased(data, Path(ref).parent) if is_path(ref) else data, depth + 1)


def _over(below: Any, above: Any) -> Any:
    both = isinstance(below, Mapping) and isinstance(above, Mapping)
    return {**below, **above} if both else above


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}
