"""A long service log in files, in order of time, of which only a few blocks are in memory."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from fairbench.core import PS_PER_S
from fairbench.metrics.tables import FiledService
from fairbench.sim.records.columns import Columns
from fairbench.sim.records.seconds import seconds
from fairbench.sim.records.spool import FileBlocks

AT_ONCE = 16  # blocks


def filed_service(log: Columns, blocks: FileBlocks) -> FiledService:
    """Return the rows sorted by start and worker, stored beside the file of their ``blocks``.

    Rows are filed when a stretch is over, so no row begins long before the rows filed earlier. Rows
    that begin before all rows still to come are written; the others are kept.
    """
    start = log.names.index("start_ps")
    least = np.array([rows[:, start].min(initial=2**62) for rows in blocks.groups(AT_ONCE)])
    after = np.append(np.minimum.accumulate(least[::-1])[::-1][1:], 2**62) / PS_PER_S
    kept = np.empty((0, len(log.names)), np.int64)
    types = FiledService.column_types()
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(FiledService.path(blocks.folder, name).open("wb"))
            for name in types
        }
        for rows, yet_s in zip(blocks.groups(AT_ONCE), after, strict=True):
            kept = np.concatenate([kept, rows])
            start_s = kept[:, start] / PS_PER_S
            now = start_s < yet_s
            out = kept[now]
            out = out[np.lexsort((out[:, log.names.index("worker")], start_s[now]))]
            for name, file in files.items():
                _column(out, log.names, name).astype(types[name]).tofile(file)
            kept = kept[~now]
    return FiledService(blocks.folder, len(log))


def _column(rows: NDArray[np.int64], names: tuple[str, ...], name: str) -> NDArray[np.generic]:
    """Return a column of ``Service``, with seconds computed from picoseconds."""
    if name in names:
        return rows[:, names.index(name)]
    return seconds(rows[:, names.index(name.removesuffix("_s") + "_ps")])
