"""The environment: versions that must be equal on two machines for equal results."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import fairbench
from fairbench.results.manifest import LIBRARIES, library_version

OWN_CODE = (".py", ".json", ".toml")  # of our package's files, those that decide results


@cache
def environment() -> Mapping[str, str]:
    """Return the versions that must match for equal results."""
    return {
        "fairbench": own_version(),
        "Python": platform.python_version(),
        "machine": platform.machine(),
        **{name: f"{library_version(name)}" for name in LIBRARIES},
    }


def own_version() -> str:
    """Return fairbench's version, with a digest of its code."""
    package = Path(fairbench.__file__).parent
    code = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in OWN_CODE and path.is_file():
            code.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return f"{fairbench.__version__} ({code.hexdigest()[:12]})"
