"""The store of runs, and the comparison of stored runs."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.results.comparison import compare_sweep as compare_sweep
    from fairbench.results.comparison import contrast_json as contrast_json
    from fairbench.results.comparison import sides_below as sides_below
    from fairbench.results.experiments import old_defaults as old_defaults
    from fairbench.results.experiments import point_names as point_names
    from fairbench.results.references import reference_for as reference_for
    from fairbench.results.references import reference_of as reference_of
    from fairbench.results.references import reference_spec as reference_spec
    from fairbench.results.references import stored_reference as stored_reference
    from fairbench.results.run_facts import check_metrics_of as check_metrics_of
    from fairbench.results.run_facts import read_tables as read_tables
    from fairbench.results.significance import INTERVALS_FILE as INTERVALS_FILE
    from fairbench.results.store import ANSWER as ANSWER
    from fairbench.results.store import MANIFEST as MANIFEST
    from fairbench.results.store import QUESTION as QUESTION
    from fairbench.results.store import SUMMARY as SUMMARY
    from fairbench.results.store import SWEEP_FILE as SWEEP_FILE
    from fairbench.results.store import SweepStore as SweepStore
    from fairbench.results.store import is_run as is_run
    from fairbench.results.store import read_json as read_json
    from fairbench.results.store import read_run as read_run
    from fairbench.results.store import runs_in as runs_in
    from fairbench.results.store import write_json as write_json
    from fairbench.results.store import write_text as write_text
    from fairbench.results.summary import check_summary as check_summary

__getattr__ = lazy_names(
    __name__,
    {
        "comparison": "compare_sweep contrast_json sides_below",
        "experiments": "old_defaults point_names",
        "significance": "INTERVALS_FILE",
        "references": "reference_for reference_of reference_spec stored_reference",
        "run_facts": "check_metrics_of read_tables",
        "store": (
            "ANSWER MANIFEST QUESTION SUMMARY SWEEP_FILE SweepStore is_run read_json read_run "
            "runs_in write_json write_text"
        ),
        "summary": "check_summary",
    },
)
