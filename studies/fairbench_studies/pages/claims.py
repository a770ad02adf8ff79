"""Tables of the papers' claims, and of the verdicts on the claims."""

from __future__ import annotations

from collections import Counter

from fairbench_studies.kit.rows import ROOT, read_rows
from fairbench_studies.kit.table_text import as_markdown, whole


def claims() -> str:
    """Return a table that counts verdicts on parts of the papers' claims, a row per setting."""
    rows = read_rows(ROOT / "results" / "claims.csv")
    outcomes = ("holds", "reversed", "off", "inconclusive", "not contended", "not testable")
    settings = dict.fromkeys(row["setting"] for row in rows)
    found = Counter((row["setting"], row["outcome"]) for row in rows)
    return as_markdown(
        ("setting", *outcomes),
        ([one, *(str(found[one, outcome]) for outcome in outcomes)] for one in settings),
    )


def pools() -> str:
    """Return a table of the service rate in the workload long-qa by size of the KV pool."""
    rows = {
        (row["scenario"], row["pool_tokens"], row["scheduler"]): row
        for row in read_rows(ROOT / "plots" / "fig7-dlpm-paper.csv")
        if row["workload"] == "long-qa"
    }
    rivals = ("d2lpm", "vtc", "lpm", "preble", "preble-code")
    return as_markdown(
        ("scenario", "pool, tokens", *(f"`{name}`" for name in rivals)),
        (
            (
                f"`{scenario}`",
                f"{int(pool):,}",
                *(whole(rows[scenario, pool, name], "service_rate_tok_s") for name in rivals),
            )
            for scenario, pool in dict.fromkeys(key[:2] for key in rows)
        ),
    )
