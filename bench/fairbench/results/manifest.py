"""The manifest of a run: software versions, commit, machine and times."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from fairbench import workloads
from fairbench.config import ExperimentSpec, identity
from fairbench.config.backend import NO_PROFILE, without_secrets
from fairbench.config.parse_flags import SIM
from fairbench.doors import BACKEND_GROUP, registered
from fairbench.results.experiments import CHOSEN, chosen_of
from fairbench.results.store import SCHEMA_VERSION
from fairbench.schedulers.params import cost_names
from fairbench.schedulers.registry import user_files
from fairbench.version import DIRECTORY, __version__
from fairbench.workloads.programs import program_files

LIBRARIES = ("numpy", "pyarrow", "pydantic", "sortedcontainers")


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """A stopwatch with three clocks: date and time, elapsed seconds, and CPU seconds."""

    started: datetime
    wall_s: float
    cpu_s: float

    @classmethod
    def start(cls) -> Stopwatch:
        """Return a stopwatch that starts at this call."""
        return cls(datetime.now(UTC), perf_counter(), process_time())

    def times(self) -> dict[str, Any]:
        """Return the start (ISO 8601, UTC), and the elapsed and CPU seconds since the start."""
        return {
            "started": self.started.isoformat(timespec="seconds"),
            "wall_s": round(perf_counter() - self.wall_s, 3),
            "cpu_s": round(process_time() - self.cpu_s, 3),
        }


def build_manifest(spec: ExperimentSpec, *, complete: bool, watch: Stopwatch) -> dict[str, Any]:
    """Return a run's manifest: versions, commit, machine and times, as JSON types."""
    return {
        "schema_version": SCHEMA_VERSION,
        "complete": complete,
        "simulated": spec.backend is None,
        "backend": SIM if spec.backend is None else spec.backend.kind,
        "timing_profile": None if spec.gpu == NO_PROFILE else spec.gpu,
        "seed": spec.seed,
        "tag": spec.tag,
        **(workloads.trace_manifest(spec.workload) if spec.workload.plays_trace else {}),
        **({"weights": spec.weights} if spec.weights else {}),
        "spec_identity": identity(spec),
        CHOSEN: chosen_of(spec),
        "fairbench_version": __version__,
        "git": git_state(DIRECTORY),
        "python": platform.python_version(),
        **_router(spec),
        # With ``charge_pass``, the measured CPU time of a pass lengthens a simulated iteration.
        **({"reproducible": False} if spec.charge_pass else {}),
        **_own_files("scheduler_files", user_files()),
        **_own_files("program_files", program_files()),
        **_own_files("cost_files", (Path(one).resolve() for one in cost_names(spec.settings))),
        "libraries": {name: library_version(name) for name in LIBRARIES},
        "host": {
            "name": platform.node(),
            "system": platform.system(),
            "machine": platform.machine(),
        },
        **watch.times(),
    }


def _router(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the command of an external router, without secrets, and the router's version."""
    command = None if spec.backend is None else spec.backend.external_router
    if command is None:
        return {}
    told = {"command": without_secrets(command), "version": program_version(command[0])}
    return {"external_router": told}


def _own_files(key: str, paths: Iterable[Path]) -> dict[str, dict[str, str]]:
    digests = {str(path): sha256(path.read_bytes()).hexdigest() for path in paths}
    return {key: digests} if digests else {}


def git_state(package: Path) -> dict[str, Any] | None:
    """Return the commit of fairbench's git checkout, and whether files were changed since.

    The result is None if fairbench does not run from a git checkout.
    """
    root = package.parent.parent
    if not ((root / ".git").exists() and package == root / "bench" / "fairbench"):
        return None
    git = ("git", "-C", str(root))
    commit, changes = _output(*git, "rev-parse", "HEAD"), _output(*git, "status", "--porcelain")
    if commit is None or changes is None:
        return None
    return {"commit": commit, "dirty": bool(changes)}


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def library_version(library: str) -> str | None:
    """Return a library's installed version, or None if the library is not installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        return None


TIMEOUT_S = 20.0
MAX_VERSION = 200
# The Python interpreter of a script runs the program ``OWNER``, which prints the package that
# installed the script.
OWNER = """
import sys
from importlib.metadata import entry_points
for point in entry_points(group="console_scripts", name=sys.argv[1]):
    print(point.dist.name, point.dist.version)
"""


def program_version(program: str) -> str | None:
    """Return the first line of ``PROGRAM --version``, or the version of the Python package.

    The result is None if neither the program nor the package states a version.
    """
    found = shutil.which(program)
    if found is None:
        return None
    said, python = _output(found, "--version"), Path(found).with_name("python")
    if not said and python.exists():
        said = _output(str(python), "-c", OWNER, Path(found).name)
    return said.splitlines()[0][:MAX_VERSION] if said else None


OWN_CODE = (".py", ".json", ".toml")  # Files of fairbench with these suffixes can change results.


@cache
def environment() -> Mapping[str, str]:
    """Return the versions of Python and libraries that must match for equal results."""
    return {
        "fairbench": own_version(),
        "Python": platform.python_version(),
        "machine": platform.machine(),
        **{name: f"{library_version(name)}" for name in LIBRARIES},
    }


def own_version() -> str:
    """Return the version of fairbench, with a digest of its code and of the code of backends."""
    code = hashlib.sha256()
    for folder in (DIRECTORY, *_backend_folders()):
        for path in sorted(folder.rglob("*")):
            if path.suffix in OWN_CODE and path.is_file():
                name = path.relative_to(folder.parent)
                code.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return f"{__version__} ({code.hexdigest()[:12]})"


def _backend_folders() -> list[Path]:
    """Return the folders of the packages that have registered a backend."""
    packages = {point.module.partition(".")[0] for point in registered(BACKEND_GROUP).values()}
    found = [find_spec(name) for name in sorted(packages)]
    places = [spec.submodule_search_locations for spec in found if spec is not None]
    return [Path(folder) for place in places for folder in place or ()]
