"""Whether live runs are possible on this machine, before anything is written or started."""

from __future__ import annotations

from collections.abc import Sequence

from fairbench.config import ExperimentSpec
from fairbench.config.backend import Endpoint, SGLang
from fairbench.errors import UsageError
from fairbench.execute.live_points import LivePoint, by_workers
from fairbench.live.driver.target import check_headers
from fairbench.live.extra import require_live_extra
from fairbench.live.options import LiveOptions
from fairbench.live.servers.cluster import worker_recipes


def check_live(spec: ExperimentSpec, options: LiveOptions) -> None:
    """Raise UsageError if the run is impossible here."""
    if options.headers and not isinstance(spec.backend, Endpoint):
        raise UsageError("--header: only with --base-url")
    if options.server_python and not isinstance(spec.backend, SGLang):
        raise UsageError("--server-python: only with --backend sglang")
    if spec.backend is None:
        return
    require_live_extra()
    check_headers(options.headers)
    if not isinstance(spec.backend, Endpoint):
        worker_recipes(spec, options.server_python)


def check_live_points(specs: Sequence[ExperimentSpec], options: LiveOptions) -> None:
    """Raise UsageError if a point of a sweep is impossible here."""
    if options.server_python and not any(isinstance(spec.backend, SGLang) for spec in specs):
        raise UsageError("--server-python: only with --backend sglang")
    for group in by_workers([LivePoint("", spec) for spec in specs]):
        spec = group[0].spec
        python = options.server_python if isinstance(spec.backend, SGLang) else None
        check_live(spec, LiveOptions(python))
