"""The report page of one stored run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.files.reader import decoded, read_whole
from fairbench.metrics.catalogue import columns_of, columns_with_values, metric_of
from fairbench.metrics.censored_latency import Sample, pooled, samples
from fairbench.metrics.fairness import fair_shares
from fairbench.metrics.metric import Display, Form
from fairbench.metrics.records import Facts, Floats, Window
from fairbench.metrics.service import View, cumulative
from fairbench.metrics.shown_percentiles import is_few, shown_tail
from fairbench.metrics.tables import Tables
from fairbench.metrics.traffic import Traffic, traffic_of
from fairbench.report.client_table import (
    FEW,
    Lorenz,
    client_columns,
    client_text,
    counts_by_ratio,
    crowd_lines,
    is_crowd,
    lorenz,
    lorenz_of_service,
    share_ratios,
    worst_clients,
)
from fairbench.report.limit_lines import has_limit, limit_line
from fairbench.report.numbers import UNDEFINED, latency, number, percent, whole, with_unit, written
from fairbench.report.pages import page
from fairbench.report.pages.chart import (
    LEFT,
    RIGHT,
    WIDTH,
    Bar,
    Scale,
    Series,
    bar_chart,
    drawing,
    line,
    line_chart,
    rect,
    text,
)
from fairbench.report.pages.traffic_figures import (
    client_series,
    flood_headlines,
    traffic_figures,
    visible_clients,
)
from fairbench.report.pages.warnings import run_warnings
from fairbench.report.palette import SERIES
from fairbench.report.result_lines import latency_kind, notes_of, results_of, shortfall_of
from fairbench.report.traffic_lines import JudgedTraffic, judged, traffic_lines
from fairbench.report.verdict import verdict
from fairbench.results.references import reference_for
from fairbench.results.run_facts import read_tables, stored_facts
from fairbench.results.store import EXPERIMENT, SUMMARY, StoredRun, Summary
from fairbench.results.summary import (
    basis,
    check_whole,
    cluster_name,
    details_line,
    is_nobody_named,
    scheduler_name,
)


def crowd_figures(summary: Summary, tables: Tables, facts: Facts) -> Iterator[page.Figure]:
    """Yield figures on the distribution of service over clients, if service rates are known."""
    if curve := lorenz_of_service(summary):
        got = fair_shares(tables.requests, tables.programs, tables.service, facts, facts.window)
        fair = lorenz(got.entitlement.tolist(), facts.client_weights.tolist())
        yield _lorenz(curve, fair)
    if ratios := share_ratios(summary):
        yield _ratios(ratios)


def _lorenz(curve: Lorenz, fair: Lorenz | None) -> page.Figure:
    series = [Series(f"service ({curve.gini:.2f})", *_thinned(curve))]
    if fair:
        series.append(Series(f"fair share ({fair.gini:.2f})", *_thinned(fair)))
    series.append(Series("equal service (0)", [0.0, 100.0], [0.0, 1.0]))
    return page.Figure(
        line_chart(
            "Lorenz curve of service",
            series,
            x_label="clients, smallest first, %",
            y_label="fraction of the service",
            percent=True,
        ),
        "Total service of the smallest clients, with the Gini index in brackets. Clients "
        "ask for different amounts, so a fair allocation is not equal. The further the "
        "service lies below the line of fair shares, the more the small clients were "
        "short of service.",
    )


def _thinned(curve: Lorenz) -> tuple[list[float], list[float]]:
    last = len(curve.clients) - 1
    picked = np.unique(np.linspace(0, last, min(POINTS, last + 1)).astype(np.int64)).tolist()
    return [100 * curve.clients[n] for n in picked], [curve.service[n] for n in picked]


def _ratios(ratios: Sequence[float]) -> page.Figure:
    return page.Figure(
        bar_chart(
            "Clients by fraction of their fair share",
            [Bar(label, 0, count, f"{count:,}") for label, count in counts_by_ratio(ratios)],
        ),
        f"Number of the {len(ratios):,} clients by the fraction of their max-min fair "
        "share that they received.",
    )


BINS = 60
POINTS = 150  # The curve of a distribution has about this number of points.
BAR_PX = 22
# Lines for heavy and well-behaved clients have fixed colours. The numbers are indices of
# ``palette.SERIES``.
OF_GROUPS = {"misbehaving": 0, "well-behaved": 1}


def run_figures(
    summary: Summary, tables: Tables, facts: Facts, found: JudgedTraffic
) -> Iterator[page.Figure]:
    """Yield the figures for which the run has numbers; a client's colour is always the same."""
    shown, rest = _shown(summary, facts, found)
    names = [facts.clients[n].name for n in shown]
    swatches = client_series(names, found.heavy)
    yield from traffic_figures(found, shown=names)
    if is_crowd(summary):
        yield from crowd_figures(summary, tables, facts)
    if facts.horizon_s > 0:
        seen = names if rest else visible_clients(found.traffic, names, found.heavy)
        yield _service_over_time(tables, facts, seen, rest, swatches)
    each = samples(tables.requests, tables.programs, facts)
    if is_crowd(summary):
        lines, rest = _by_behaviour(each, facts), " All clients together."
    else:
        lines = {facts.clients[n].name: each[n] for n in shown}
    if any(len(sample.known_s) for sample in lines.values()):
        yield _latencies(lines, facts, rest, swatches)
    if summary["max_service_gap"] is not None and summary["service_gap_bound"]:
        yield _gap_and_bound(summary)
    if has_limit(summary):
        yield time_spent_figure(summary)


