"""Figure 8 ([DLPM] §6.3): conversations on two A10G, with two heavy clients.

One heavy client stops sending after half of the run. The figure shows each client's response time
and service rate over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm.over_time import draw_over_time, rows_over_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = ("response_s", "service_ktok_s")


def rows(cells: Sequence[SchedulerResults]) -> list[dict[str, Any]]:
    """Return a row for each scheduler, client and time interval."""
    return rows_over_time(cells, MEASURES)


def draw(cells: Sequence[SchedulerResults]) -> Figure:
    """Draw a column of panels per scheduler, with a line per client."""
    title = "DLPM Fig. 8: conversations; clients 2 and 3 flood, client 2 until half of the arrivals"
    return draw_over_time(cells, rows(cells), title, MEASURES)
