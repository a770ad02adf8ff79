"""Finds the studies of papers, which a clone of the repository has, but not a wheel."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fairbench.errors import UsageError
from fairbench.version import DIRECTORY

PACKAGE = "fairbench_studies"


def study(module: str, what: str) -> Any:
    """Import a module of the studies, from the installed package or from a clone.

    Raises UsageError, which begins with ``what``, if it is missing or of another version.
    """
    need_studies(what)
    try:
        return import_module(f"{PACKAGE}.{module}")
    except ImportError as error:
        raise UsageError(
            f"{what}: the installed studies do not fit this version of fairbench: {error}"
        ) from error


def need_studies(what: str) -> None:
    """Make the studies importable.

    Raises UsageError, which begins with ``what``, if they are missing.
    """
    if find_spec(PACKAGE) is not None:
        return
    folder = _folder()
    if folder is None:
        raise UsageError(
            f"{what}: needs the package of the studies, which is not installed: run "
            "it in a clone of the repository, or pip install 'fairbench-llm[studies]'"
        )
    sys.path.append(str(folder))


def _folder() -> Path | None:
    """Return ``studies/`` of the clone around the package or the current folder."""
    here = Path.cwd()
    for top in (DIRECTORY.resolve().parents[1], here, *here.parents):
        found = top / "studies"
        if (found / PACKAGE / "__init__.py").is_file() and (top / "bench" / "fairbench").is_dir():
            return found
    return None