PURPOSES = {
    "prefill": "prompts, at the least",
    "decode": "answers, at the least",
    "recomputed": "prefixes computed again",
    "small_prefill": "prefill passes not full",
    "small_decode": "decode batches not full",
    "retracted": "retractions",
    "unfinished": "unfinished requests",
    "idle_waiting": "idle, a request waited",
    "idle": "idle, nothing waited",
}
PURPOSES_PX = 200


def time_spent_figure(summary: Summary) -> page.Figure:
    """Return a chart of GPU time by purpose: necessary prefill and decoding, then lost time."""
    bars, low = [], 0.0
    for key, label in PURPOSES.items():
        part = summary[f"time_{key}_ratio"]
        if part or key in ("prefill", "decode"):
            series = 1 if key in ("prefill", "decode") else 0
            bars.append(Bar(label, low, low + part, percent(part), series))
            low += part
    return page.Figure(
        bar_chart("GPU time by purpose", bars, PURPOSES_PX),
        f"GPU time of all replicas by purpose: {limit_line(summary)}. No scheduler needs less than "
        "the first two bars for these requests; the other bars are losses.",
    )


def _shown(summary: Summary, facts: Facts, found: JudgedTraffic) -> tuple[list[int], str]:
    """Return the clients with their own line in figures, and a sentence on how they were chosen."""
    most, total = len(SERIES), len(facts.clients)
    if total <= most:
        return list(range(total)), ""
    numbers = {client.name: number for number, client in enumerate(facts.clients)}
    heavy = [numbers[name] for name in found.heavy]
    if is_crowd(summary):
        others = [numbers[row["client"]] for row in worst_clients(summary, most)]
    else:
        others = list(range(total))
    shown = [*heavy, *(number for number in others if number not in heavy)][:most]
    which = "came off worst" if is_crowd(summary) else "come first"
    also = f"{', '.join(found.heavy)} and the {most - len(heavy)}" if heavy else f"the {most}"
    return shown, f" Shown: {also} of {total} clients that {which}."


def _by_behaviour(each: Sequence[Sample], facts: Facts) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    for name, wrong in (("well-behaved", False), ("misbehaving", True)):
        own = [
            sample
            for client, sample in zip(facts.clients, each, strict=True)
            if client.misbehaving is wrong
        ]
        if own:
            found[name] = pooled(own)
    return found


def _service_over_time(
    tables: Tables, facts: Facts, shown: Sequence[str], rest: str, swatches: Mapping[str, int]
) -> page.Figure:
    width_s = facts.horizon_s / BINS
    edges = np.linspace(0.0, facts.horizon_s, BINS + 1)
    total = cumulative(tables.service, View.CLIENT, edges, len(facts.clients), facts.weights)
    rates = np.diff(total, axis=1) / width_s
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    numbers = {client.name: number for number, client in enumerate(facts.clients)}
    lines = [Series(name, middles, rates[numbers[name]].tolist(), swatches[name]) for name in shown]
    others = sorted(set(numbers.values()) - {numbers[name] for name in shown})
    if others and not rest:
        called = f"{len(others)} others"
        lines.append(Series(called, middles, rates[others].sum(axis=0).tolist(), len(lines)))
    chart = line_chart(
        "Service over time",
        lines,
        x_label="time, s",
        y_label="service, tok/s",
        shaded=(facts.window.start_s, facts.window.end_s),
    )
    return page.Figure(
        chart,
        f"Service (input + 2 x output tokens) of each client, means over {width_s:,.3g} s. "
        f"Shaded: the window in which rates are measured.{rest}",
    )


