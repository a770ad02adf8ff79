"""HTML pages of a diagnosis and of a log: answers, charts, and tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fairbench.report.numbers import number
from fairbench.report.pages import page
from fairbench.report.pages.traffic_figures import (
    flood_headlines,
    traffic_figures,
    wait_limits,
    waiting_clients,
    waits_figure,
)
from fairbench.report.traffic_lines import JudgedTraffic, judged
from fairbench.workloads.traces.read import TraceParams
from fairbench_logs.diagnosis.access_log import FIRST_TOKEN, read_log
from fairbench_logs.diagnosis.diagnosis import (
    Diagnosis,
    best_fair,
    others_waits,
    renamed,
    unlike_replay,
)
from fairbench_logs.diagnosis.text import (
    answer_lines,
    basis_lines,
    diagnosis_title,
    headings,
    log_line,
    missing_lines,
    replay_rows,
)
from fairbench_logs.traffic_page import traffic_page

MEANING = (
    "Waits are times to first token of the requests that arrived{when}. Share in the worst "
    "60 s: the lowest fraction of its max-min fair share that a client received in any 60 s."
)


def diagnosis_page(found: Diagnosis) -> page.Page:
    """Return the page of a diagnosis."""
    played, figures = bool(found.replays), list(_figures(found))
    when = f" during the flood{'s' if len(found.judged_s) > 1 else ''}" if found.floods else ""
    return page.Page(
        title=diagnosis_title(found),
        provenance=f"{log_line(found)}. SHA-256 {found.log.sha256[:12]}.",
        headlines=list(_headlines(found)),
        warnings=[
            *([f"Synthetic: {found.log.synthetic}."] if found.log.synthetic else []),
            *missing_lines(found),
        ],
        sections=[
            page.Section("Diagnosis", [page.Bullets(answer_lines(found))]),
            *([page.Section("Load", figures[:1])] if figures else []),
            *([page.Section("Waits", figures[1:])] if figures[1:] else []),
            *(
                [
                    page.Section(
                        "Under each scheduler",
                        [
                            page.Paragraph(MEANING.format(when=when)),
                            page.Grid(
                                headings(found, whole=True),
                                [[page.Cell(text) for text in row] for row in replay_rows(found)],
                            ),
                        ],
                    )
                ]
                * played
            ),
            page.Section("Assumptions", [page.Bullets(list(basis_lines(found)))]),
        ],
    )


def _headlines(found: Diagnosis) -> Iterator[page.Headline]:
    if not found.floods:
        yield page.Headline("who floods", "nobody", "no client sends much more than other clients")
    yield from flood_headlines(_judged(found))
    best, first = best_fair(found), found.first
    doubt = ", not valid for your cluster" if unlike_replay(found) else ""
    if best is not None and first is not None:
        before, after = (others_waits(one.traffic, found)["others_p95_s"] for one in (first, best))
        yield page.Headline(
            f"TTFT P95 with {best.scheduler}",
            "-" if after is None else f"{number(after)} s",
            f"{number(before)} s with {first.scheduler}{doubt}",
        )
    if found.plan is not None:
        mine, *others = found.plan["choices"]
        counts = [
            f"> {found.plan['high']}" if row["replicas"] is None else f"{row['replicas']}"
            for row in (mine, *others)
        ]
        also = f", {counts[1]} with {others[0]['scheduler']}" if others else ""
        yield page.Headline(
            "replicas for the target", counts[0], f"with {mine['scheduler']}{also}{doubt}"
        )


def _judged(found: Diagnosis) -> JudgedTraffic:
    floods = renamed(found.floods, found.log.traffic, found.waits)
    return JudgedTraffic(found.waits, tuple(floods), found.harm, found.heavy)


def _figures(found: Diagnosis) -> Iterator[page.Figure]:
    measured, basis = found.log.measured or FIRST_TOKEN, found.present
    figures = traffic_figures(_judged(found), measured)
    # The first figure of the page shows the load over time. If all requests of a log have equal
    # times, the page has no figure.
    yield from islice(figures, 1)
    shown = "As recorded" if found.log.measured else f"Replayed under {basis}"
    yield from (page.Figure(one.svg, f"{shown}. {one.caption}") for one in figures)
    best = best_fair(found)
    if best is not None and best.traffic.span_s > 0:
        clients = waiting_clients(found.waits, found.heavy, found.harm)
        clients = [name for name in clients if name in best.traffic.clients]
        heavy = [name for name in found.heavy if name in best.traffic.clients]
        limits = wait_limits(found.waits, measured)
        figure = waits_figure(best.traffic, heavy, clients, limits, FIRST_TOKEN)
        yield page.Figure(figure.svg, f"Replayed under {best.scheduler}. {figure.caption}")


def log_page(params: TraceParams) -> page.Page:
    """Return the report page of an access log: load over time, floods, and recorded waits."""
    log = read_log(params)
    warnings = [f"Synthetic: {log.synthetic}."] if log.synthetic else []
    warnings += [f"All requests count as one client: {log.nameless}."] if log.nameless else []
    if not log.counted:
        warnings.append("The log has no token counts, so all requests count alike.")
    warnings += log.notes
    failed = ""
    if log.table.left_out:
        counted = "counted in the load" if log.measured == FIRST_TOKEN else "left out"
        failed = f", {log.table.left_out:,} {log.table.who_left_out} {counted}"
    provenance = f"{log.format}, SHA-256 {log.sha256[:12]}{failed}."
    return traffic_page(
        Path(log.file).name, provenance, judged(log.traffic), log.measured, warnings=warnings
    )
