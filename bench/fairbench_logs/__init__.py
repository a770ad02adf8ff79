"""Answers from a user's own request log: `fairbench score`, `diagnose` and `plan`."""

from fairbench.doors import Command

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