def _latencies(
    samples: Mapping[str, Sample], facts: Facts, rest: str, swatches: Mapping[str, int]
) -> page.Figure:
    chart = line_chart(
        "Distribution of latency",
        [
            Series(name, *_distribution(sample), swatches.get(name, OF_GROUPS.get(name)))
            for name, sample in samples.items()
            if len(sample.known_s)
        ],
        x_label="time to first token, s" if facts.latency == "ttft" else "latency of a program, s",
        y_label="fraction of all that arrived in the window",
        log_x=True,
        percent=True,
    )
    return page.Figure(
        chart,
        "Fraction that was finished within a time. A line that ends below 100% means "
        f"that the rest were unfinished or refused.{rest}",
    )


def _distribution(sample: Sample) -> tuple[list[float], list[float]]:
    known: Floats = np.sort(sample.known_s)
    picked = np.unique(np.linspace(0, len(known) - 1, min(POINTS, len(known))).astype(np.int64))
    return np.maximum(known[picked], 1e-6).tolist(), ((picked + 1) / sample.n).tolist()


def _gap_and_bound(summary: Summary) -> page.Figure:
    gap, bound = summary["max_service_gap"], summary["service_gap_bound"]
    scale = Scale(0.0, max(gap, bound), LEFT, WIDTH - RIGHT)
    end, limit = scale.pixel_of(gap), scale.pixel_of(bound)
    parts = [
        rect(LEFT, 24, limit - LEFT, BAR_PX, 'class="shade"'),
        rect(LEFT, 24, max(1.0, end - LEFT), BAR_PX, 'style="fill:var(--c1)"'),
        line(limit, 18, limit, 30 + BAR_PX, "axis"),
        text(LEFT, 14, f"largest gap {with_unit(gap, 'tokens')}"),
        text(limit, 48 + BAR_PX, f"bound {with_unit(bound, 'tokens')}", "end"),
    ]
    return page.Figure(
        drawing(80, "Largest service gap and its bound", parts),
        "Largest difference in service between two clients while both wait at every "
        f"worker, and the bound of {summary['bound_source']}.",
    )


def run_page(run: StoredRun) -> page.Page:
    """Build the report page of a run; raise DataError if its files are damaged."""
    summary = run.summary
    check_whole(summary, run.path / SUMMARY)
    headlines = list(_run_cards(summary))
    sections = [page.Section("Results", [page.Definitions(list(results_of(summary)))])]
    if summary["num_programs"]:
        window = Window(summary["window_start_s"], summary["window_end_s"])
        facts, tables = stored_facts(run, window), read_tables(run)
        traffic = traffic_of(tables.clients, tables.requests, facts.horizon_s)
        found = judged_traffic(summary, traffic)
        figures = list(run_figures(summary, tables, facts, found))
        said = list(traffic_lines(found, "in this run"))
        causes = page.filled(
            "Waits of clients over time, and their cause", [page.Bullets(said)] if said else []
        )
        sections = [*causes, _client_sections(summary), *sections, page.Section("Figures", figures)]
        headlines = [*flood_headlines(found), *headlines]
    return page.Page(
        title=title(summary),
        provenance=f"{basis(summary)}, seed {summary['seed']}. {details_line(summary)}.",
        headlines=headlines,
        warnings=list(run_warnings(summary)),
        sections=[
            *sections,
            page.Section("Bound", [page.Definitions(list(_bound_warning(summary)))]),
            *session_section(summary),
            *stall_section(summary),
            *page.filled(
                "Metrics without a value, and the reason",
                [page.Paragraph(text) for _, text in notes_of(summary)],
            ),
            *run_origin(run, before=own_files(run)),
        ],
        answer=verdict(summary, reference_for(run)),
    )


def judged_traffic(summary: Summary, traffic: Traffic) -> JudgedTraffic:
    """Find all floods in a run's traffic; floods of well-behaved clients are called bursts."""
    clients = [] if is_nobody_named(summary) else summary["clients"]
    good = {row["client"] for row in clients if not row["misbehaving"]}
    return judged(traffic, good, shortfall_of(summary))


def title(summary: Summary) -> str:
    """Return a title that describes the experiment in a few words."""
    return (
        f"{scheduler_name(summary)} on {summary['workload']}, scenario {summary['scenario']}, "
        f"{cluster_name(summary)}"
    )


def _run_cards(summary: Summary) -> Iterator[page.Headline]:
    kind = latency_kind(summary).strip()
    columns = columns_of(Display.HEADLINES, shown_tail([summary]))
    for column in columns_with_values(columns, summary):
        text = written(summary, column.key, column.form)
        if column.form is Form.SECONDS:
            text = latency(summary, column.key, set(summary["censored"]))
            entry, count = metric_of(column.key), summary["victim_n"]
            few = entry and entry.tail and count is not None and is_few(count, entry.tail)
            text = text if text == UNDEFINED else f"{text} s{FEW if few else ''}"
        yield page.Headline(column.title, text, column.note.format(latency=kind))


