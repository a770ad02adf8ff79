"""The check of live points: whether a sweep is possible, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence

from fairbench.config import ExperimentSpec
from fairbench.execute.live_points import LivePoint, by_workers
from fairbench.live.backends.base import LiveOptions
from fairbench.live.backends.registry import check_live, obeys, python_misplaced


def check_live_points(specs: Sequence[ExperimentSpec], options: LiveOptions) -> None:
    """Raise UsageError if a point of a sweep is impossible here."""
    if options.server_python and not any(obeys(spec.backend, "server_python") for spec in specs):
        raise python_misplaced()
    for group in by_workers([LivePoint("", spec) for spec in specs]):
        spec = group[0].spec
        python = options.server_python if obeys(spec.backend, "server_python") else None
        check_live(spec, LiveOptions(python))
