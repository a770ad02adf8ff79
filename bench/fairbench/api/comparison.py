"""Results side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from fairbench.api.result import Result
from fairbench.errors import UsageError
from fairbench.results.grid import labels


def compare(*results: Result) -> pa.Table:
    """The metrics of some runs as an Arrow table, one row a run.

    A row begins with ``place``, what the run is of, and ``run``, its scheduler there: only rows of
    one place and seed had the same load. Raises UsageError without a result.
    """
    if not results:
        raise UsageError("nothing to compare: give some results")
    named = labels([result.experiment for result in results])
    rows = [
        {"place": place, "run": scheduler, **_plain(result.summary)}
        for (place, scheduler), result in zip(named, results, strict=True)
    ]
    keys = dict.fromkeys(key for row in rows for key in row)
    return pa.Table.from_pylist([{key: row.get(key) for key in keys} for row in rows])


def _plain(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if not isinstance(value, list | dict)}