def _client_sections(summary: Summary) -> page.Section:
    if not is_crowd(summary):
        return page.Section("Clients", [client_grid(summary)])
    worst = worst_clients(summary)
    told_first = f"The {len(worst)} well-behaved clients that are worst off:"
    lines = page.Definitions(list(crowd_lines(summary)))
    return page.Section("Clients", [lines, page.Paragraph(told_first), client_grid(summary, worst)])


def client_grid(summary: Summary, clients: Sequence[Mapping[str, Any]] | None = None) -> page.Grid:
    """Return a table with a row per client: all clients, or only ``clients``."""
    censored, columns = set(summary["censored"]), client_columns(summary)
    rows = [
        [
            page.Cell(f"{row['client']}{' (heavy)' if row['misbehaving'] else ''}"),
            *(page.Cell(client_text(row, column, censored)) for column in columns),
        ]
        for row in (summary["clients"] if clients is None else clients)
    ]
    return page.Grid(["client", *(column.title for column in columns)], rows)


def session_section(summary: Summary) -> list[page.Section]:
    """Return a section on the sessions that waited longest, or [] if the run has no sessions."""
    rows = summary.get("worst_sessions", ())
    headings = [
        *("session", "client", "longest wait of a call, s", "all waits, s"),
        *("times its calls alone", "calls per minute", "share in the worst 60 s"),
    ]
    cells = [
        [
            *(row["session"], row["client"], number(row["longest_wait_s"])),
            *(number(row[key]) for key in ("wait_s", "slowdown", "turns_per_min")),
            percent(row["share_60s"]),
        ]
        for row in rows
    ]
    grid = page.Grid(headings, [[page.Cell(text) for text in row] for row in cells])
    return page.filled("Who pays: the sessions with the longest waits", [grid] if rows else [])


def stall_section(summary: Summary) -> list[page.Section]:
    """Return a section on answers that other clients' prompts stalled; [] if none was stalled."""
    shown = summary.get("stalled") and not is_crowd(summary)
    title = "Who stalls whom: time for which prompts held up answers"
    return page.filled(title, [stall_grid(summary)] if shown else [])


def stall_grid(summary: Summary) -> page.Grid:
    """Return a table of the seconds for which prompts (columns) stalled answers (rows)."""
    seconds = {(row["client"], row["by"]): row["s"] for row in summary.get("stalled", ())}
    names = [row["client"] for row in summary["clients"]]
    rows = [[page.Cell(own), *(page.Cell(number(seconds.get((own, by), 0.0))) for by in names)]
            for own in names]  # fmt: skip
    return page.Grid(["seconds of answers of", *(f"prompts of {name}" for name in names)], rows)


def _bound_warning(summary: Summary) -> Iterator[tuple[str, str]]:
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
    """Return ``FAIRBENCH_SCHEDULERS=...`` if a rerun's command must begin with it, or else ""."""
    names = [Path(path).name for path in run.manifest.get("scheduler_files", {})]
    return f"FAIRBENCH_SCHEDULERS={':'.join(names)} " if names else ""


def run_origin(
    run: StoredRun, options: str = "", of: str = "", before: str = ""
) -> Iterator[page.Section]:
    """Yield sections on the command that repeats a run, the versions, and the experiment file.

    Raises DataError if the experiment file cannot be read.
    """
    path = run.path / EXPERIMENT
    text = decoded(read_whole(path, f"{path}"), f"{path}")
    yield from origin(run, "run", EXPERIMENT, text, of, before, options)


def origin(
    run: StoredRun, command: str, file: str, text: str, of: str, before: str = "", options: str = ""
) -> Iterator[page.Section]:
    """Yield sections with versions, experiment file, and the command that repeats the run."""
    again = (
        f"Save {file}, shown below, under this name. With the same version of "
        "fairbench, a simulated run then gives the same records."
    )
    command = f"{before}fairbench {command} {file}{options}"
    yield page.Section("Run it again", [page.Paragraph(again), page.Code(command)])
    yield page.Section(f"Versions{of}", [page.Definitions(list(versions(run)))])
    yield page.Section(file, [page.Code(text)], folded=True)


def versions(run: StoredRun) -> Iterator[tuple[str, str]]:
    """Yield the software versions, the machine and the start time of a run."""
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
