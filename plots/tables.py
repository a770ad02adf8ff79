"""The tables of README.md and docs/results/, rendered from results/tables/*.csv.

    python plots/tables.py                                   writes every marked block anew
    python plots/tables.py collect NAME [LABEL::]RUN_DIR ... results/tables/NAME.csv of stored runs
    python plots/tables.py collect-sweep NAME SWEEP_DIR      the same of a stored sweep, as fig7

A block stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor
from pathlib import Path

from fairbench.metrics.tail import shown_tail

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "results" / "tables"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs" / "results").glob("*.md")))
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

Row = Mapping[str, str]
# Their order in a table, and what is kept of a run: who ran what, then the numbers.
WORKLOADS = ("tot", "judge", "long-qa", "chat")
SCHEDULERS = ("fcfs", "lpm", "vtc", "preble", "dlpm", "d2lpm", "preble-dlpm", "fair-finish")
IDENTITY = ("workload", "scenario", "scheduler", "dp", "seed")
NUMBERS = (
    "service_rate_tok_s",
    "output_rate_tok_s",
    "jain_index",
    "jain_index_actual",
    "jain_index_maxmin",
    "min_entitlement_ratio",
    "victim_n",
    "victim_p50_s",
    "victim_p95_s",
    "victim_p99_s",
    "cache_hit_rate",
    "num_requests",
    "max_service_gap",
    "service_gap_bound",
    "queue_empty_share",
    "demand_limited",
)
SWEEP_NUMBERS = ("sharing_incentive_p95", "service_rate_tok_s", "jain_index_actual")


# Collecting.


def kept(summary: Mapping[str, object], of: str) -> dict[str, str]:
    """A row of a table of runs. ``of`` tells runs of one scheduler apart: a data set, a setting."""
    censored = summary["censored"]
    assert isinstance(censored, list)
    return {
        "of": of,
        **{name: str(summary[name]) for name in IDENTITY},
        "profile": str(summary["timing_profile"]),
        **{name: "" if summary[name] is None else repr(summary[name]) for name in NUMBERS},
        "at_least": " ".join(name for name in NUMBERS if name in censored),
    }


def collect(runs: Iterable[str]) -> list[dict[str, str]]:
    """Rows of stored runs, ``RUN_DIR`` or ``LABEL::RUN_DIR``, by workload and scheduler."""
    rows = []
    for run in runs:
        label, _, folder = run.rpartition("::")
        summary = Path(folder) / "summary.json"
        rows.append(kept(json.loads(summary.read_text(encoding="utf-8")), label))
    return sorted(rows, key=_place)


def collect_sweep(folder: Path) -> list[dict[str, str]]:
    """Rows of a stored sweep: means over its seeds of what figure 7's table shows."""
    cells = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["cells"]
    rows = []
    for cell in cells:
        numbers = {name: cell.get(name) or {"mean": None} for name in SWEEP_NUMBERS}
        rows.append(
            {
                **{name: str(cell[name]) for name in ("workload", "scenario", "scheduler", "dp")},
                **{
                    name: "" if number["mean"] is None else repr(number["mean"])
                    for name, number in numbers.items()
                },
                "at_least": " ".join(
                    name for name, number in numbers.items() if number.get("lower_bound")
                ),
            }
        )
    return sorted(rows, key=lambda row: (*_place(row), int(row["dp"])))


def _place(row: Row) -> tuple[int, str, int]:
    return (
        WORKLOADS.index(row["workload"]),
        row["scenario"],
        SCHEDULERS.index(row["scheduler"]),
    )


