"""The summary of a run, or of repeats of a run, as text of at most ``MAX_WIDTH`` columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from rich.console import Group, RenderableType
from rich.text import Text

from fairbench.metrics.catalogue import columns_of, columns_with_values
from fairbench.metrics.metric import Display
from fairbench.metrics.shown_percentiles import P99, chosen_percentiles
from fairbench.report import client_table
from fairbench.report.numbers import bound_of, less_than, more_than
from fairbench.report.result_lines import notes_of, results_of
from fairbench.report.table import MAX_WIDTH, pairs_table, printed
from fairbench.report.verdict import repeats_verdict, verdict
from fairbench.results.references import Reference
from fairbench.results.significance import METHOD
from fairbench.results.store import Summary
from fairbench.results.summary import (
    NOBODY_NAMED,
    basis,
    cluster_line,
    cluster_name,
    details_line,
    is_nobody_named,
    scheduler_name,
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
    """Return a run's summary as text, with or without ANSI colours."""
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
    """Build a run's summary as text: verdict, cluster, clients, and values over all clients.

    An undefined number is written as ``-``, and notes at the end of the text give the reason. A
    percentile that lies among unfinished programs is a lower bound, written as ``> x``.
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
    """Return a text with the summary of records that ``fairbench score`` has read."""
    heading = summary.get("layout")
    first = _verdict_lines(summary)
    title = f"scored from records ({heading})" if heading else cluster_line(summary)
    return printed(
        Group(*first, Text(title), _body(summary, paths, width)), colour=colour, width=width
    )


def _verdict_lines(summary: Summary, reference: Reference | None = None) -> list[Text]:
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
    if not client_table.is_crowd(summary):
        yield client_table.client_tables(summary, width)
        return
    worst = client_table.worst_clients(summary)
    yield pairs_table([*client_table.crowd_lines(summary), *client_table.ratio_lines(summary)])
    yield Text(f"\nThe {len(worst)} well-behaved clients that are worst off:")
    yield client_table.client_tables(summary, width, worst)


SHARE_DIGITS = 1
MAX_LABEL = 48


def repeat_lines(combined: Summary, tail: int = P99) -> Iterator[str]:
    """Yield the combined summary of several runs as lines of at most 100 characters.

    ``tail`` is the high latency percentile that is shown, such as 99.
    """
    seeds = combined["seeds"]
    yield from (*wrap(repeats_verdict(combined), MAX_WIDTH), "")
    yield f"{basis(combined)}, {cluster_name(combined)}, scheduler {scheduler_name(combined)}"
    yield f"workload {combined['workload']}, scenario {combined['scenario']}, " + (
        f"{len(seeds)} runs, seeds {seeds[0]} to {seeds[-1]}: {METHOD}"
    )
    if not combined["complete"]:
        yield "INCOMPLETE: some runs ended early, so their values are not of the whole run"
    results = list(results_of_repeats(combined, tail))
    clients, which = client_table.shown_clients(combined)
    rates = [
        (
            f"{one['client']}, {'heavy' if one['misbehaving'] else 'well-behaved'}, tok/s",
            show(one["service_rate_tok_s"], 0),
        )
        for one in clients
    ]
    width = min(MAX_LABEL, max(len(label) for label, _ in results + rates))
    lines = [f"  {label:{width}.{width}}  {text}" for label, text in results + rates]
    yield from lines[: len(results)]
    if which:
        yield f"  clients: {which}"
    yield from lines[len(results) :]


def results_of_repeats(combined: Summary, tail: int = P99) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each metric over all clients of several runs."""
    for column in columns_with_values(
        columns_of(Display.REPEATS, tail, chosen_percentiles(combined)), combined
    ):
        interval = combined[column.key]
        some = interval is not None and interval["runs"] < combined["num_runs"]
        of_runs = f" ({interval['runs']} of {combined['num_runs']} runs)" if some else ""
        share = column.form.is_share
        shown = show(interval, SHARE_DIGITS if share else column.digits, share=share)
        yield column.heading, f"{shown}{of_runs}"


def show(interval: Summary | None, digits: int, *, share: bool = False) -> str:
    """Return ``mean [low, high]``, with > or < for bounds, or - if no run has a value.

    The mean of a single run has no interval.
    """
    if interval is None:
        return "-"
    factor, unit = (100, "%") if share else (1, "")
    bound = {">": more_than, "<": less_than}.get(bound_of(interval))
    value = factor * interval["mean"]
    mean = bound(value, digits) if bound else f"{value:,.{digits}f}"
    if interval["low"] is None:
        return f"{mean}{unit}"
    low, high = (f"{factor * interval[end]:,.{digits}f}{unit}" for end in ("low", "high"))
    return f"{mean}{unit} [{low}, {high}]"
