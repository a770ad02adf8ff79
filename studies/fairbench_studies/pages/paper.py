"""The README's table of the DLPM paper's experiments at the paper's settings."""

from __future__ import annotations

from fairbench_studies.kit.rows import ROOT, Row, read_rows
from fairbench_studies.kit.table_text import as_markdown

REPLICAS = "4"
PLACES = (("tot", "s1"), ("tot", "s2"), ("judge", "s1"), ("judge", "s2"))
RIVALS = {"vtc": "VTC", "lpm": "LPM", "preble-code": "Preble"}


def paper() -> str:
    """Return the table of throughput, latency and Jain's index under D2LPM and its rivals."""
    rows: dict[tuple[str, str, str], Row] = {
        (row["workload"], row["scenario"], row["scheduler"]): row
        for row in read_rows(ROOT / "plots" / "fig7-dlpm-paper.csv")
        if row["dp"] == REPLICAS
    }
    return as_markdown(
        ("workload", *(f"{name}, tok/s" for name in RIVALS.values()), "P50, s", "Jain's index"),
        [_row(rows, place) for place in PLACES],
    )


def _row(rows: dict[tuple[str, str, str], Row], place: tuple[str, str]) -> list[str]:
    def of(scheduler: str, metric: str) -> float:
        return float(rows[*place, scheduler][metric])

    ratios = [
        f"{of('d2lpm', 'service_rate_tok_s') / of(rival, 'service_rate_tok_s'):.2f}x"
        for rival in RIVALS
    ]
    schedulers = (*RIVALS, "d2lpm")
    return [
        " ".join(f"`{word}`" for word in place),
        *ratios,
        " / ".join(f"{of(one, 'victim_p50_s'):.0f}" for one in schedulers),
        " / ".join(f"{of(one, 'jain_index_paper_window'):.2f}" for one in schedulers),
    ]
