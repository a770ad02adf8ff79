"""Python files of users, which are executed: schedulers, costs and program kinds."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from dataclasses import is_dataclass
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isabstract
from itertools import dropwhile
from pathlib import Path
from re import fullmatch
from types import ModuleType
from typing import Any

from fairbench.errors import FairbenchError, RunFailed, UsageError

_LOADED: set[str] = set()  # paths of the files that ``module_of`` has loaded


def module_of(path: Path, named_by: str) -> ModuleType:
    """Load a file as a module, once per process, so that ``import_module`` finds it.

    Raises UsageError, which names the source of the file's name, if the file cannot be run.
    """
    digest = sha256(bytes(path)).hexdigest()
    name = f"{path.stem.replace('.', '_')}_{digest[:12]}"  # different for any two files
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"{named_by}: {str(path)!r} is not a Python file")
    module = sys.modules[name] = module_from_spec(spec)
    _LOADED.add(str(path))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # any exception of the user's code
        del sys.modules[name]
        raise UsageError(f"{named_by}: {path}: {type(error).__name__}: {error}") from error
    return module


def classes_in(path: Path, named_by: str, base: type, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the subclasses of ``base`` in a user's file, with the names that they have there.

    The attribute ``key`` has the name under which fairbench knows a class. A class without ``key``
    that lacks a method is skipped, as a base for other classes. Raises UsageError if the file
    cannot be run, or if a class is incomplete.
    """
    module = module_of(path, named_by)
    for name, value in vars(module).items():
        if not (isinstance(value, type) and issubclass(value, base)):
            continue
        is_named = isinstance(getattr(value, key, None), str)
        if value.__module__ != module.__name__ or (isabstract(value) and not is_named):
            continue
        if lacks := _lacks(value, key):
            raise UsageError(f"{path}: class {name} needs {lacks}")
        yield name, value


def _lacks(found: Any, key: str) -> str:
    """Return the missing parts of a user's class, or "" if it is complete."""
    if not fullmatch(r"[\w-]+", str(getattr(found, key, ""))):
        return f'a {key} of letters, digits and -, such as {key} = "mine"'
    if isabstract(found):
        return f"a method {min(found.__abstractmethods__)}"
    if not is_dataclass(getattr(found, "Params", None)):
        return "a dataclass Params, empty if it has no parameters"
    return ""


def failure_in_own_file(error: Exception) -> RunFailed | None:
    """Return the failure, which names file and line, if a user's file raised the error, else None.

    The traceback from the user's file on is a note of the failure. A StopIteration in a generator,
    which Python turns into a RuntimeError, is reported where it was raised.
    """
    if isinstance(error, FairbenchError | MemoryError):
        return None
    raised = error if _own(error) or error.__cause__ is None else error.__cause__
    if not (frames := _own(raised)):
        return None
    frame = next(one for one in reversed(frames) if one.filename in _LOADED)
    failed = RunFailed(
        f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: "
        f"{': '.join(filter(None, (type(raised).__name__, str(raised))))}"
    )
    failed.add_note("".join(traceback.format_list(frames)).rstrip("\n"))
    return failed


def _own(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of the error's traceback from the first one in a user's file on."""
    frames = traceback.extract_tb(error.__traceback__)
    return list(dropwhile(lambda frame: frame.filename not in _LOADED, frames))
