"""The version of an external program, from the program or its Python environment."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 20.0
MAX_VERSION = 200  # characters
# Run by the Python beside a script: the distribution whose entry point has the script's name.
OWNER = """
import sys
from importlib.metadata import entry_points
for point in entry_points(group="console_scripts", name=sys.argv[1]):
    print(point.dist.name, point.dist.version)
"""


def program_version(program: str) -> str | None:
    """Return the first line of ``PROGRAM --version``, else the program's Python package.

    The result is None if neither is available.
    """
    found = shutil.which(program)
    if found is None:
        return None
    python = Path(found).with_name("python")
    return _first_line([found, "--version"]) or (
        _first_line([str(python), "-c", OWNER, Path(found).name]) if python.exists() else None
    )


def _first_line(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0][:MAX_VERSION] if lines else None
