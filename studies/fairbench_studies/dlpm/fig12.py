"""Figure 12 ([DLPM] §7.4): four clients with different workloads on one A10G.

Clients 0 and 1 chat, client 2 sends trees of thought, and client 3 judges. The figure shows the
response time and computed service of each client over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm.over_time import draw_over_time, rows_over_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROLES = {0: "chat", 1: "chat", 2: "trees of thought", 3: "judge"}
MEASURES = ("response_s", "actual_service_ktok_s")


def rows(cells: Sequence[SchedulerResults]) -> list[dict[str, Any]]:
    """Return a row for each scheduler, client and time interval."""
    return rows_over_time(cells, MEASURES)


def draw(cells: Sequence[SchedulerResults]) -> Figure:
    """Draw a column of panels per scheduler, with a line per client."""
    title = "DLPM Fig. 12: a mix of workloads on one A10G"
    return draw_over_time(cells, rows(cells), title, MEASURES, ROLES)
