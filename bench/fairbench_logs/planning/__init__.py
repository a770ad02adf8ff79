"""Capacity plans: the smallest cluster that meets latency and fairness targets at a load."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench_logs.planning.question import PlanQuestion as PlanQuestion
    from fairbench_logs.planning.question import parse_slos as parse_slos
    from fairbench_logs.planning.table import answer_text as answer_text
    from fairbench_logs.planning.table import head_lines as head_lines

__getattr__ = lazy_names(
    __name__,
    {
        "question": "PlanQuestion parse_slos",
        "table": "answer_text head_lines",
    },
)
