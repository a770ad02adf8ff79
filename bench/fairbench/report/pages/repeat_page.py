"""The report of one experiment over several seeds: every number with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fairbench.errors import DataError
from fairbench.metrics.catalogue import columns_of
from fairbench.metrics.chosen_percentiles import chosen_percentiles
from fairbench.metrics.metric import Column, Display
from fairbench.metrics.tail import shown_client_tail, shown_tail
from fairbench.report.client_table import described
from fairbench.report.comparison_table import bounded, ends_of
from fairbench.report.crowd import shown_clients
from fairbench.report.heading import basis, details_line
from fairbench.report.interval_lines import results_of
from fairbench.report.numbers import UNDEFINED
from fairbench.report.pages.page import (
    Bullets,
    Code,
    Definitions,
    Grid,
    Headline,
    Page,
    Section,
)
from fairbench.report.pages.repeat_traffic import judged_run, repeat_headlines, repeat_lines
from fairbench.report.pages.run_page import experiment_text, rerun, title, versions
from fairbench.report.pages.sweep_grids import plain_row
from fairbench.report.pages.sweep_warnings import counted_warnings
from fairbench.report.traffic_lines import Judged
from fairbench.results.intervals import METHOD, combine
from fairbench.results.store import EXPERIMENT, SUMMARY, Summary, runs_in
from fairbench.results.summary_schema import check_whole


def repeat_page(path: Path) -> Page:
    """Build the report of a ``run --num-runs`` directory. Raises DataError if it is unreadable."""
    runs = runs_in(path)
    if not runs:
        raise DataError(f"{path}: holds no run")
    for run in runs:
        check_whole(run.summary, run.path / SUMMARY)
    runs.sort(key=lambda run: int(run.summary["seed"]))
    summaries = [run.summary for run in runs]
    combined, seeds = combine(summaries), [summary["seed"] for summary in summaries]
    tail = shown_tail(summaries)
    of_clients = columns_of(
        Display.REPEATED_CLIENTS, shown_client_tail(summaries), chosen_percentiles(combined)
    )
    of_runs = columns_of(Display.SEEDS, tail)
    found = [judged_run(run) for run in runs if run.summary["num_programs"]]
    of_seeds = ((f"seed {one['seed']}", combine([one])) for one in summaries)
    return Page(
        title=f"{title(combined)}, {len(runs)} seeds",
        provenance=f"{basis(combined)}, seeds {seeds[0]} to {seeds[-1]}: {METHOD}. "
        f"{details_line(combined)}.",
        headlines=[*repeat_headlines(found), *_headlines(combined, of_runs)],
        warnings=list(_warnings(summaries)),
        sections=[
            *_causes(found),
            Section(
                ": ".join(filter(None, ("Clients", shown_clients(combined)[1]))),
                [_grid("client", _clients(combined), of_clients, len(runs))],
            ),
            Section("Results", [Definitions(list(results_of(combined, tail)))]),
            Section("Seed by seed", [_grid("", of_seeds, of_runs, 1)]),
            Section(
                "Run it again",
                rerun(f"fairbench run {EXPERIMENT} --num-runs {len(runs)}", EXPERIMENT),
            ),
            Section("Versions, of the first run", [Definitions(list(versions(runs[0])))]),
            Section(EXPERIMENT, [Code(experiment_text(runs[0]))], folded=True),
        ],
    )


def _causes(found: Sequence[Judged]) -> Iterator[Section]:
    if said := list(repeat_lines(found)):
        yield Section("Who waited and because of whom", [Bullets(said)])


def _warnings(summaries: Sequence[Summary]) -> Iterator[str]:
    yield from counted_warnings(summaries)
    if limited := sum(bool(summary["demand_limited"]) for summary in summaries):
        yield (f"{limited} of {len(summaries)} runs are limited by demand, so rates show the load.")


def _headlines(combined: Summary, columns: Sequence[Column]) -> Iterator[Headline]:
    for column in columns:
        interval = combined[column.key]
        if interval is None:
            yield Headline(column.title, UNDEFINED)
        else:
            ends = ends_of(interval, column, combined["num_runs"])
            yield Headline(column.title, bounded(interval, column), ends)


def _clients(combined: Summary) -> Iterator[tuple[str, Summary]]:
    for client in shown_clients(combined)[0]:
        yield described(client["client"], client), client


def _grid(
    first: str, rows: Iterator[tuple[str, Summary]], columns: Sequence[Column], runs: int
) -> Grid:
    headings = [first, *(column.title for column in columns)]
    return Grid(headings, [plain_row(name, values, columns, runs) for name, values in rows])
