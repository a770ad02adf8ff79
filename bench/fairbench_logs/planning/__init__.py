"""Capacity plans: the smallest cluster that meets latency and fairness targets at a load."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench_logs.planning.carry_out import ANSWER as ANSWER
    from fairbench_logs.planning.page import is_plan as is_plan
    from fairbench_logs.planning.page import plan_page as plan_page
    from fairbench_logs.planning.question import NUM_RUNS as NUM_RUNS
    from fairbench_logs.planning.question import PlanQuestion as PlanQuestion
    from fairbench_logs.planning.question import parse_slos as parse_slos
    from fairbench_logs.planning.table import answer_text as answer_text
    from fairbench_logs.planning.table import head_lines as head_lines

__getattr__ = lazy_names(
    __name__,
    {
        "carry_out": "ANSWER",
        "page": "is_plan plan_page",
        "question": "NUM_RUNS PlanQuestion parse_slos",
        "table": "answer_text head_lines",
    },
)
