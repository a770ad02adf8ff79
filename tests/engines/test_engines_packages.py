"""Test the packages of fairbench in the Python of an engine."""

import subprocess
import sys

from fairbench.version import DIRECTORY
from fairbench_engines.replica.engine_code import PACKAGES

# ``-S`` hides installed packages
LOOK = f"""
import sys
from importlib.util import find_spec
sys.path.insert(0, {str(DIRECTORY.parent)!r})
from fairbench_engines.replica.inside.packages import provide
del sys.path[0], sys.modules["fairbench_engines"]
provide(**{PACKAGES!r})
import fairbench.version, sortedcontainers
print(fairbench.version.DIRECTORY)
print([name for name in ("pydantic", "numpy", "fairbench_engines") if find_spec(name)])
"""


def test_only_the_named_packages_become_importable():
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LOOK], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [str(DIRECTORY), "[]"]
