"""A check for CI that compares stored runs with a baseline of the same experiments."""

from typing import TYPE_CHECKING

from fairbench.doors import Command
from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench_gate.baseline import check_stored as check_stored
    from fairbench_gate.baseline import difference as difference
    from fairbench_gate.baseline import keep as keep
    from fairbench_gate.baseline import metrics_stored as metrics_stored
    from fairbench_gate.baseline import read_specs as read_specs
    from fairbench_gate.clauses import Verdict as Verdict
    from fairbench_gate.clauses import parse_clause as parse_clause
    from fairbench_gate.formats import as_commands as as_commands
    from fairbench_gate.formats import as_junit as as_junit
    from fairbench_gate.formats import outcome_markdown as outcome_markdown
    from fairbench_gate.formats import outcome_text as outcome_text
    from fairbench_gate.outcome import NOTHING as NOTHING
    from fairbench_gate.points import failed_runs as failed_runs
    from fairbench_gate.points import read_pairs as read_pairs

__getattr__ = lazy_names(
    __name__,
    {
        "baseline": "check_stored difference keep metrics_stored read_specs",
        "formats": "as_commands as_junit outcome_markdown outcome_text",
        "clauses": "Verdict parse_clause",
        "outcome": "NOTHING",
        "points": "failed_runs read_pairs",
    },
)

CHECK = Command(
    "Continuous integration",
    "Compare runs with a baseline; exit 1 if a run got worse.",
    "fairbench_gate.cli_check:check",
)
BASELINE = Command(
    "Continuous integration",
    "Rerun stored experiments, and report or accept changed results.",
    "fairbench_gate.cli_baseline:baseline",
)
