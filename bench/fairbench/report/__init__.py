"""Reports: tables and pages of stored results. This package runs no experiments."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.report.bench_line import check_appendable as check_appendable
    from fairbench.report.comparison_table import comparison_text as comparison_text
    from fairbench.report.explained import explained_text as explained_text
    from fairbench.report.pages.html import check_ending as check_ending
    from fairbench.report.pages.html import write_page as write_page
    from fairbench.report.pages.repeat_page import repeat_page as repeat_page
    from fairbench.report.pages.run_page import run_page as run_page
    from fairbench.report.pages.sweep_page import sweep_page as sweep_page
    from fairbench.report.pair_table import contrast_text as contrast_text
    from fairbench.report.pair_table import metric_label as metric_label
    from fairbench.report.progress import shown_progress as shown_progress
    from fairbench.report.run_table import repeat_lines as repeat_lines
    from fairbench.report.run_table import scored_text as scored_text
    from fairbench.report.run_table import summary_text as summary_text
    from fairbench.report.table import MAX_WIDTH as MAX_WIDTH
    from fairbench.report.table import printed as printed
    from fairbench.report.workload_table import checked as checked

__getattr__ = lazy_names(
    __name__,
    {
        "bench_line": "check_appendable",
        "comparison_table": "comparison_text",
        "explained": "explained_text",
        "pages.repeat_page": "repeat_page",
        "pages.run_page": "run_page",
        "pages.sweep_page": "sweep_page",
        "pages.html": "check_ending write_page",
        "pair_table": "contrast_text metric_label",
        "progress": "shown_progress",
        "run_table": "repeat_lines scored_text summary_text",
        "table": "MAX_WIDTH printed",
        "workload_table": "checked",
    },
)
