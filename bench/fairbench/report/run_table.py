"""A run's summary as text of at most ``MAX_WIDTH`` columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from fairbench.report.client_table import (
    client_tables,
    crowd_lines,
    is_crowd,
    ratio_lines,
    worst_clients,
)
from fairbench.report.result_lines import notes_of, results_of
from fairbench.report.table import MAX_WIDTH, pairs_table, printed
from fairbench.report.verdict import verdict
from fairbench.results.references import Reference
from fairbench.results.store import Summary
from fairbench.results.summary import (
    NOBODY_NAMED,
    cluster_line,
    details_line,
    is_nobody_named,
    trace_lines,
)


def summary_text(
    summary: Summary,
    *,
    path: Path,
    complete: bool = True,
    colour: bool = False,
    width: int = MAX_WIDTH,
    reference: Reference | None = None,
) -> str:
    """Return a run's summary as text, with or without ANSI colours (see ``render``)."""
    made = build_run_summary(
        summary, path=path, complete=complete, width=width, reference=reference
    )
    return printed(made, colour=colour, width=width)


def build_run_summary(
    summary: Summary,
    *,
    path: Path,
    complete: bool = True,
    width: int = MAX_WIDTH,
    reference: Reference | None = None,
) -> RenderableType:
    """Build a run's summary: verdict, cluster, clients, and numbers over all clients.

    An undefined number is written as ``-``, and the notes at the end give the reason. A percentile
    whose rank falls among unfinished programs is a lower bound, written as ``> x``.
    """
    blocks: list[RenderableType] = [
        *_verdict_lines(summary, reference),
        Text(cluster_line(summary)),
        Text(details_line(summary)),
        *(Text(line) for line in trace_lines(summary)),
        *([Text(NOBODY_NAMED)] if is_nobody_named(summary) else []),
    ]
    if not complete:
        why = summary.get("notes", {}).get("complete", "the run was interrupted")
        blocks.append(Text(f"INCOMPLETE: {why}", style="bold red"))
    return Group(*blocks, _body(summary, str(path), width))


def scored_text(
    summary: Summary, paths: str, *, colour: bool = False, width: int = MAX_WIDTH
) -> str:
    """Return the summary of records that contain only requests, as text like ``summary_text``."""
    heading = summary.get("layout")
    first = _verdict_lines(summary)
    title = f"scored from records ({heading})" if heading else cluster_line(summary)
    return printed(
        Group(*first, Text(title), _body(summary, paths, width)), colour=colour, width=width
    )


def _verdict_lines(summary: Summary, reference: Reference | None = None) -> list[Text]:
    """Return the verdict, if any, and an empty line."""
    text = verdict(summary, reference)
    return [Text(text, style="bold"), Text()] if text else []


def _body(summary: Summary, files: str, width: int) -> RenderableType:
    if not summary["num_programs"]:
        nothing = Text("No program arrived, so there is nothing to compare.")
        return Group(Text(), nothing, Text(), pairs_table([("files", files)]))
    results, notes = (
        pairs_table(results_of(summary)),
        pairs_table([*notes_of(summary), ("files", files)]),
    )
    return Group(Text(), *_client_blocks(summary, width), Text(), results, Text(), notes)


def _client_blocks(summary: Summary, width: int) -> Iterator[RenderableType]:
    if not is_crowd(summary):
        yield client_tables(summary, width)
        return
    worst = worst_clients(summary)
    yield pairs_table([*crowd_lines(summary), *ratio_lines(summary)])
    yield Text(f"\nThe {len(worst)} well-behaved clients that are worst off:")
    yield client_tables(summary, width, worst)
