"""The gate: stored runs compared with a baseline of the same experiments."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.gate.baseline import check_stored as check_stored
    from fairbench.gate.baseline import difference as difference
    from fairbench.gate.baseline import keep as keep
    from fairbench.gate.baseline import metrics_stored as metrics_stored
    from fairbench.gate.baseline import read_specs as read_specs
    from fairbench.gate.formats import as_commands as as_commands
    from fairbench.gate.formats import as_junit as as_junit
    from fairbench.gate.formats import outcome_markdown as outcome_markdown
    from fairbench.gate.formats import outcome_text as outcome_text
    from fairbench.gate.judge import Verdict as Verdict
    from fairbench.gate.judge import parse_clause as parse_clause
    from fairbench.gate.outcome import NOTHING as NOTHING
    from fairbench.gate.points import read_pairs as read_pairs

__getattr__ = lazy_names(
    __name__,
    {
        "baseline": "check_stored difference keep metrics_stored read_specs",
        "formats": "as_commands as_junit outcome_markdown outcome_text",
        "judge": "Verdict parse_clause",
        "outcome": "NOTHING",
        "points": "read_pairs",
    },
)