def write(name: str, rows: Sequence[Mapping[str, str]]) -> None:
    """``results/tables/NAME.csv``."""
    TABLES.mkdir(parents=True, exist_ok=True)
    with (TABLES / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(name: str) -> list[dict[str, str]]:
    """The rows of ``results/tables/NAME.csv``."""
    with (TABLES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# Rendering.


def as_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. A column is aligned to the right if all that it says are numbers."""
    body = [list(row) for row in rows]
    marks = [
        "--:" if all(map(is_number, column)) and any(column) else "---"
        for column in zip(*body, strict=True)
    ]
    lines = [header, None, *body]
    return "".join(
        f"|{'|'.join(marks)}|\n"
        if line is None
        else f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|\n"
        for line in lines
    )


def is_number(cell: str) -> bool:
    """A number as the tables print them, ``> 739`` and ``0.99 / 1.00 (s1)`` too; or nothing."""
    return not cell or (len(cell) < 30 and re.match(r"[*>~<+ -]*\d|-$", cell) is not None)


def bounded(row: Row, name: str) -> str:
    """Seconds, ``> `` before a lower bound."""
    if not row[name]:
        return "-"
    value, at_least = float(row[name]), name in row["at_least"].split()
    digits = 0 if value >= 100 else 1
    if at_least:  # rounded down, so that it stays true
        value = floor(value * 10**digits) / 10**digits
    return f"{'> ' if at_least else ''}{value:,.{digits}f}"


def tail_of(rows: Iterable[Row]) -> str:
    """The latency that all of them show: P99 where each has enough latencies, else P95."""
    known = ({"victim_n": int(n), "victim_p95_s": ""} if n else {} for n in map(_number_of, rows))
    tail = shown_tail(known)
    return f"victim_p{tail}_s"


def _number_of(row: Row) -> str | None:
    """Of how many latencies a row is; runs collected before it was kept do not say."""
    return row.get("victim_n")


def percentile_of(name: str) -> str:
    """What a column of that latency is called."""
    return name.removeprefix("victim_").removesuffix("_s").upper()


def whole(row: Row, name: str) -> str:
    return f"{float(row[name]):,.0f}"


def percent(row: Row, name: str) -> str:
    return f"{float(row[name]):.0%}"


def worst_share(row: Row) -> str:
    """The worst client's part of its fair share, if anyone was short of service."""
    return (
        percent(row, "min_entitlement_ratio") if row["min_entitlement_ratio"] else "not contended"
    )


def limited(row: Row) -> str:
    """How much of the window queues were empty, if so much that rates compare loads."""
    return percent(row, "queue_empty_share") if row["demand_limited"] == "True" else "no"


def index(row: Row, name: str) -> str:
    return f"{float(row[name]):.3f}"


def runs_table(rows: Iterable[Row]) -> str:
    """Every number of some runs, one scheduler a row.

    Runs collected before it was kept do not say whether they were limited by demand.
    """
    rows = list(rows)
    kept_limits = all("demand_limited" in row for row in rows)
    think = " with think time" if rows[0]["workload"] == "chat" else ""
    tail = tail_of(rows)
    header = (
        "scheduler",
        "service tok/s",
        "output tok/s",
        "Jain service / actual (max-min)",
        "worst share",
        f"P50 s{think}",
        f"{percentile_of(tail)} s{think}",
        "hit",
        "requests",
        *(["queues empty"] if kept_limits else ()),
    )
    return as_markdown(
        header,
        (
            (
                row["scheduler"],
                whole(row, "service_rate_tok_s"),
                whole(row, "output_rate_tok_s"),
                f"{index(row, 'jain_index')} / {float(row['jain_index_actual']):.4f} "
                f"({index(row, 'jain_index_maxmin')})",
                worst_share(row),
                bounded(row, "victim_p50_s"),
                bounded(row, tail),
                percent(row, "cache_hit_rate"),
                whole(row, "num_requests"),
                *([limited(row)] if kept_limits else ()),
            )
            for row in rows
        ),
    )


def headline() -> str:
    """The README's first table: who gets what, in two of the cells."""
    chosen = {("tot", "s1"), ("long-qa", "s2")}
    rows = [
        row
        for row in read("cells")
        if (row["workload"], row["scenario"]) in chosen and row["scheduler"] != "fcfs"
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
                index(row, "jain_index_actual"),
                worst_share(row),
                bounded(row, tail),
            )
        )
        before = place
    last = f"{percentile_of(tail)}, s"
    header = ("", "", "service, tok/s", "Jain, actual service", "worst share", last)
    return as_markdown(header, body)


def quantum() -> str:
    """D2LPM's quantum in long-qa, also with few questions, beside the cells of the default."""
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
    header = ("long-qa", "questions", "Q^w", "service tok/s", "Jain", "worst share", "P99 s")
    return as_markdown(
        header,
        (
            (
                *(scenario, questions, shown),
                whole(row, "service_rate_tok_s"),
                index(row, "jain_index"),
                worst_share(row),
                bounded(row, "victim_p99_s"),
            )
            for scenario, questions, _, shown, row in body
        ),
    )


def gaps() -> str:
    """Largest service gaps on a small pool, beside the theorems' bounds."""
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
    """The sharing incentive to three digits, ``> `` before a lower bound."""
    value, name = float(row["sharing_incentive_p95"]), "sharing_incentive_p95"
    at_least, digits = name in row["at_least"].split(), 2 if value < 10 else 1
    if at_least:
        value = floor(value * 10**digits) / 10**digits
    return f"{'> ' if at_least else ''}{value:.{digits}f}"


def fig7() -> str:
    """Sharing incentive / service in 1000 tok/s / Jain index of actual service."""
    rows = read("fig7")
    sizes = sorted({row["dp"] for row in rows}, key=int)
    body, before = [], ("", "")
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
        place = workload, scenario
        body.append(
            (
                "" if place == before else f"`{workload}` `{scenario}`",
                f"`{scheduler}`",
                *(cells.get(size, "") for size in sizes),
            )
        )
        before = place
    return as_markdown(("", "", *(f"dp {size}" for size in sizes)), body)


def fig4() -> str:
    """What a centralised DLPM costs, of the figure's own CSV."""
    with (ROOT / "plots" / "fig4.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
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


def measured(fitted: str) -> str:
    """The validation's runs, one a row: errors now, and before the prefill law was fitted anew."""
    now, before = (_validation(name, fitted) for name in ("validation", "before"))
    header = (
        "run",
        "throughput",
        "largest client rate",
        "Jain, simulated / measured",
        "TTFT P50",
        "TTFT P99",
        "least TTFT",
        "refused",
    )
    return as_markdown(header, (_validated(run, of, before[run]) for run, of in now.items()))


def _validation(name: str, fitted: str) -> dict[str, dict[str, Row]]:
    """Run -> number -> row of ``results/validation/NAME.csv``, of fitted or of other runs."""
    found: dict[str, dict[str, Row]] = {}
    with (ROOT / "results" / "validation" / f"{name}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["fitted"] == fitted:
                found.setdefault(row["run"], {})[row["number"]] = row
    return found


def _validated(run: str, now: Mapping[str, Row], before: Mapping[str, Row]) -> tuple[str, ...]:
    """A run's row; two errors are before and now."""

    def worst(start: str) -> str:
        sides = []
        for of in (before, now):
            names = (name for name in of if name.startswith(start) and "slice" not in name)
            errors = [float(of[name]["error_pct"]) for name in names]
            sides.append(f"{max(errors, key=abs):+.1f}%")
        return ", ".join(sides)

    least, refused = now["least TTFT"], now["refused"]
    return (
        re.sub(r"^LShare/rpm(\d+)/real$", r"RPM \1", run).replace("/", " "),
        worst("throughput"),
        worst("service rate of"),
        " / ".join(f"{float(now['Jain'][side]):.3f}" for side in ("simulated", "measured")),
        worst("TTFT P50"),
        worst("TTFT P99"),
        worst("least TTFT") if float(least["measured"]) < 0.15 else "-",
        f"{float(refused['simulated']):.0f} / {float(refused['measured']):.0f}",
    )


def serving() -> str:
    """Runs of real serving engines that nothing was fitted to: errors under two profiles."""
    return _serving("false")


def serving_fitted() -> str:
    """The runs that the measured profile was fitted to."""
    return _serving("true")


def _serving(fitted: str) -> str:
    """Errors with the measured profile, and on an A100 with the operator profile beside them."""
    columns = {}
    for name in ("validation", "operator-profile"):
        path = ROOT / "results" / "serving" / f"{name}.csv"
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                columns[name, row["run"], row["number"].split("/")[0]] = row
    body = []
    runs = {row["run"]: row["fitted"] for row in columns.values()}
    for run in (run for run in runs if runs[run] == fitted):
        cells = []
        for number in ("throughput_tok_s", "tpot_p50_ms", "ttft_p50_s", "ttft_p99_s"):
            new, old = (columns[name, run, number] for name in ("validation", "operator-profile"))
            before = f" ({float(old['error_pct']):+.0f})" if "-a100-" in run else ""
            measured = float(new["measured"])
            text = f"{measured:,.0f}" if measured >= 100 else f"{measured:.3g}"
            cells += [text, f"{float(new['error_pct']):+.0f}%{before}"]
        body.append((run, *cells))
    header = ("run", "tok/s", "error", "TPOT P50, ms", "error", "TTFT P50, s", "error",
              "TTFT P99, s", "error")  # fmt: skip
    return as_markdown(header, body)


def claims() -> str:
    """How many of the paper's claims come out, of ``fairbench reproduce claims``."""
    with (ROOT / "results" / "claims.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    verdicts = ("reproduced", "direction only", "not reproduced", "contradicted", "not testable")
    found = {
        verdict: [row["number"] for row in rows if row["verdict"] == verdict]
        for verdict in verdicts
    }
    assert sum(map(len, found.values())) == len(rows)
    return as_markdown(
        ("verdict", "claims", "which"),
        ((verdict, str(len(which)), ", ".join(which)) for verdict, which in found.items() if which),
    )


def claims_on_cells() -> str:
    """The paper's claims that one cell each can tell."""
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

    source = "[DLPM](../papers.md#papers) §6.2"
    found = (
        (
            "tot s1: well-behaved P95 under D2LPM below LPM and Preble",
            f"{p95(tot('d2lpm'))} against {p95(tot('lpm'))} and {p95(tot('preble'))}",
            told(p95_below(tot, "lpm", "preble")),
        ),
        (
            "tot s1: D2LPM throughput above VTC",
            f"{rate(tot('d2lpm')):,.0f} against {rate(tot('vtc')):,.0f} tok/s of service, "
            f"{rate(tot('d2lpm')) / rate(tot('vtc')):.2f}x",
            told(rate(tot("d2lpm")) > rate(tot("vtc"))),
        ),
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
        (
            "long-qa s2: D2LPM throughput above VTC",
            f"{rate(qa('d2lpm')):,.0f} against {rate(qa('vtc')):,.0f} tok/s, "
            f"{rate(qa('d2lpm')) / rate(qa('vtc')):.2f}x",
            told(rate(qa("d2lpm")) > rate(qa("vtc"))),
        ),
        (
            "long-qa s2: Jain VTC >= D2LPM > LPM",
            f"service: {jains(qa, 'jain_index', 3)}; "
            f"actual service: {jains(qa, 'jain_index_actual', 4)}",
            told(fairer(qa, "jain_index_actual") and fairer(qa, "jain_index")),
        ),
        (
            "D2LPM throughput at least Preble's, but for long-qa s2 at 8 replicas",
            f"below Preble in {listed(False)}; above in {listed(True)}",
            told(min(ratios.values()) >= 1),
        ),
    )
    header = ("claim", "paper", "here", "verdict")
    return as_markdown(header, ((claim, source, here, said) for claim, here, said in found))


def default_loads(name: str) -> str:
    """How the default loads follow from capacities, of ``plots/loads.py``."""
    header = ("cell", "capacity under lpm", "under vtc", "multiple", "rate", "P99 under vtc",
              "window")  # fmt: skip
    return as_markdown(
        header,
        ((f"{row['cell'].replace('.', ' ')}", *list(row.values())[1:]) for row in read(name)),
    )


MADE: dict[str, Callable[[], str]] = {
    "default-loads": lambda: default_loads("default-loads"),
    "default-loads-a10g": lambda: default_loads("default-loads-a10g"),
    "headline": headline,
    "quantum": quantum,
    "gaps": gaps,
    "fig7": fig7,
    "fig4": fig4,
    "measured": lambda: measured("no"),
    "measured-fitted": lambda: measured("yes"),
    "serving": serving,
    "serving-fitted": serving_fitted,
    "claims": claims,
    "claims-on-cells": claims_on_cells,
}


def render(name: str) -> str:
    """The table of that name: one made above, ``cells/W-S``, ``real/FILE``, or a CSV as it is."""
    if name in MADE:
        return MADE[name]()
    kind, _, which = name.partition("/")
    if kind == "cells":
        rows = [row for row in read("cells") if f"{row['workload']}-{row['scenario']}" == which]
        return runs_table(rows)
    if kind == "real":
        return runs_table(row for row in read("real-input") if row["of"] == which)
    with (TABLES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        header, *cells = csv.reader(file)
    return as_markdown(header, cells)


def rendered(text: str) -> str:
    """A document with every marked block written anew."""
    return BLOCK.sub(lambda block: block[1] + render(block[2]) + block[4], text)


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case []:
            for document in DOCUMENTS:
                old = document.read_text(encoding="utf-8")
                if (new := rendered(old)) != old:
                    document.write_text(new, encoding="utf-8")
                    sys.stdout.write(f"{document.relative_to(ROOT)}\n")
        case ["collect", name, *runs]:
            write(name, collect(runs))
        case ["collect-sweep", name, folder]:
            write(name, collect_sweep(Path(folder)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
