"""The report of one stored run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbench.files.reader import decoded, read_whole
from fairbench.metrics.catalogue import columns_of, told
from fairbench.metrics.metric import Column, Display, Form
from fairbench.metrics.records import Window
from fairbench.metrics.shown_percentiles import shown_tail
from fairbench.metrics.traffic import Traffic, traffic_of
from fairbench.report.client_table import client_columns, client_text, is_crowd
from fairbench.report.crowd import crowd_lines, worst_clients
from fairbench.report.numbers import UNDEFINED, latency, number, percent, whole, written
from fairbench.report.optional_lines import shortfall_of
from fairbench.report.pages.page import (
    Bullets,
    Cell,
    Code,
    Definitions,
    Grid,
    Headline,
    Page,
    Paragraph,
    Section,
    filled,
)
from fairbench.report.pages.run_figures import run_figures
from fairbench.report.pages.traffic_figures import flood_headlines
from fairbench.report.pages.warnings import run_warnings
from fairbench.report.result_lines import latency_kind, notes_of, results_of
from fairbench.report.traffic_lines import Judged, judged, traffic_lines
from fairbench.results.header import (
    basis,
    cluster_name,
    details_line,
    is_nobody_named,
    scheduler_name,
)
from fairbench.results.run_facts import stored_facts
from fairbench.results.run_tables import read_tables
from fairbench.results.store import EXPERIMENT, SUMMARY, StoredRun, Summary
from fairbench.results.summary_schema import check_whole


def run_page(run: StoredRun) -> Page:
    """Build the report of a run. Raises DataError if its files are damaged."""
    summary = run.summary
    check_whole(summary, run.path / SUMMARY)
    headlines = list(_headlines(summary))
    sections = [Section("Results", [Definitions(list(results_of(summary)))])]
    if summary["num_programs"]:
        window = Window(summary["window_start_s"], summary["window_end_s"])
        facts, tables = stored_facts(run, window), read_tables(run)
        traffic = traffic_of(tables.clients, tables.requests, facts.horizon_s)
        found = judged_traffic(summary, traffic)
        figures = list(run_figures(summary, tables, facts, found))
        said = list(traffic_lines(found, "in this run"))
        causes = filled(
            "Waits of clients over time, and their cause", [Bullets(said)] if said else []
        )
        sections = [*causes, _clients(summary), *sections, Section("Figures", figures)]
        headlines = [*flood_headlines(found), *headlines]
    return Page(
        title=title(summary),
        provenance=f"{basis(summary)}, seed {summary['seed']}. {details_line(summary)}.",
        headlines=headlines,
        warnings=list(run_warnings(summary)),
        sections=[
            *sections,
            Section("Bound", [Definitions(list(_bound(summary)))]),
            *filled(
                "Metrics without a value, and the reason",
                [Paragraph(text) for _, text in notes_of(summary)],
            ),
            *run_origin(run, before=own_files(run)),
        ],
    )


def judged_traffic(summary: Summary, traffic: Traffic) -> Judged:
    """Return the traffic of a run, judged by what its workload says of clients."""
    clients = [] if is_nobody_named(summary) else summary["clients"]
    good = {row["client"] for row in clients if not row["misbehaving"]}
    return judged(traffic, good, shortfall_of(summary))


def title(summary: Summary) -> str:
    """Return the experiment in a few words."""
    return (
        f"{scheduler_name(summary)} on {summary['workload']}, scenario {summary['scenario']}, "
        f"{cluster_name(summary)}"
    )


def _headlines(summary: Summary) -> Iterator[Headline]:
    kind = latency_kind(summary).strip()
    for column in told(columns_of(Display.HEADLINES, shown_tail([summary])), summary):
        yield Headline(column.title, _headline(summary, column), column.note.format(latency=kind))


def _headline(summary: Summary, column: Column) -> str:
    if column.form is not Form.SECONDS:
        return written(summary, column.key, column.form)
    text = latency(summary, column.key, set(summary["censored"]))
    return text if text == UNDEFINED else f"{text} s"


def _clients(summary: Summary) -> Section:
    if not is_crowd(summary):
        return Section("Clients", [client_grid(summary)])
    worst = worst_clients(summary)
    told_first = f"The {len(worst)} well-behaved clients that are worst off:"
    lines = Definitions(list(crowd_lines(summary)))
    return Section("Clients", [lines, Paragraph(told_first), client_grid(summary, worst)])


def client_grid(summary: Summary, clients: Sequence[Mapping[str, Any]] | None = None) -> Grid:
    """Return one row per client, as in the printed table, optionally for these ``clients`` only."""
    censored, columns = set(summary["censored"]), client_columns(summary)
    rows = [
        [
            Cell(f"{row['client']}{' (heavy)' if row['misbehaving'] else ''}"),
            *(Cell(client_text(row, column, censored)) for column in columns),
        ]
        for row in (summary["clients"] if clients is None else clients)
    ]
    return Grid(["client", *(column.title for column in columns)], rows)


def _bound(summary: Summary) -> Iterator[tuple[str, str]]:
    gap, bound = summary["max_service_gap"], summary["service_gap_bound"]
    notes = summary["notes"]
    gap_reason = notes.get("max_service_gap", "")
    yield "largest gap", f"{whole(gap)} tokens" if gap is not None else f"none: {gap_reason}"
    if bound is None:
        yield "bound", f"none: {notes.get('service_gap_bound') or notes.get('bound_source', '')}"
        return
    time = f" = {number(summary['service_gap_bound_s'])} s of the cluster's service"
    yield "bound", f"{whole(bound)} tokens{time} ({summary['bound_source']})"
    if gap is not None:
        left = f", {number(bound / gap)} times below" if 0 < gap <= bound else ""
        yield "margin", f"the gap is {percent(gap / bound)} of the bound{left}"


def own_files(run: StoredRun) -> str:
    """Return the setting of the environment that a rerun needs; "" without files of the user."""
    names = [Path(path).name for path in run.manifest.get("scheduler_files", {})]
    return f"FAIRBENCH_SCHEDULERS={':'.join(names)} " if names else ""


def run_origin(
    run: StoredRun, options: str = "", of: str = "", before: str = ""
) -> Iterator[Section]:
    """Yield ``origin`` of a run. Raises DataError if its experiment file cannot be read."""
    path = run.path / EXPERIMENT
    text = decoded(read_whole(path, f"{path}"), f"{path}")
    yield from origin(run, "run", EXPERIMENT, text, of, before, options)


def origin(
    run: StoredRun, command: str, file: str, text: str, of: str, before: str = "", options: str = ""
) -> Iterator[Section]:
    """Yield how to reproduce the records from a file, the versions of a run, and the file."""
    again = (
        f"Save {file}, shown below, under this name. With the same version of "
        "fairbench, a simulated run then gives the same records."
    )
    command = f"{before}fairbench {command} {file}{options}"
    yield Section("Run it again", [Paragraph(again), Code(command)])
    yield Section(f"Versions{of}", [Definitions(list(versions(run)))])
    yield Section(file, [Code(text)], folded=True)


def versions(run: StoredRun) -> Iterator[tuple[str, str]]:
    """Yield the software versions of the run, its machine and its time."""
    manifest, summary = run.manifest, run.summary
    git = manifest.get("git")
    commit = ""
    if git:
        commit = f", commit {git['commit']}" + (" with changes" if git["dirty"] else "")
    yield "fairbench", f"{manifest.get('fairbench_version', '?')}{commit}"
    for path, digest in manifest.get("scheduler_files", {}).items():
        yield "FAIRBENCH_SCHEDULERS", f"{Path(path).name}, SHA-256 {digest}"
    libraries = manifest.get("libraries", {})
    used = ", ".join(f"{name} {version}" for name, version in libraries.items() if version)
    yield "Python", f"{manifest.get('python', '?')}; {used}"
    host = manifest.get("host", {})
    yield "machine", f"{host.get('system', '?')} {host.get('machine', '')}"
    if summary["timing_profile"]:
        yield "timing profile", f"{summary['timing_profile']} ({summary.get('timing_grade')})"
    yield "started", f"{manifest.get('started', '?')}, took {number(manifest.get('wall_s'))} s"
    yield "identity of the spec", str(manifest.get("spec_identity", "?"))
