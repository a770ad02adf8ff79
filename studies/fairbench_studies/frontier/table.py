"""The results of the frontier study as tables: fair-finish against each scheduler pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from textwrap import wrap
from typing import Any

from fairbench.errors import UsageError
from fairbench_studies.frontier.compare import Compared, Outcomes, Relation, compare
from fairbench_studies.frontier.frozen import (
    CAPPED,
    NAME,
    PUBLISHED,
    TUNED,
    Configuration,
    Frozen,
    digest,
)
from fairbench_studies.frontier.headline import Claimed, headline
from fairbench_studies.frontier.measures import Outcome
from fairbench_studies.frontier.outcomes import of_part
from fairbench_studies.kit.rows import write_rows

WIDTH = 100
COLUMNS = {  # column headings of the measures in the comparison with rivals
    "to_90_s": "90%",
    "to_100_s": "100%",
    "p95_s": "P95",
    "served": "served",
    "share": "share",
    "worst_minute": "minute",
    "service_tok_s": "service",
    "output_tok_s": "output",
}
PARTS = {"test": "Test configurations", "development": "Development configurations"}


def against(compared: Sequence[Compared], ours: Configuration) -> list[str]:
    """Return a table of the factors by which fair-finish is better than each rival."""
    head = ["against", *COLUMNS.values(), "configurations"]
    rows = [
        [
            str(one.rival),
            *(f"{one.estimates[name].ratio:.2f}{one.marks[name]}" for name in COLUMNS),
            "/".join(str(one.count(relation)) for relation in Relation),
        ]
        for one in compared
    ]
    return _aligned([head, *rows])


def explanation(frozen: Frozen, cells: int) -> list[str]:
    """Return the lines that explain the numbers and marks in the comparison with the rivals."""
    points = (
        f"Numbers are factors by which {frozen.ours} as published beats the rival: means over "
        f"{cells} configurations.",
        "Columns: time to 90% and 100% completion, P95 of the well-behaved clients, the served "
        "part of the worst-off client's due service, minimum fair share of the best total, the "
        "lowest part of a fair share in a minute, service, and output tok/s.",
        f"Marks: + significantly better, = significantly at most {frozen.margin:.0%} worse, ! "
        "significantly worse, =! both, ? inconclusive (paired by seed, stratified by "
        "configuration, Holm over the table).",
        f"The last column counts configurations in which {frozen.ours} dominates / equals / trades "
        "with / is dominated by the rival. The first four columns decide, within "
        f"{frozen.margin:.0%}.",
    )
    return [
        line
        for text in points
        for line in wrap(text, WIDTH, initial_indent="- ", subsequent_indent="  ")
    ]


def claim_rows(claimed: Sequence[Claimed], level: float) -> list[str]:
    """Return the lines of the table that tests the study's main claim."""
    head = [
        "configuration",
        "against",
        "service",
        "interval",
        "p",
        "output",
        "100%",
        "P99, s",
        "holds",
    ]
    rows = []
    for one in claimed:
        low, high = one.service.interval(level)
        holds = one.throughput_holds, one.latency_holds
        rows.append(
            [
                str(one.cell),
                str(one.rival),
                f"{one.service.ratio:.3f}",
                f"{low:.2f}-{high:.2f}",
                f"{one.p_service:.2g}",
                f"{one.output.ratio:.3f}",
                f"{one.makespan.ratio:.3f}",
                " : ".join(_seconds(value) for value in one.p99_s),
                {(True, True): "yes", (True, False): "throughput", (False, True): "P99"}.get(
                    holds, "no"
                ),
            ]
        )
    return _aligned([head, *rows])


def cell_rows(here: Mapping[Configuration, Outcome]) -> list[str]:
    """Return a table with the metrics of each scheduler pair (router+local) in a configuration."""
    head = ["", "90%, s", "100%, s", "P95, s", "P99, s", "served", "share", "minute", "service"]
    head += ["output", "of limit"]
    return _aligned([head, *(_cell_row(name, one) for name, one in here.items())])


def _cell_row(configuration: Configuration, one: Outcome) -> list[str]:
    p95, p99 = one.p95, one.p99
    return [
        str(configuration),
        *(
            f"{'>' if name in one.bounds else ''}{one.mean(name):,.0f}"
            for name in ("to_90_s", "to_100_s")
        ),
        f"{'>' if p95.censored else ''}{_seconds(p95.value_s)}",
        "-" if p99 is None else f"{'>' if p99.censored else ''}{_seconds(p99.value_s)}",
        *(f"{one.mean(name):.0%}" for name in ("served", "share", "worst_minute")),
        *(f"{one.mean(name):,.0f}" for name in ("service_tok_s", "output_tok_s")),
        "-" if isnan(one.mean("limit")) else f"{one.mean('limit'):.0%}",
    ]


def _seconds(value: float) -> str:
    return "-" if value != value else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table whose columns are also aligned as plain text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = [f"{'-' * (w + 1)}:" if n else "-" * (w + 2) for n, w in enumerate(widths)]
    lines = [_line(row, widths) for row in rows]
    return [lines[0], f"|{'|'.join(rule)}|", *lines[1:]]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.rjust(width) if number else text.ljust(width)
        for number, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return f"| {' | '.join(cells)} |"


