"""Short tables for the pages of studies, with fewer rows or columns than in the appendices."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairbench_studies.kit.rows import TABLES, Row, read_cells
from fairbench_studies.kit.table_store import read
from fairbench_studies.kit.table_text import (
    as_markdown,
    bounded,
    index,
    min_share,
    percent,
    percentile_of,
    tail_of,
    whole,
)

INPUTS = {
    "gsm8k_train": "GSM8K, tot s1",
    "loogle_wiki9": "LooGLE, long-qa s2",
    "qmsum_val": "QMSum, long-qa s2",
    "sglang_judge_articles": "articles, judge s1",
    "mtbench101": "MT-Bench-101, chat s1",
}
"""The files of real text, with the configurations that use them."""


def brief_runs(rows: Iterable[Row]) -> str:
    """Return a table of a configuration's main results, with a row for each scheduler."""
    rows = list(rows)
    tail = tail_of(rows)
    header = (
        "scheduler",
        "service, tok/s",
        "Jain's index (max-min)",
        "minimum fair share of own total",
        "P50, s",
        f"{percentile_of(tail)}, s",
        "cache hit rate",
    )
    return as_markdown(
        header,
        (
            (
                f"`{row['scheduler']}`",
                whole(row, "service_rate_tok_s"),
                f"{index(row, 'jain_index')} ({index(row, 'jain_index_maxmin')})",
                min_share(row),
                bounded(row, "victim_p50_s"),
                bounded(row, tail),
                percent(row, "cache_hit_rate"),
            )
            for row in rows
        ),
    )


def real_latency() -> str:
    """Return a table of the well-behaved clients' tail latency for each source of real prompts."""
    return _across(lambda row, tail: bounded(row, tail))


def real_service() -> str:
    """Return a table of each scheduler's service on each file of real text."""
    return _across(lambda row, _: whole(row, "service_rate_tok_s"))


def _across(shown: Callable[[Row, str], str]) -> str:
    rows = read("real-input")
    names = list(dict.fromkeys(row["scheduler"] for row in rows))
    body = []
    for file, title in INPUTS.items():
        found = {row["scheduler"]: row for row in rows if row["of"] == file}
        tail = tail_of(found.values())
        body.append([title, *(shown(found[name], tail) for name in names)])
    return as_markdown(["text", *(f"`{name}`" for name in names)], body)


def sharing_brief() -> str:
    """Return a table of service by charging rule, if all clients or all but one share prefixes."""
    header, *body = read_cells(TABLES / "sharing.csv")
    kept = [at for at, name in enumerate(header) if name != "Jain"]
    titles = (
        "scheduler",
        "who pays",
        "all share: service, k tok/s",
        "a client, least to most, k tok/s",
        "Jain's index with a leaver",
        "leaver's ratio",
        "others' ratio",
    )
    return as_markdown(titles, ([row[at] for at in kept] for row in body))
