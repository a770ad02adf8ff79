"""Metrics of requests that other tools recorded, and of stored runs."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench_logs.scoring.arrays import NEEDED as NEEDED
    from fairbench_logs.scoring.records import read_answers as read_answers
    from fairbench_logs.scoring.records import read_scored as read_scored
    from fairbench_logs.scoring.summary import score_page as score_page
    from fairbench_logs.scoring.summary import score_run as score_run
    from fairbench_logs.scoring.summary import scored_summary as scored_summary
    from fairbench_logs.scoring.summary import scored_window as scored_window

__getattr__ = lazy_names(
    __name__,
    {
        "arrays": "NEEDED",
        "records": "read_answers read_scored",
        "summary": "score_page score_run scored_summary scored_window",
    },
)
