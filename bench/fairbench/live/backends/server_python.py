"""The Python that servers are started with, which need not be ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from fairbench.errors import UsageError

MISSING = """
import sys
from importlib.util import find_spec
print(*[name for name in sys.argv[1:] if not find_spec(name)])
"""


def server_python(chosen: str | None, variable: str, modules: Sequence[str], install: str) -> str:
    """As chosen, or as the environment variable says, or this one.

    Raises UsageError unless it has the modules; ``install`` is what provides the first of them.
    """
    python = chosen or os.environ.get(variable) or sys.executable
    if missing := ask_python(python, MISSING, *modules).split():
        raise UsageError(
            f"server_python {python}: has no {' and no '.join(missing)}; install {install} "
            f"and fairbench-llm in one environment and name its Python (--server-python, "
            f"{variable})"
        )
    return python


def ask_python(python: str, program: str, *arguments: str) -> str:
    """What a program prints there. Raises UsageError if it cannot be run."""
    command = [python, "-c", program, *arguments]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        raise UsageError(f"server_python {python}: cannot be run") from None
    return found.stdout
