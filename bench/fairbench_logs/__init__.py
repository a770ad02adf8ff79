"""Answers from a user's own request log: `fairbench score`, `diagnose` and `plan`."""

from typing import TYPE_CHECKING

from fairbench.doors import Command
from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench_logs.answers import diagnose as diagnose
    from fairbench_logs.answers import plan as plan
    from fairbench_logs.answers import score as score
    from fairbench_logs.cli_plan import print_plan as print_plan
    from fairbench_logs.diagnosis.page import log_page as log_page
    from fairbench_logs.planning.page import plan_page as plan_page

__getattr__ = lazy_names(
    __name__,
    {
        "answers": "diagnose plan score",
        "cli_plan": "print_plan",
        "diagnosis.page": "log_page",
        "planning.page": "plan_page",
    },
)

PLAN = Command(
    "Simulate and compare",
    "Find the smallest cluster that meets targets at a fixed load.",
    "fairbench_logs.cli_plan:plan",
)
DIAGNOSE = Command(
    "Logs and records",
    "Find a log's heavy clients, the delayed clients, and a remedy.",
    "fairbench_logs.cli_diagnose:diagnose_log",
)
SCORE = Command(
    "Logs and records",
    "Compute every fairness metric from any system's records.",
    "fairbench_logs.cli_score:score",
)
