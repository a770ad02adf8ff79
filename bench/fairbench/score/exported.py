"""A file that another benchmark exported: the tool, and the requests of the chosen run."""

from __future__ import annotations

from typing import NamedTuple

from fairbench.errors import DataError
from fairbench.score.columns import one_of_several
from fairbench.score.files import Object
from fairbench.score.tools import TOOLS
from fairbench.score.tools.tool import Run


class Exported(NamedTuple):
    """The run, the name of the tool, and its requests with their locations."""

    run: Run
    tool: str
    objects: list[tuple[str, Object]]


def export_of(
    objects: list[tuple[str, Object]], line: int | None, layout: str | None
) -> Exported | None:
    """Return the run that a known tool exported, or None.

    ``layout`` is the only tool that counts, if there is one; ``line`` chooses among several runs,
    from 1. Raises UsageError if it is not clear which, and DataError if the run has no requests.
    """
    where, first = objects[0]
    known = [one for one in TOOLS if layout in (None, one.name)]
    tool = next((one for one in known if one.recognise(first)), None)
    if tool is None:
        return None
    runs = tool.runs([item for _, item in objects])
    file = where.rpartition(",")[0] or where
    run = one_of_several(runs, line, file)
    if not run.requests:
        raise DataError(f"{file}: holds no records")
    places = [f"{file}, request {number}" for number in range(1, len(run.requests) + 1)]
    return Exported(run, tool.name, list(zip(places, run.requests, strict=True)))
