"""Figure 9 ([DLPM] §7.1): trees of thought on four A10G, run to completion.

The prompts of client 0 have a longer shared prefix than those of other clients. The figure shows
each client's response time, computed service and service rate over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm.over_time import draw_over_time, rows_over_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = ("response_s", "actual_service_ktok_s", "service_ktok_s")


def rows(cells: Sequence[SchedulerResults]) -> list[dict[str, Any]]:
    """Return a row for each scheduler, client and time interval."""
    return rows_over_time(cells, MEASURES)


def draw(cells: Sequence[SchedulerResults]) -> Figure:
    """Draw a column of panels per scheduler, with a line per client."""
    title = "DLPM Fig. 9: trees of thought until all are done; client 0 has 10 times the prefix"
    return draw_over_time(cells, rows(cells), title, MEASURES)