def summary_lines(found: Outcomes, frozen: Frozen) -> Iterator[str]:
    """Yield the printed lines: a comparison of fair-finish with each rival, and the main claim."""
    ours = Configuration(frozen.ours, PUBLISHED)
    for part, title in PARTS.items():
        here = of_part(found, part)
        if not here:
            continue
        compared = compare(here, ours, margin=frozen.margin, level=frozen.level)
        yield from (f"## {title}", "")
        listed = f"{', '.join(_with_seeds(here))}. Numbers of seeds are in brackets."
        yield from (*wrap(listed, WIDTH), "")
        yield from (*explanation(frozen, len(here)), "", *against(compared, ours), "")
        for form in (CAPPED, TUNED):
            yield from _like_for_like(here, frozen, form)
    if claimed := headline(found, ours, frozen.margin):
        yield from ("## The claim", "")
        yield from wrap(
            f"The claim: the service of {frozen.ours} is at most {frozen.margin:.0%} below that of "
            "d2lpm and preble as published, and its well-behaved clients have a lower P99. A "
            f"service above 1 favours {frozen.ours}. p is the p-value of a service over "
            f"{frozen.margin:.0%} lower, after Holm. P99 is {frozen.ours} : rival over all seeds.",
            WIDTH,
        )
        yield from ("", *claim_rows(claimed, frozen.level), "")


def result_lines(found: Outcomes, frozen: Frozen) -> list[str]:
    """Return sentences with the number of configurations in which fair-finish dominates each rival.

    All compared scheduler pairs are in the form that their authors published.
    """
    here = of_part(found, "test")
    ours = Configuration(frozen.ours, PUBLISHED)
    compared = compare(here, ours, margin=frozen.margin, level=frozen.level)
    counts = ", ".join(
        f"{one.rival} in {one.count(Relation.DOMINATES)}"
        for one in compared
        if one.rival.form == PUBLISHED
    )
    text = f"**Result.** As published, {frozen.ours} dominates {counts} of {len(here)} test "
    return wrap(f"{text}configurations. The table also counts losses.", WIDTH)


def _like_for_like(found: Outcomes, frozen: Frozen, form: str) -> Iterator[str]:
    alike = {
        cell: {one: outcome for one, outcome in here.items() if one.form == form}
        for cell, here in found.items()
    }
    ours = Configuration(frozen.ours, form)
    if all(ours in here and len(here) > 1 for here in alike.values()):
        compared = compare(alike, ours, margin=frozen.margin, level=frozen.level)
        yield from (f"### The same, all {form}", "", *against(compared, ours), "")


def _with_seeds(found: Outcomes) -> list[str]:
    """Return the configurations as text, with the number of seeds, such as ``tot s1 (3)``."""
    return [f"{cell} ({len(next(iter(h.values())).runs)})" for cell, h in found.items()]


def markdown(found: Outcomes, frozen: Frozen, basis: str) -> str:
    """Return all tables of the study as Markdown."""
    lines = [
        f"# {frozen.ours} against every pair{_preset(frozen)}",
        "",
        f"This page compares {frozen.ours} with every other pair of router and local scheduler, as",
        "published, capped and tuned.",
        f"Made by `fairbench reproduce {NAME}{_flag(frozen)}`; {basis}.",
        f"Settings: `{digest(frozen.preset)[:16]}`.",
        "",
        *result_lines(found, frozen),
        "",
        *summary_lines(found, frozen),
    ]
    for part, title in PARTS.items():
        for cell, here in of_part(found, part).items():
            lines += [f"## {cell} ({title.lower().rstrip('s')})", "", *cell_rows(here), ""]
    return "\n".join(lines).rstrip() + "\n"


def _preset(frozen: Frozen) -> str:
    return f" at the preset {frozen.preset}" if frozen.preset else ""


def _flag(frozen: Frozen) -> str:
    return f" --preset {frozen.preset}" if frozen.preset else ""


def rows(found: Outcomes) -> list[dict[str, Any]]:
    """Return a row for each configuration, scheduler pair and seed."""
    return [
        {
            "part": cell.part,
            "workload": cell.workload,
            "scenario": cell.scenario,
            "dp": cell.dp,
            "pair": configuration.pair,
            "form": configuration.form,
            "seed": seed,
            **one._asdict(),
        }
        for cell, here in found.items()
        for configuration, outcome in here.items()
        for seed, one in outcome.runs.items()
    ]


def write(found: Outcomes, frozen: Frozen, basis: str, folder: Path) -> list[Path]:
    """Write tables of results (.md and .csv). Raises UsageError if a file cannot be written."""
    text, table = folder / f"{frozen.name}.md", folder / f"{frozen.name}.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text.write_text(markdown(found, frozen, basis), encoding="utf-8")
        write_rows(table, rows(found))
    except OSError as error:
        raise UsageError(f"claims_dir {folder}: cannot be written: {error.strerror}") from None
    return [text, table]
