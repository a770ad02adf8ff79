"""Tables of simulated runs: configurations, quanta, service gaps, and figures 4 and 7."""

from __future__ import annotations

from math import floor
from statistics import fmean

from fairbench_studies.kit.rows import ROOT, Row, read_rows
from fairbench_studies.kit.table_store import read
from fairbench_studies.kit.table_text import (
    as_markdown,
    bounded,
    index,
    min_share,
    percentile_of,
    tail_of,
    whole,
)


def headline() -> str:
    """Return the README's second table, with four schedulers in two configurations."""
    chosen = {("tot", "s1"), ("long-qa", "s2")}
    schedulers = {"fcfs", "vtc", "d2lpm", "fair-finish"}
    rows = [
        row
        for row in read("cells")
        if (row["workload"], row["scenario"]) in chosen and row["scheduler"] in schedulers
    ]
    tail = tail_of(rows)
    body, before = [], ("", "")
    for row in rows:
        place = row["workload"], row["scenario"]
        body.append(
            (
                "" if place == before else " ".join(f"`{word}`" for word in place),
                f"`{row['scheduler']}`",
                whole(row, "service_rate_tok_s"),
                f"{index(row, 'jain_index')} ({index(row, 'jain_index_maxmin')})",
                min_share(row),
                bounded(row, tail),
            )
        )
        before = place
    last = f"{percentile_of(tail)}, s"
    header = (
        "workload",
        "scheduler",
        "service, tok/s",
        "Jain's index (max-min)",
        "minimum fair share of own total",
        last,
    )
    return as_markdown(header, body)


def frontier_limit() -> str:
    """Return a table of the frontier study's test configurations, as means over the seeds.

    Rows show service relative to the highest possible service, and the lowest fair share in any
    minute.
    """
    cells: dict[str, dict[str, list[Row]]] = {}
    for row in read_rows(ROOT / "results/frontier.csv"):
        if (row["part"], row["form"]) == ("test", "published"):
            runs = cells.setdefault(f"`{row['workload']}` {row['scenario']}", {})
            runs.setdefault(row["pair"], []).append(row)

    def mean(runs: list[Row], key: str) -> str:
        return f"{fmean(100 * float(row[key]) for row in runs):.0f}%"

    shown = [
        *(("limit", pair) for pair in ("d2lpm", "fair-finish")),
        *(("worst_minute", pair) for pair in ("vtc", "d2lpm", "fair-finish")),
    ]
    words = {"limit": "of the limit", "worst_minute": "worst minute"}
    header = ("configuration", *(f"`{pair}`, {words[key]}" for key, pair in shown))
    return as_markdown(
        header,
        ((cell, *(mean(cells[cell][pair], key) for key, pair in shown)) for cell in sorted(cells)),
    )


def quantum() -> str:
    """Return the table of D2LPM's quantum in long-qa, including runs with few questions."""
    cells = {
        row["scenario"]: row
        for row in read("cells")
        if (row["workload"], row["scheduler"]) == ("long-qa", "d2lpm")
    }
    body = []
    for row in [*read("quantum"), *cells.values()]:
        few, _, setting = row["of"].rpartition("_d2lpm.")
        setting = setting.removeprefix("d2lpm.") or "worker_quantum=4000000"
        name, value = setting.split("=")
        shown = f"{int(value):,}" if value.isdigit() else f"`{name}={value}`"
        questions = few.removeprefix("long-qa.questions=") or "16"
        body.append((row["scenario"], questions, value, shown, row))
    body.sort(key=lambda one: (one[0], -int(one[1]), not one[2].isdigit(), one[2].zfill(9)))
    share = "min. fair share of own"
    header = ("long-qa", "questions", "Q^w", "service tok/s", "Jain", share, "P99 s")
    return as_markdown(
        header,
        (
            (
                *(scenario, questions, shown),
                whole(row, "service_rate_tok_s"),
                index(row, "jain_index"),
                min_share(row),
                bounded(row, "victim_p99_s"),
            )
            for scenario, questions, _, shown, row in body
        ),
    )


def gaps() -> str:
    """Return the table of the largest service gaps with a small KV pool, and the proven bounds."""
    return as_markdown(
        ("scheduler", "largest gap, tokens", "bound, tokens"),
        (
            (
                f"`{row['scheduler']}`",
                whole(row, "max_service_gap"),
                whole(row, "service_gap_bound") if row["service_gap_bound"] else "",
            )
            for row in read("gaps")
        ),
    )


def incentive(row: Row) -> str:
    """Return the sharing incentive with three digits. A lower bound begins with ``> ``."""
    value, name = float(row["sharing_incentive_p95"]), "sharing_incentive_p95"
    at_least, digits = name in row["at_least"].split(), 2 if value < 10 else 1
    if at_least:
        value = floor(value * 10**digits) / 10**digits
    return f"{'> ' if at_least else ''}{value:.{digits}f}"


def fig7() -> str:
    """Return the table of sharing incentive, throughput and Jain's index in [DLPM] Fig. 7."""
    rows = read("fig7")
    sizes = sorted({row["dp"] for row in rows}, key=int)
    body = []
    for workload, scenario, scheduler in dict.fromkeys(
        (row["workload"], row["scenario"], row["scheduler"]) for row in rows
    ):
        cells = {
            row["dp"]: " / ".join(
                (
                    incentive(row),
                    f"{float(row['service_rate_tok_s']) / 1000:.1f}",
                    f"{float(row['jain_index_actual']):.2f}",
                )
            )
            for row in rows
            if (row["workload"], row["scenario"], row["scheduler"])
            == (workload, scenario, scheduler)
        }
        values = (cells.get(size, "") for size in sizes)
        body.append((f"`{workload} {scenario}`", f"`{scheduler}`", *values))
    return as_markdown(("workload", "scheduler", *(f"dp {size}" for size in sizes)), body)


def fig4() -> str:
    """Return the table of a central scheduler's cost, from the CSV of figure 4."""
    rows = read_rows(ROOT / "plots" / "fig4.csv")
    parts = ("synchronisation_ms", "update_ms", "match_ms", "dispatch_ms")
    return as_markdown(
        (
            "workers",
            "waiting",
            "messages, ms",
            "update, ms",
            "match, ms",
            "sort and DLPM, ms",
            "overhead, % of a decode step",
        ),
        (
            (
                row["workers"],
                row["waiting"],
                *(f"{float(row[part]):.2f}" for part in parts),
                f"{float(row['overhead_pct']):.0f}%",
            )
            for row in rows
        ),
    )


def default_loads(name: str) -> str:
    """Return the table of workloads' default loads and capacities (``python studies loads``)."""
    header = ("workload", "capacity under lpm", "under vtc", "multiple", "rate", "P99 under vtc",
              "window")  # fmt: skip
    return as_markdown(
        header,
        ((f"{row['cell'].replace('.', ' ')}", *list(row.values())[1:]) for row in read(name)),
    )
