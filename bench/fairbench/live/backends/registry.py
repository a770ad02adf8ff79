"""The registry of backends: from an experiment to what serves it, and what is checked first.

``BACKEND`` in ``live/backends/KIND.py`` (or ``KIND/__init__.py``) is the class for that kind's
config.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.config.backend import BackendConfig, kinds_with
from fairbench.errors import UsageError
from fairbench.live.backends.base import LiveBackend, LiveOptions
from fairbench.live.driver.target import check_headers
from fairbench.live.launchers.local import LocalLauncher
from fairbench.live.plugins.releases import allow_untested
from fairbench.live.requirements import require_live_extra


def live_backend(spec: ExperimentSpec) -> LiveBackend[Any]:
    """Return the backend of an experiment. Precondition: the backend is not the simulator."""
    assert spec.backend is not None, "the simulator serves no live run"
    module = import_module(f"{__package__}.{spec.backend.kind}")
    backend: type[LiveBackend[Any]] = module.BACKEND
    return backend(spec, spec.backend)


def same_workers(one: ExperimentSpec, other: ExperimentSpec) -> bool:
    """Return whether runs of both experiments can share workers; the simulator has none."""
    if one.backend is None or other.backend is None:
        return False
    return live_backend(one).needs() == live_backend(other).needs()


def check_live(spec: ExperimentSpec, options: LiveOptions) -> None:
    """Raise UsageError, before anything is written or started, if the run is impossible here."""
    if options.headers and not obeys(spec.backend, "headers"):
        raise UsageError("--header, --api-key-file: only with --base-url")
    if options.server_python and not obeys(spec.backend, "server_python"):
        raise python_misplaced()
    if not isinstance(options.launcher, LocalLauncher) and not obeys(spec.backend, "launcher"):
        raise UsageError(f"--launcher: only with --backend {' or '.join(kinds_with('launcher'))}")
    if options.driver_launcher is not None and spec.backend is None:
        raise UsageError("--driver-launcher: a simulation has no drivers")
    _check_drivers(spec, options.drivers)
    if spec.backend is None:
        return
    require_live_extra()
    check_headers(options.headers)
    wanted = live_backend(spec).wanted(options)
    if wanted.replicas:
        options.launcher.check(wanted)


def _check_drivers(spec: ExperimentSpec, drivers: int) -> None:
    if drivers == 1:
        return
    if spec.backend is None:
        raise UsageError(f"--drivers {drivers}: a simulation has none")
    if drivers > (clients := len(spec.client_plans())):
        raise UsageError(f"--drivers {drivers}: at most one a client, and there are {clients}")
    if spec.backend.max_concurrency is not None:
        raise UsageError("--max-concurrency: not with --drivers, which do not count together")


def obeys(backend: BackendConfig | None, option: str) -> bool:
    """Return whether the backend (None: the simulator) supports an option of ``LiveOptions``."""
    return backend is not None and option in backend.run_options


def try_untested(spec: ExperimentSpec) -> None:
    """Try a release of the engine that is newer than the supported ones.

    Raises UsageError for a backend without a real engine of ours.
    """
    if not obeys(spec.backend, "server_python"):
        kinds = " or ".join(kinds_with("server_python"))
        raise UsageError(f"--allow-untested-release: only with --backend {kinds}")
    allow_untested()


def python_misplaced() -> UsageError:
    """Return the error for a ``--server-python`` with which no server would be started."""
    return UsageError(
        f"--server-python: only with --backend {' or '.join(kinds_with('server_python'))}"
    )
