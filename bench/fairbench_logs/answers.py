"""The answers of ``fairbench.diagnose``, ``score`` and ``plan``, on files and tables in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from fairbench.api.logs import Answer, Data
from fairbench.config.flags import PLAN
from fairbench.config.parse_flags import check_names
from fairbench.errors import UsageError
from fairbench.execute.tasks import run_context
from fairbench.files.reader import read_whole
from fairbench.metrics.service import service_of
from fairbench.metrics.shown_percentiles import parse_percentiles
from fairbench.report.progress import shown_progress
from fairbench.report.run_table import scored_text
from fairbench.results.store import ANSWER, read_json, write_text
from fairbench.workloads.traces.read import TraceParams, joined_columns
from fairbench_logs.diagnosis.access_log import read_log
from fairbench_logs.diagnosis.diagnosis import DiagnosisInput
from fairbench_logs.diagnosis.diagnosis import diagnose as diagnosed
from fairbench_logs.diagnosis.page import diagnosis_page
from fairbench_logs.diagnosis.text import diagnosis_json, diagnosis_text
from fairbench_logs.in_memory import as_file, shown
from fairbench_logs.planning.carry_out import begin_plan, carry_out
from fairbench_logs.planning.page import plan_page
from fairbench_logs.planning.question import PlanQuestion, parse_slos
from fairbench_logs.planning.table import answer_text
from fairbench_logs.records.column_names import parse_map
from fairbench_logs.scoring.arrays import NEEDED
from fairbench_logs.scoring.records import read_scored
from fairbench_logs.scoring.summary import score_page, scored_summary, scored_window

# The units of ``time_unit``; traces may have longer units, too.
UNITS = ("s", "ms", "us", "ns")


def diagnose(
    data: Data,
    *,
    map: Mapping[str, str] | None,
    time_unit: str | None,
    dp: int | None,
    gpu: str | None,
    model: str | None,
    engine: str | None,
    scheduler: Sequence[str],
    slo: Sequence[str],
    no_plan: bool,
    show_progress: bool,
) -> Answer:
    """Answer a call of ``fairbench.diagnose``."""
    if slo:
        parse_slos(slo)  # A wrong latency target is refused before the log is replayed.
    flags = {"gpu": gpu, "model": model, "engine": engine}
    known = {key: value for key, value in flags.items() if value is not None}
    asked = DiagnosisInput(known, dp, tuple(scheduler), tuple(slo), not no_plan)
    with as_file(data) as file, run_context(shown_progress() if show_progress else None) as context:
        columns = joined_columns(map or {})
        log = read_log(TraceParams(file, columns=columns, time_unit=time_unit or ""))
        found = diagnosed(replace(log, file=shown(log.file, file)), asked, context)
        if found.missing:
            raise context.interrupted.ended("interrupted")
    return Answer(diagnosis_json(found), diagnosis_text(found), lambda: diagnosis_page(found))


def score(
    data: tuple[Data, ...],
    *,
    map: Mapping[str, str] | None,
    layout: str | None,
    time_unit: str | None,
    line: int | None,
    clients: Sequence[str],
    misbehaving: Sequence[str],
    weights: Mapping[str, float] | None,
    goodput: Mapping[str, str] | None,
    percentiles: str | None,
    latency: Literal["program", "ttft"],
    window_start: float | None,
    window_end: float | None,
) -> Answer:
    """Answer a call of ``fairbench.score``."""
    if time_unit is not None and time_unit not in UNITS:
        raise UsageError(f"time_unit = {time_unit}: must be one of {', '.join(UNITS)}")
    if window_end is not None and window_end <= (window_start or 0.0):
        raise UsageError(f"window_end = {window_end:g}: must be above window_start")
    if len(data) != 1 and not all(isinstance(one, str | PathLike) for one in data):
        raise UsageError("data: give one table, or the names of files")
    ranks = parse_percentiles(percentiles or "")
    with as_file(data[0]) as first:
        names = [first, *(str(one) for one in data[1:])]
        scored = read_scored(
            [Path(name) for name in names],
            layout=layout,
            names=parse_map((f"{key}={name}" for key, name in (map or {}).items()), NEEDED),
            line=line,
            unit=time_unit,
            registered=clients,
        )
        files = [shown(name, first) for name in names]
    window = scored_window(
        scored.requests, scored.programs, scored.horizon_s, window_start, window_end
    )
    found = scored_summary(
        *(scored, service_of(scored.requests, scored.last_token_s), window),
        misbehaving=misbehaving,
        weights=weights,
        goodput=goodput,
        latency=latency,
        percentiles=ranks,
    )
    summary = {"records": files, **found}
    text = scored_text(summary, ", ".join(files))
    return Answer(summary, text, lambda: score_page(scored, summary, files))


def plan(
    data: Data | None,
    *,
    slo: Sequence[str],
    map: Mapping[str, str] | None,
    scheduler: Sequence[str],
    dp: tuple[int, int] | None,
    max: Literal["users"] | None,
    gpu: Sequence[str],
    price: Mapping[str, float] | None,
    loads: Sequence[float],
    settings: Mapping[str, Any] | None,
    num_runs: int,
    certain: bool,
    every: bool,
    no_sharing: bool,
    show_progress: bool,
    flags: Mapping[str, Any],
) -> Answer:
    """Answer a call of ``fairbench.plan``."""
    check_names(flags, PLAN)
    replicas = dp or ((1, 1) if max else (1, 32))
    given: dict[str, Any] = {key: value for key, value in flags.items() if value is not None}
    with as_file(data if data is not None else "") as file, TemporaryDirectory() as folder:
        if data is not None:
            given |= {"trace": file} | ({"trace_map": dict(map)} if map else {})
        question = PlanQuestion(
            *(tuple(slo), tuple(scheduler), *replicas, given, settings or {}),
            gpus=tuple(gpu),
            loads=sorted(loads),
            prices=price,
            num_runs=num_runs,
            certain=certain,
            every=every,
            sharing=not no_sharing,
            most=max or "",
        )
        store = begin_plan(question, Path(folder))
        with run_context(shown_progress() if show_progress else None) as context:
            carry_out(store, context)
        for path in (store.path / ANSWER, store.file):
            write_text(path, shown(read_whole(path, f"{path}").decode(), file))
        answer, page = read_json(store.path / ANSWER), plan_page(store.path)
    return Answer(answer, answer_text(answer), lambda: page)
