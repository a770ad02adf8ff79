"""Distinct times for batched requests: equal times are spread up to the next time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairbench.workloads.traces.table import Table


def spread_out(table: Table) -> Table:
    """Return the table with a distinct time for each request, in the same order.

    The last instant lasts as long as the one before it. A table with a single instant is unchanged.
    """
    moments, first, count = np.unique(table.arrival_s, return_index=True, return_counts=True)
    if len(moments) < 2:
        return table
    lengths = np.diff(moments)
    lengths = np.append(lengths, lengths[-1])
    within = np.arange(len(table)) - np.repeat(first, count)
    arrival_s = table.arrival_s + within * np.repeat(lengths / count, count)
    return replace(table, arrival_s=arrival_s, end_s=table.end_s + (arrival_s - table.arrival_s))
