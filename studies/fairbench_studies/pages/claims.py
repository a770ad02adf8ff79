"""Tables of the papers' claims and the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fairbench_studies.kit.rows import ROOT, Row, read_rows
from fairbench_studies.kit.table_store import read
from fairbench_studies.kit.table_text import as_markdown, bounded


def claims() -> str:
    """Return how many parts of the paper's claims have each outcome at each setting."""
    rows = read_rows(ROOT / "results" / "claims.csv")
    outcomes = ("holds", "reversed", "off", "inconclusive", "not contended", "not testable")
    settings = dict.fromkeys(row["setting"] for row in rows)
    found = Counter((row["setting"], row["outcome"]) for row in rows)
    return as_markdown(
        ("setting", *outcomes),
        ([one, *(str(found[one, outcome]) for outcome in outcomes)] for one in settings),
    )


def claims_on_cells() -> str:
    """Return the paper's claims that single configurations can decide."""
    cells = {(row["workload"], row["scenario"], row["scheduler"]): row for row in read("cells")}

    def tot(scheduler: str) -> Row:
        return cells["tot", "s1", scheduler]

    def qa(scheduler: str) -> Row:
        return cells["long-qa", "s2", scheduler]

    def p95(row: Row) -> str:
        return f"{bounded(row, 'victim_p95_s')} s"

    def rate(row: Row) -> float:
        return float(row["service_rate_tok_s"])

    def jains(of: Callable[[str], Row], name: str, digits: int) -> str:
        return ", ".join(f"{float(of(x)[name]):.{digits}f}" for x in ("vtc", "d2lpm", "lpm"))

    ratios = {
        place: rate(cells[*place, "d2lpm"]) / rate(cells[*place, "preble"])
        for place in dict.fromkeys(key[:2] for key in cells)
    }

    def listed(above: bool) -> str:
        return ", ".join(
            f"{' '.join(place)} ({ratio:.2f}x)"
            for place, ratio in ratios.items()
            if (ratio >= 1) is above
        )

    def told(holds: bool, verdict: str = "reproduced") -> str:
        return verdict if holds else "not reproduced"

    def p95_below(of: Callable[[str], Row], *others: str) -> bool:
        ours = of("d2lpm")
        assert "victim_p95_s" not in ours["at_least"]
        return all(float(ours["victim_p95_s"]) < float(of(x)["victim_p95_s"]) for x in others)

    def fairer(of: Callable[[str], Row], name: str) -> bool:
        vtc, d2lpm, lpm = (float(of(x)[name]) for x in ("vtc", "d2lpm", "lpm"))
        return vtc >= d2lpm > lpm

    def above_vtc(cell: str, of: Callable[[str], Row]) -> tuple[str, str, str]:
        ours, vtc = rate(of("d2lpm")), rate(of("vtc"))
        return (
            f"{cell}: D2LPM throughput above VTC",
            f"{ours:,.0f} against {vtc:,.0f} tok/s of service, {ours / vtc:.2f}x",
            told(ours > vtc),
        )

    source = "[DLPM](../contribute/papers.md#papers) §6.2"
    found = (
        (
            "tot s1: well-behaved P95 under D2LPM below LPM and Preble",
            f"{p95(tot('d2lpm'))} against {p95(tot('lpm'))} and {p95(tot('preble'))}",
            told(p95_below(tot, "lpm", "preble")),
        ),
        above_vtc("tot s1", tot),
        (
            "tot s1: Jain VTC >= D2LPM > LPM",
            jains(tot, "jain_index", 3),
            told(fairer(tot, "jain_index")),
        ),
        (
            "long-qa s2: well-behaved P95 (TTFT) under D2LPM below LPM and VTC",
            f"{p95(qa('d2lpm'))} against {p95(qa('lpm'))} and {p95(qa('vtc'))}",
            told(p95_below(qa, "lpm", "vtc")),
        ),
        above_vtc("long-qa s2", qa),
        (
            "long-qa s2: Jain VTC >= D2LPM > LPM",
            f"service: {jains(qa, 'jain_index', 3)}; "
            f"computed service: {jains(qa, 'jain_index_actual', 4)}",
            told(fairer(qa, "jain_index_actual") and fairer(qa, "jain_index")),
        ),
        (
            "D2LPM throughput at least Preble's, except in long-qa s2 at 8 replicas",
            f"below Preble in {listed(False)}; above in {listed(True)}",
            told(min(ratios.values()) >= 1),
        ),
    )
    header = ("claim", "paper", "here", "verdict")
    return as_markdown(header, ((claim, source, here, said) for claim, here, said in found))
