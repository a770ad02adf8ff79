"""Mappings and modules that load their values at first use, to shorten the start of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


def imported(path: str) -> Any:
    """Return the object that a text ``MODULE:NAME`` names.

    Raises ImportError or AttributeError if the object does not exist.
    """
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def lazy_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, which imports a module when one of its names is used.

    With lazy names, ``from fairbench import results`` imports no module of the package ``results``.
    Only the use of a name, such as ``results.read_run``, imports the module that defines the name.

    Args:
        package: The name of the package.
        names: The names that each module of the package provides, separated by spaces.
    """
    homes = {name: f"{package}.{module}" for module in names for name in names[module].split()}

    def lazy_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return lazy_name


class Named(Mapping[str, T]):
    """A mapping that creates a new value at each look-up."""

    def __init__(self, makers: Mapping[str, Callable[[], T]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> T:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __or__(self, other: Named[T]) -> Named[T]:
        return Named({**self._makers, **other._makers})


def named(names: Iterable[str], make: Callable[[str], T]) -> Named[T]:
    """Return a mapping in which each look-up of a name returns ``make(name)``."""
    return Named({name: partial(make, name) for name in names})


def by_path(paths: Mapping[str, str]) -> Named[Any]:
    """Return a mapping whose values are imported from ``MODULE:NAME`` paths at look-up."""
    return Named({name: partial(imported, path) for name, path in paths.items()})
