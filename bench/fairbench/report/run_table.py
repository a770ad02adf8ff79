"""A run's summary for people, at most ``MAX_WIDTH`` columns wide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from fairbench.report.client_table import client_tables, is_crowd
from fairbench.report.crowd import crowd_lines, ratio_lines, worst_clients
from fairbench.report.result_lines import notes_of, results_of
from fairbench.report.table import MAX_WIDTH, pairs_table, printed
from fairbench.results.header import (
    NOBODY_NAMED,
    cluster_line,
    details_line,
    is_nobody_named,
    trace_lines,
)
from fairbench.results.store import Summary


def summary_text(
    summary: Summary,
    *,
    path: Path,
    complete: bool = True,
    colour: bool = False,
    width: int = MAX_WIDTH,
) -> str:
    """Return the output of ``render`` as lines of text, with or without ANSI colours."""
    return printed(
        render(summary, path=path, complete=complete, width=width), colour=colour, width=width
    )


def render(
    summary: Summary, *, path: Path, complete: bool = True, width: int = MAX_WIDTH
) -> RenderableType:
    """Render the summary: cluster, clients, then the numbers over all clients.

    An undefined number is shown as ``-``, with the reason among the notes at the end. A percentile
    that falls among unfinished programs is shown as ``> x``.
    """
    blocks: list[RenderableType] = [
        Text(cluster_line(summary), style="bold"),
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
    """Return ``summary_text`` for records that contain only requests."""
    heading = summary.get("layout")
    title = f"scored from records ({heading})" if heading else cluster_line(summary)
    return printed(
        Group(Text(title, style="bold"), _body(summary, paths, width)), colour=colour, width=width
    )


def _body(summary: Summary, files: str, width: int) -> RenderableType:
    if not summary["num_programs"]:
        nothing = Text("No program arrived, so there is nothing to compare.")
        return Group(Text(), nothing, Text(), pairs_table([("files", files)]))
    results, notes = (
        pairs_table(results_of(summary)),
        pairs_table([*notes_of(summary), ("files", files)]),
    )
    return Group(Text(), *_clients(summary, width), Text(), results, Text(), notes)


def _clients(summary: Summary, width: int) -> Iterator[RenderableType]:
    if not is_crowd(summary):
        yield client_tables(summary, width)
        return
    worst = worst_clients(summary)
    yield pairs_table([*crowd_lines(summary), *ratio_lines(summary)])
    yield Text(f"\nThe {len(worst)} well-behaved clients that are worst off:")
    yield client_tables(summary, width, worst)
