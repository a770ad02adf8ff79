"""The report of one experiment over several seeds, with intervals and floods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fairbench.errors import DataError, printable
from fairbench.metrics.catalogue import columns_of
from fairbench.metrics.floods import Flood, Harm
from fairbench.metrics.metric import Column, Display
from fairbench.metrics.records import Window
from fairbench.metrics.shown_percentiles import chosen_percentiles, shown_client_tail, shown_tail
from fairbench.metrics.traffic import traffic_of
from fairbench.report.client_table import described, shown_clients
from fairbench.report.comparison_table import QUEUES_EMPTY, shown
from fairbench.report.numbers import number, whole_percent
from fairbench.report.pages.page import Bullets, Definitions, Grid, Headline, Page, Section
from fairbench.report.pages.run_page import judged_traffic, own_files, run_origin, title
from fairbench.report.pages.sweep_page import plain_row
from fairbench.report.pages.warnings import counted_warnings
from fairbench.report.run_table import results_of_repeats
from fairbench.report.traffic_lines import TTFT, JudgedTraffic
from fairbench.report.verdict import repeats_verdict
from fairbench.results.run_facts import read_tables, stored_facts
from fairbench.results.significance import METHOD, combine_summaries
from fairbench.results.store import SUMMARY, StoredRun, Summary, runs_in
from fairbench.results.summary import basis, check_whole, details_line


def repeat_page(path: Path) -> Page:
    """Build the report page of a ``run --num-runs`` directory.

    Raises DataError if a file is unreadable.
    """
    runs = runs_in(path)
    if not runs:
        raise DataError(f"{path}: contains no run")
    for run in runs:
        check_whole(run.summary, run.path / SUMMARY)
    runs.sort(key=lambda run: int(run.summary["seed"]))
    summaries = [run.summary for run in runs]
    combined, seeds = combine_summaries(summaries), [summary["seed"] for summary in summaries]
    tail = shown_tail(summaries)
    of_clients = columns_of(
        Display.REPEATED_CLIENTS, shown_client_tail(summaries), chosen_percentiles(combined)
    )
    of_runs = columns_of(Display.SEEDS, tail)
    found = [judged_run(run) for run in runs if run.summary["num_programs"]]
    said = list(repeat_lines(found))
    clients, which = shown_clients(combined)
    of_each = ((described(one["client"], one), one) for one in clients)
    of_seeds = ((f"seed {one['seed']}", combine_summaries([one])) for one in summaries)
    return Page(
        title=f"{title(combined)}, {len(runs)} seeds",
        provenance=f"{basis(combined)}, seeds {seeds[0]} to {seeds[-1]}: {METHOD}. "
        f"{details_line(combined)}.",
        headlines=[*repeat_headlines(found), *_repeat_cards(combined, of_runs)],
        warnings=list(_warnings(summaries)),
        sections=[
            *([Section("Who waited and because of whom", [Bullets(said)])] if said else []),
            Section(
                f"Clients: {which}" if which else "Clients",
                [_grid("client", of_each, of_clients, len(runs))],
            ),
            Section("Results", [Definitions(list(results_of_repeats(combined, tail)))]),
            Section("Seed by seed", [_grid("", of_seeds, of_runs, 1)]),
            *run_origin(
                *(runs[0], f" --num-runs {len(runs)}", ", of the first run", own_files(runs[0]))
            ),
        ],
        answer=repeats_verdict(combined),
    )


def _warnings(summaries: Sequence[Summary]) -> Iterator[str]:
    yield from counted_warnings(summaries)
    if limited := sum(bool(summary["demand_limited"]) for summary in summaries):
        yield (
            f"{QUEUES_EMPTY} in {limited} of {len(summaries)} runs, so rates partly reflect the "
            "load."
        )


def _repeat_cards(combined: Summary, columns: Sequence[Column]) -> Iterator[Headline]:
    for column in columns:
        value = shown(combined[column.key], column, combined["num_runs"])
        yield Headline(column.title, value.text, value.ends)


def _grid(
    first: str, rows: Iterator[tuple[str, Summary]], columns: Sequence[Column], runs: int
) -> Grid:
    headings = [first, *(column.title for column in columns)]
    return Grid(headings, [plain_row(name, values, columns, runs) for name, values in rows])


def judged_run(run: StoredRun) -> JudgedTraffic:
    """Return a stored run's traffic, its floods, and the delays that the floods cause."""
    summary = run.summary
    facts = stored_facts(run, Window(summary["window_start_s"], summary["window_end_s"]))
    tables = read_tables(run)
    traffic = traffic_of(tables.clients, tables.requests, facts.horizon_s)
    return judged_traffic(summary, traffic)


def repeat_headlines(seeds: Sequence[JudgedTraffic]) -> Iterator[Headline]:
    """Yield headlines about the client that floods in the most seeds, and about delayed clients."""
    floods = _floods(seeds)
    if not floods:
        return
    name, found = max(floods.items(), key=lambda one: len(one[1]))
    load = _value_range([one.share for one in found], whole_percent)
    yield Headline("who floods", name, f"{_in_seeds(found, seeds)}, {load} of the load then")
    harms = _harms(seeds)
    if harms:
        wait = _value_range([one.median_s for one in harms], number)
        note = f"{_in_seeds(harms, seeds)}, median wait {wait} s"
        yield Headline("who waits", _counted_clients(harms), note)
    elif all(one.traffic.knows_waits and one.shortfall is None for one in seeds):
        yield Headline("who waits", "nobody", "no wait is noticeably longer than usual")


def repeat_lines(seeds: Sequence[JudgedTraffic]) -> Iterator[str]:
    """Yield a sentence for each client that floods in any seed, and sentences on the delays."""
    floods = _floods(seeds)
    for name, found in sorted(floods.items(), key=lambda one: -len(one[1])):
        load = _value_range([one.share for one in found], whole_percent)
        yield f"{name} floods {_in_seeds(found, seeds)}: {load} of the load in that time."
    if harms := _harms(seeds):
        wait = _value_range([one.median_s for one in harms], number)
        usual = _value_range([one.usual_s for one in harms], number)
        yield (
            f"Other clients wait {_in_seeds(harms, seeds)}: {_counted_clients(harms)}, "
            f"median {TTFT} {wait} s, usually {usual} s."
        )


def _floods(seeds: Sequence[JudgedTraffic]) -> dict[str, list[Flood]]:
    """Return, for each client, its largest flood in each seed in which the client floods."""
    found: dict[str, list[Flood]] = {}
    for one in seeds:
        largest: dict[int, Flood] = {}
        for flood in one.floods:
            largest.setdefault(flood.client, flood)
        for client, flood in largest.items():
            found.setdefault(printable(one.traffic.clients[client]), []).append(flood)
    return found


def _harms(seeds: Sequence[JudgedTraffic]) -> list[Harm]:
    return [one.harm for one in seeds if one.harm is not None]


def _counted_clients(harms: Sequence[Harm]) -> str:
    counts = [len(one.victims) for one in harms]
    return f"{_value_range(counts, '{:,}'.format)} client{'s' if max(counts) > 1 else ''}"


def _in_seeds(found: Sequence[object], seeds: Sequence[JudgedTraffic]) -> str:
    return f"in {len(found)} of {len(seeds)} seeds"


def _value_range(values: Sequence[float], shown: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys([shown(min(values)), shown(max(values))]))
