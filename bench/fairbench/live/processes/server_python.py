"""The Python that starts servers, which may differ from the Python of fairbench."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

from fairbench.doors import plugin_of
from fairbench.errors import UsageError

MISSING = """
import sys
from importlib.util import find_spec
print(*[name for name in sys.argv[1:] if not find_spec(name)])
"""

REFUSED = """
import sys
from importlib import import_module
from fairbench.errors import UsageError
from fairbench.live.plugin_releases import installed
module = import_module(sys.argv[1])
try:
    if installed(module.DISTRIBUTIONS):
        getattr(module, sys.argv[2])()
except UsageError as error:
    print(error)
"""


@dataclass(frozen=True, slots=True)
class ServerPython:
    """The requirements on a Python that starts servers of a kind; by default this Python.

    The environment's ``variable`` names the Python by default; ``install`` provides the first of
    ``modules``. ``for_cpu`` is a program that prints True where no GPU is needed. ``plugin`` is
    an engine whose plugin of ours has a function ``check``, which refuses releases that the plugin
    does not fit.
    """

    modules: tuple[str, ...] = ()
    install: str = ""
    variable: str = ""
    for_cpu: str | None = None
    plugin: str = ""
    check: str = "check_version"

    def named(self, chosen: str | None) -> str:
        """Return the chosen Python, else the one of the environment variable, else this one."""
        return chosen or os.environ.get(self.variable) or sys.executable

    def find(self, chosen: str | None) -> str:
        """Return the Python that ``named`` selects.

        Raises UsageError unless that Python has the modules.
        """
        python = self.named(chosen)
        if not self.modules:
            return python
        if missing := ask_python(python, MISSING, *self.modules).split():
            raise UsageError(
                f"server_python {python}: lacks {' and '.join(missing)}; install "
                f"{self.install} and fairbench-llm in one environment, and give its "
                f"Python with --server-python or {self.variable}"
            )
        if self.plugin:
            release = f"{plugin_of(self.plugin)}.release"
            refused = ask_python(python, REFUSED, release, self.check).strip()
            if refused:
                raise UsageError(f"server_python {python}: {refused}")
        return python

    def needs_no_gpu(self, python: str) -> bool:
        """Return whether that Python's engine is built for CPUs only."""
        return self.for_cpu is not None and ask_python(python, self.for_cpu).strip() == "True"


OWN = ServerPython()


def ask_python(python: str, program: str, *arguments: str) -> str:
    """Return the output of a program under that Python. Raises UsageError if it cannot run."""
    command = [python, "-c", program, *arguments]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        raise UsageError(
            f"server_python {python}: cannot be run; give the path of a working Python"
        ) from None
    return found.stdout
