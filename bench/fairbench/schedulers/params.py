"""Conversion of ``NAME.PARAM=VALUE`` settings to parameters of schedulers, routers and engines.

A part (a scheduler, a router or an engine) defines its parameters in a frozen dataclass ``Params``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeAlias, TypeVar

from annotated_types import Ge, Gt, Le
from pydantic import FiniteFloat, ValidationError

from fairbench.errors import UsageError, adapter_of, explain, keys_of, unknown_name, validated
from fairbench.named import Named, named

P = TypeVar("P")

# types of the values of schedulers' parameters; all floats are finite
Positive = Annotated[FiniteFloat, Gt(0)]
NotNegative = Annotated[FiniteFloat, Ge(0)]
PositiveInt = Annotated[int, Gt(0)]
NotNegativeInt = Annotated[int, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True)
class NoParams:
    """An empty set of parameters, for schedulers, routers and engines that have none."""


PartParams: TypeAlias = Named[type]
"""The ``Params`` of each part by the part's name; a look-up imports the part's module."""


def params_of(names: Iterable[str], part: Callable[[str], Any]) -> PartParams:
    """Map each name to the ``Params`` of the class that ``part`` returns for the name."""

    def params(name: str) -> type:
        found: type = part(name).Params
        return found

    return named(names, params)


def param_names(params_class: type) -> list[str]:
    """Return the names of the parameters that can be set, in their order in ``params_class``.

    The parameters in ``constants`` no longer exist, or are inherited but not used. Users cannot set
    the parameters in ``constants``, but stored experiments may contain their values.
    """
    constants = getattr(params_class, "constants", ())
    return [field.name for field in fields(params_class) if field.name not in constants]


def own_settings(owner: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings ``OWNER.PARAM`` of one owner, such as a router, with keys ``PARAM``."""
    split = {tuple(key.split(".", 1)): value for key, value in settings.items()}
    return {key[1]: value for key, value in split.items() if key[0] == owner and len(key) == 2}


# the suffix of files with cost functions, and the parameter that names such a file
COST_FILES = ".py", "cost"


def cost_names(settings: Mapping[str, Any]) -> list[str]:
    """Return the files with users' cost functions that the settings name."""
    suffix, parameter = COST_FILES
    return [
        value
        for key, value in settings.items()
        if key.endswith(f".{parameter}") and isinstance(value, str) and value.endswith(suffix)
    ]


def make_params(owner: str, params_class: type[P], settings: Mapping[str, Any]) -> P:
    """Return a part's parameters: the defaults, overridden by the part's keys in ``settings``.

    Integers become floats where the parameter is a float; no other value is converted. Raises
    UsageError that names the key, the value and the allowed values.
    """
    values = own_settings(owner, settings)
    check_names(owner, params_class, values)
    try:
        return validated(params_class, values)
    except ValidationError as error:
        raise UsageError(explain(error, owner)).of(*keys_of(error, owner)) from None
    except TypeError:
        raise UsageError(f"settings of {owner}: dates and times are not allowed") from None


def check_names(owner: str, params_class: type, values: Mapping[str, Any]) -> None:
    """Raise UsageError unless every key of ``values`` is a parameter of ``owner``.

    Stored experiments may contain the parameters in ``constants``, but only with their fixed
    values.
    """
    names = param_names(params_class)
    constants = [field for field in fields(params_class) if field.name not in names]
    fixed = {field.name: getattr(params_class(), field.name) for field in constants}
    for name, value in values.items():
        if name in fixed:
            if value == fixed[name]:
                continue
            always = UsageError(
                f"{owner}.{name} = {value!r}: must be {fixed[name]!r}, which cannot be changed; "
                "leave it out"
            )
            raise always.of(f"{owner}.{name}")
        if not names:
            none = UsageError(f"{owner}.{name}: cannot be set, because {owner} has no parameters")
            raise none.of(f"{owner}.{name}")
        if name not in names:
            raise unknown_name(f"parameter of {owner}", name, names).of(f"{owner}.{name}")


def as_settings(owner: str, params: Any) -> dict[str, Any]:
    """Convert parameters that are not None to settings; the inverse of ``make_params``."""
    params_class: type = type(params)
    plain = adapter_of(params_class).dump_python(params, mode="json", warnings=False)
    return {f"{owner}.{name}": value for name, value in plain.items() if value is not None}


def default_settings(owner: str, params_class: type) -> dict[str, Any]:
    """Return, as settings, the defaults of all parameters that users can set."""
    names = {f"{owner}.{name}" for name in param_names(params_class)}
    return {key: value for key, value in as_settings(owner, params_class()).items() if key in names}
