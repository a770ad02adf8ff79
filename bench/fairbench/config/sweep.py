"""Sweeps: grids of experiments, described by a file and by flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from importlib.resources import files
from itertools import product
from math import ceil, prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from fairbench.config.backend import storable
from fairbench.config.cluster import check_sides, check_used
from fairbench.config.defaults import DEFAULTS
from fairbench.config.flags import SWEEP
from fairbench.config.parse_flags import check_names, parse_assignment, place_flags
from fairbench.config.resolve import resolve
from fairbench.config.settings import current_keys, flat_settings
from fairbench.config.spec import GIVEN, Draft, ExperimentSpec, experiment_tables, identity
from fairbench.errors import DataError, UsageError, explain, unknown_name
from fairbench.files.formats import bundled_names, dumps, file_of, read_toml
from fairbench.workloads.model import MAX_NAME

MAX_POINTS = 10_000
QUICK_RUNS = 3
KEYS = frozenset(ExperimentSpec.model_fields) - {"settings", GIVEN}
SIZES = frozenset({"num_programs", "duration_s"})


def _flat(table: Any) -> Any:
    """Flatten a table of settings to keys ``"NAME.PARAM"``, which TOML parses as nested tables."""
    if not isinstance(table, Mapping):
        return table
    flat: dict[str, Any] = {}
    for key, value in table.items():
        nested = value if key == "settings" and isinstance(value, Mapping) else {key: value}
        flat |= {key: value} if key in KEYS else flat_settings(nested)
    return flat


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, Mapping) else value


Table = Annotated[dict[str, Any], BeforeValidator(_flat)]
Tables = Annotated[list[Table], BeforeValidator(_as_list)]


class Sweep(BaseModel):
    """A grid of experiments: one experiment with many combinations of values.

    Each table in ``grid`` yields all combinations of its values, added to ``base``. Combinations
    that match ``exclude`` are left out. The tables ``base``, ``grid`` and ``exclude`` have the keys
    of an experiment file; keys of settings have the form ``"NAME.PARAM"``. A value of ``grid`` or
    ``exclude`` is a single value or an array of values.

    Each experiment runs with ``num_runs`` seeds. If ``quick`` is True, an experiment ends after a
    few programs (``QUICK_PROGRAMS``) instead of after its duration. ``_flagged`` contains the keys
    and settings that the user set by flags.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        ser_json_inf_nan="constants",  # Request rates and settings may be infinite.
    )

    name: Annotated[str, Field(max_length=MAX_NAME, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    description: str = ""
    num_runs: Annotated[int, Field(ge=1, le=MAX_POINTS)] = 1
    quick: bool = False
    base: Table = {}
    grid: Annotated[Tables, Field(min_length=1)]
    exclude: Tables = []
    _flagged: Set[str] = PrivateAttr(frozenset())


def sweep_names() -> list[str]:
    """Return the names of the bundled sweeps, in alphabetical order."""
    return bundled_names(files(__package__) / "sweeps")


def read_sweep(ref: str) -> Sweep:
    """Read a sweep by bundled name, or by path if ``ref`` has a slash or ends in .toml.

    Raises UsageError for an unknown name, and DataError for an invalid file.
    """
    file, shown = file_of("sweep", ref, files(__package__) / "sweeps")
    data = read_toml(file, shown)
    try:
        return make_sweep({"name": Path(shown).stem, **data})
    except UsageError as error:
        raise DataError(f"{shown}: {error}") from None


def make_sweep(data: Mapping[str, Any]) -> Sweep:
    """Build a sweep from the tables of a sweep file.

    Raises UsageError, which names the key, if a key or a value is wrong.
    """
    try:
        sweep = Sweep.model_validate(dict(data))
    except ValidationError as error:
        raise UsageError(explain(error, known=Sweep.model_fields)) from None
    for where, tables in (("base", [sweep.base]), ("grid", sweep.grid), ("exclude", sweep.exclude)):
        for key in (key for table in tables for key in table):
            if "." not in key and key not in KEYS:
                raise unknown_name(f"key in {where}", key, KEYS)
    return sweep


def grid_of(spec: ExperimentSpec) -> dict[str, Any]:
    """Return an experiment's settings as the grid of a sweep, with one value for each setting.

    A setting that is a list counts as a single value, not as several points of the sweep.
    """
    tables = experiment_tables(spec)
    flat = flat_settings(tables.pop("settings", {})) | tables
    return {key: [value] for key, value in flat.items() if key != "tag"}


def sweep_toml(sweep: Sweep) -> str:
    """Return a TOML file, without secrets, from which an equal sweep can be read."""
    return dumps(storable(sweep.model_dump(mode="json")))


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """Parse the text ``NAME.PARAM=V,W`` into a key and its values.

    Values that are not valid TOML are read as strings. Raises UsageError if ``text`` is not of the
    form ``NAME.PARAM=V,W``.
    """
    name, equals, values = text.partition("=")
    single = [parse_assignment(f"{name}{equals}{value}") for value in values.split(",")]
    # Only commas outside TOML tables and arrays separate values.
    key, listed = parse_assignment(f"{name}=[{values}]")
    if isinstance(listed, list) and listed:
        return key, listed
    return key, [value for _, value in single]


def with_axes(sweep: Sweep, axes: Mapping[str, Any], **fields: Any) -> Sweep:
    """Return a copy of the sweep with the values of ``axes`` in every grid.

    If ``axes`` sets a duration or a number of programs, ``quick`` is False in the copied sweep.
    Raises the errors of ``make_sweep``.
    """
    flags = current_keys(axes)
    grid = [{**one, **flags} for one in sweep.grid]
    quick = sweep.quick and SIZES.isdisjoint(axes)
    made = make_sweep({**sweep.model_dump(), "grid": grid, "quick": quick, **fields})
    made._flagged = sweep._flagged | Draft(flags, {}).flagged
    return made


def quick_form(sweep: Sweep) -> Sweep:
    """Return a short version of a sweep: few programs, and at least ``QUICK_RUNS`` seeds."""
    num_runs = max(sweep.num_runs, QUICK_RUNS)
    return sweep.model_copy(update={"quick": True, "num_runs": num_runs})


def sweep_of(
    ref: str | None,
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    num_runs: int | None = None,
    name: str | None = None,
    quick: bool = False,
) -> Sweep:
    """Build a sweep from a file or bundled name, from named flags, or from both.

    A flag with the value None counts as not given. A value in ``flags`` or ``settings`` may be a
    list; the sweep then runs every value of the list. Raises UsageError for wrong values, or if no
    file, flag or setting is given.
    """
    check_names(flags, SWEEP)
    check_sides(flags)
    axes = {**place_flags(flags, SWEEP).keys, **settings}
    if not ref and not axes:
        names = ", ".join(sweep_names())
        raise UsageError(f"sweep: missing; give a FILE.toml, one of {names}, or --schedulers A,B")
    swept = read_sweep(ref) if ref else make_sweep({"name": "sweep", "grid": {}})
    fields = {"num_runs": num_runs, "name": name}
    fields = {key: value for key, value in fields.items() if value is not None}
    return with_axes(quick_form(swept) if quick else swept, axes, **fields)


# With --quick, the well-behaved clients of a run send about 40 programs in total.
QUICK_PROGRAMS = 40


def points(sweep: Sweep, *, file: str | None = None) -> list[ExperimentSpec]:
    """Return every distinct experiment of a sweep, for all seeds, in the order of the grids.

    ``file`` is the path of the sweep's file, for error messages. Raises UsageError for a sweep
    without experiments, with too many experiments, or with an impossible experiment. Raises
    DataError, which names the file, if a value in the sweep's file is wrong.
    """
    try:
        return _grid_points(sweep)
    except UsageError as error:
        if file is not None and error.is_of_file(sweep._flagged):
            raise DataError(f"{file}: {error}") from None
        raise


def _grid_points(sweep: Sweep) -> list[ExperimentSpec]:
    count = sum(prod(len(_values(values)) for values in grid.values()) for grid in sweep.grid)
    if count * sweep.num_runs > MAX_POINTS:
        raise UsageError(
            f"grid: has {count * sweep.num_runs:,} points, and at most {MAX_POINTS:,} are allowed"
        )
    found: dict[str, ExperimentSpec] = {}
    for draft in _drafts(sweep):
        first = _resolve(draft)
        if sweep.quick:
            well_behaved = sum(not plan.misbehaving for plan in first.client_plans())
            programs = ceil(QUICK_PROGRAMS / max(1, well_behaved))
            timeless = {key: value for key, value in draft.items() if key != "duration_s"}
            first = _resolve({**timeless, "num_programs": programs})
        for number in range(sweep.num_runs):
            spec = first.model_copy(update={"seed": first.seed + number})
            found.setdefault(identity(spec), spec)
    if not found:
        empty = (f" value in {key} = []" for grid in sweep.grid for key in grid if grid[key] == [])
        raise UsageError(f"grid: all points are excluded; leave at least one{next(empty, '')}")
    check_used(sorted(sweep._flagged), found.values())
    return list(found.values())


def _drafts(sweep: Sweep) -> Iterator[dict[str, Any]]:
    for grid in sweep.grid:
        for values in product(*(_values(values) for values in grid.values())):
            draft = {**sweep.base, **dict(zip(grid, values, strict=True))}
            if not any(
                all(
                    ({**DEFAULTS, **draft}).get(key) in _values(values)
                    for key, values in rule.items()
                )
                for rule in sweep.exclude
            ):
                yield draft


def _values(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list) else [values]


def _resolve(draft: Mapping[str, Any]) -> ExperimentSpec:
    settings = {key: value for key, value in draft.items() if "." in key}
    return resolve({key: value for key, value in draft.items() if "." not in key}, settings)
