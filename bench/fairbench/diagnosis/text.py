"""A diagnosis as one page of text, and as plain values, the output of ``diagnose --json``."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.diagnosis.access_log import FIRST_TOKEN
from fairbench.diagnosis.diagnosis import Diagnosis, others_waits, recorded_waits, unlike_replay
from fairbench.diagnosis.sentences import answer_lines, basis_lines, log_line, missing_lines, title
from fairbench.metrics.floods import Flood, Harm
from fairbench.report.numbers import percent, seconds, whole
from fairbench.report.table import plain_table, printed

WIDTH = 80


def diagnosis_text(found: Diagnosis, *, colour: bool = False, width: int = WIDTH) -> str:
    """Return the diagnosis as lines of at most ``width`` columns."""
    return printed(_render(found), colour=colour, width=min(width, WIDTH))


def _render(found: Diagnosis) -> RenderableType:
    blocks: list[RenderableType] = [Text(title(found), style="bold"), Text(log_line(found)), Text()]
    blocks += [_list(answer_lines(found)), Text()]
    blocks += [_table(found), Text()] if found.replays else []
    blocks += [Text(line, style="dim") for line in basis_lines(found)]
    return Group(*blocks, *(Text(line, style="bold") for line in missing_lines(found)))


def _list(lines: list[str]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        table.add_row("-", Text(line))
    return table


def headings(found: Diagnosis, *, whole: bool = False) -> list[str]:
    """Return the headings of the table of replays; ``whole`` ones are clear on their own."""
    who = "others" if found.floods else "all"
    own = (
        [f"{(found.heavy[0] if len(found.heavy) == 1 else 'heavy clients')} P50 s"]
        if found.floods
        else []
    )
    p95 = f"{who} TTFT P95 s" if whole else "P95 s"
    first = "replay under" if recorded_waits(found) is None else "scheduler"
    return [first, f"{who} TTFT P50 s", p95, *own, "min share 60 s", "tok/s"]


def rows(found: Diagnosis) -> list[list[str]]:
    """Return a row for the log if it has waits, and one for each replay.

    A row has waits, then fairness and throughput, which the log does not have.
    """
    recorded = recorded_waits(found)
    table = [] if recorded is None else [_row(found, AS_RECORDED, recorded, {})]
    waits = ((run, others_waits(run.traffic, found)) for run in found.replays)
    return [*table, *(_row(found, run.scheduler, one, run.summary) for run, one in waits)]


def _row(
    found: Diagnosis, name: str, waits: Mapping[str, float | None], summary: Mapping[str, Any]
) -> list[str]:
    own = [seconds(waits["heavy_p50_s"])] if found.floods else []
    ranks = [seconds(waits["others_p50_s"]), seconds(waits["others_p95_s"])]
    fairness, rate = (summary.get(key) for key in OF_REPLAYS)
    return [name, *ranks, *own, percent(fairness), whole(rate)]


OF_REPLAYS = ("min_share_60s", "service_rate_tok_s")
AS_RECORDED = "as recorded"


def _table(found: Diagnosis) -> Table:
    table = plain_table(*headings(found))
    for row in rows(found):
        table.add_row(*row)
    return table


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as JSON types, with times in seconds from the first request."""
    log, first, unlike = found.log, found.first, unlike_replay(found)
    summary = found.replays[0].summary if found.replays else {}
    return {
        "file": log.file,
        "format": log.format,
        "sha256": log.sha256,
        "requests": len(log.traffic.client),
        "clients": len(log.traffic.clients),
        "span_s": log.traffic.span_s,
        "began": None if log.traffic.clock is None else log.traffic.clock.iso,
        "waits": log.measured or (f"replayed under {first.scheduler}" if first else None),
        "floods": [_flood(found, one) for one in found.floods],
        "harm": None if found.harm is None else _harm(found, found.harm),
        "replayed_requests": summary.get("num_requests"),
        "replayed_programs": summary.get("num_programs"),
        "replayed_from_s": found.part_s[0],
        "replayed_to_s": found.part_s[1],
        "timing_profile": summary.get("timing_profile"),
        "dp": found.dp,
        "replay_is_like_log": unlike is None if log.measured == FIRST_TOKEN and first else None,
        "judged_from_s": found.judged_s[0][0],
        "judged_to_s": found.judged_s[-1][1],
        "judged_s": found.judged_s,
        "recorded": recorded_waits(found),
        "schedulers": [
            {
                "scheduler": run.scheduler,
                **_finite(dict(others_waits(run.traffic, found))),
                **{key: run.summary.get(key) for key in OF_REPLAYS},
            }
            for run in found.replays
        ],
        "plan": found.plan,
        "missing": list(found.missing),
    }


def _flood(found: Diagnosis, flood: Flood) -> dict[str, Any]:
    name = found.log.traffic.clients[flood.client]
    return {**_finite(flood._asdict()), "client": name}


def _harm(found: Diagnosis, harm: Harm) -> dict[str, Any]:
    victims = [
        {**_finite(one._asdict()), "client": found.waits.clients[one.client]}
        for one in harm.victims
    ]
    parts = [_harm(found, one) for one in harm.parts]
    return {**_finite(harm._asdict()), "victims": victims, "parts": parts}


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value == inf else value for key, value in values.items()}
