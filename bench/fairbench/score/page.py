"""The page of scored records: load and waits over time, and every metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairbench.metrics.traffic import traffic_of
from fairbench.report.note_lines import notes_of
from fairbench.report.pages.log_page import log_page
from fairbench.report.pages.page import Definitions, Page, Paragraph, Section
from fairbench.report.result_lines import results_of
from fairbench.report.traffic_lines import TTFT, judged
from fairbench.score.records import Scored


def score_page(scored: Scored, summary: dict[str, Any], names: Sequence[str]) -> Page:
    """Return the page of records and of their summary.

    Args:
        scored: Records, with their clients.
        summary: Summary of the records.
        names: Names of the files, for the title.
    """
    traffic = traffic_of(scored.clients, scored.requests, scored.horizon_s)
    sections = []
    if summary["num_programs"]:
        sections.append(Section("Results", [Definitions(list(results_of(summary)))]))
    notes = [Paragraph(text) for _, text in notes_of(summary)]
    if notes:
        sections.append(Section("Metrics without a value, and the reason", notes, folded=True))
    provenance = f"Scored from records ({summary['layout']})."
    return log_page(", ".join(names), provenance, judged(traffic), TTFT, sections=sections)
