"""The page of an access log, without a replay."""

from __future__ import annotations

from fairbench.diagnose.access_log import AccessLog
from fairbench.report.pages.log_page import log_page
from fairbench.report.pages.page import Page
from fairbench.report.traffic_lines import judged


def access_log_page(log: AccessLog) -> Page:
    """Return the page of a log: its load over time, its floods, and who waited if it says so."""
    warnings = [f"Synthetic: {log.synthetic}."] if log.synthetic else []
    left_out = ""
    if log.table.left_out:
        left_out = f", {log.table.left_out:,} {log.table.who_left_out} left out"
    provenance = f"{log.format}, SHA-256 {log.sha256[:12]}{left_out}."
    return log_page(log.file, provenance, judged(log.traffic), log.measured, warnings=warnings)
