"""Functions that make fairbench's packages importable in an engine's Python environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType


class FolderFinder(MetaPathFinder):
    """An import finder that finds only the given packages, and no other package in their folders.

    Args:
        folders: The parent folder of each package, by the package's name.
    """

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module spec of a package in ``folders``; None for any other module."""
        folder = self._folders.get(name)
        return PathFinder.find_spec(name, [folder]) if folder else None


def provide(own: Mapping[str, str], missing: Mapping[str, str]) -> None:
    """Make the given packages importable in this process.

    Args:
        own: Packages to import from the given parent folders, even if they are installed.
        missing: Packages to import from the given parent folders only if they are not installed.
    """
    absent = {name: folder for name, folder in missing.items() if find_spec(name) is None}
    sys.meta_path.insert(0, FolderFinder({**absent, **own}))
