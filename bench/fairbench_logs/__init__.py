"""Logs and traces of users: their readers, and `fairbench score`, `diagnose`, `plan`, `trace`."""

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
    from fairbench_logs.records.column_names import mapped as mapped
    from fairbench_logs.records.column_names import parse_map as parse_map
    from fairbench_logs.traces.read import read_trace as read_trace

__getattr__ = lazy_names(
    __name__,
    {
        "answers": "diagnose plan score",
        "cli_plan": "print_plan",
        "diagnosis.page": "log_page",
        "planning.page": "plan_page",
        "records.column_names": "mapped parse_map",
        "traces.read": "read_trace",
    },
)

PLAN = Command(
    "Simulate and compare",
    "Find the smallest cluster that meets targets at a fixed load.",
    "fairbench_logs.cli_plan:plan",
    place=4,
)
DIAGNOSE = Command(
    "Logs and records",
    "Find a log's heavy clients, the delayed clients, and a remedy.",
    "fairbench_logs.cli_diagnose:diagnose_log",
    place=1,
)
SCORE = Command(
    "Logs and records",
    "Compute every fairness metric from any system's records.",
    "fairbench_logs.cli_score:score",
    place=2,
)
TRACE = Command(
    "Logs and records",
    "Inspect recorded traffic (a trace), or write a changed copy.",
    "fairbench_logs.cli_trace:trace",
    place=3,
)
