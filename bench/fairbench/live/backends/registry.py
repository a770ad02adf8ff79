"""The registry of backends: the backend of an experiment, and the checks before a run.

``BACKEND`` in ``live/backends/KIND.py`` (or ``KIND/__init__.py``) is the class for that kind's
config.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.config.backend_checks import check_run_options, kinds_with, obeys
from fairbench.errors import UsageError
from fairbench.live.backends.base import LiveBackend, LiveOptions
from fairbench.live.driver.target import check_headers
from fairbench.live.launchers.base import LocalLauncher
from fairbench.live.plugin_releases import allow_untested
from fairbench.live.requirements import require_live_extra


def live_backend(spec: ExperimentSpec) -> LiveBackend[Any]:
    """Return the backend of an experiment. Precondition: the backend is not the simulator."""
    assert spec.backend is not None, "the simulator cannot serve a live run"
    module = import_module(f"{__package__}.{spec.backend.kind}")
    backend: type[LiveBackend[Any]] = module.BACKEND
    return backend(spec, spec.backend)


def same_workers(one: ExperimentSpec, other: ExperimentSpec) -> bool:
    """Return whether runs of both experiments can share workers; the simulator has none."""
    if one.backend is None or other.backend is None:
        return False
    return live_backend(one).needs() == live_backend(other).needs()


def try_untested(spec: ExperimentSpec) -> None:
    """Try a release of the engine that is newer than the supported ones.

    Raises UsageError for a backend without a real engine of ours.
    """
    if not obeys(spec.backend, "server_python"):
        raise UsageError(f"--allow-untested-release needs --backend {kinds_with('server_python')}")
    allow_untested()


def check_live(spec: ExperimentSpec, options: LiveOptions) -> None:
    """Raise UsageError, before anything starts or is written, if the run is impossible here."""
    check_run_options(
        spec,
        headers=bool(options.headers),
        server_python=bool(options.server_python),
        launcher=not isinstance(options.launcher, LocalLauncher),
        driver_launcher=options.driver_launcher is not None,
        drivers=options.drivers,
    )
    if spec.backend is None:
        return
    require_live_extra()
    check_headers(options.headers)
    wanted = live_backend(spec).wanted(options)
    if wanted.replicas:
        options.launcher.check(wanted)
