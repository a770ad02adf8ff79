"""The Python functions for ``fairbench diagnose``, ``score`` and ``plan``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from html import escape
from math import isfinite
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Unpack

import numpy as np
import pyarrow as pa

from fairbench.config.defaults import DEFAULTS
from fairbench.config.flags import PLAN, PlanFlags
from fairbench.config.parse_flags import check_names
from fairbench.diagnosis import FAIR, FCFS
from fairbench.diagnosis.access_log import read_log
from fairbench.diagnosis.diagnosis import DiagnosisInput
from fairbench.diagnosis.diagnosis import diagnose as diagnosed
from fairbench.diagnosis.page import diagnosis_page
from fairbench.diagnosis.text import diagnosis_json, diagnosis_text
from fairbench.errors import FairbenchError, UsageError
from fairbench.execute.tasks import run_context
from fairbench.files.reader import read_whole
from fairbench.metrics.service import service_of
from fairbench.metrics.shown_percentiles import parse_percentiles
from fairbench.planning.carry_out import ANSWER, begin_plan, carry_out
from fairbench.planning.page import plan_page
from fairbench.planning.question import NUM_RUNS, PlanQuestion, parse_slos
from fairbench.planning.table import answer_text
from fairbench.records.column_names import parse_map
from fairbench.report.pages.html import write_page
from fairbench.report.pages.page import Page
from fairbench.report.progress import shown_progress
from fairbench.report.run_table import scored_text
from fairbench.results.store import read_json, write_text
from fairbench.scoring.arrays import NEEDED
from fairbench.scoring.records import read_scored
from fairbench.scoring.summary import score_page, scored_summary, scored_window
from fairbench.workloads.traces.read import TraceParams, joined_columns

NAME = "data"  # the name that messages and results use for a table in memory
Data = Any
"""A table in one of the accepted forms: a pandas data frame, an object with Arrow's interface, a
list of dicts, a dict of columns, or the name of a file."""


@contextmanager
def as_file(data: Data) -> Iterator[str]:
    """Yield the name of a file that holds the rows of ``data``.

    If ``data`` is the name of a file, this name is yielded. Rows in memory are written to a
    temporary file, which error messages call ``data``. Raises UsageError for a source of an
    unsupported type, and for a table without rows.
    """
    if isinstance(data, str | PathLike):
        yield fspath(data)
        return
    with TemporaryDirectory(prefix="fairbench-") as folder:
        path = Path(folder) / f"{NAME}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for row in _data_rows(data):
                plain = {str(key): _plain(value) for key, value in row.items()}
                file.write(json.dumps(plain, ensure_ascii=False) + "\n")
            if not file.tell():
                raise UsageError(f"{NAME}: has no rows")
        try:
            yield str(path)
        except FairbenchError as error:
            error.args = tuple(shown(str(one), str(path)) for one in error.args)
            raise


def shown(text: str, file: str) -> str:
    """Replace the temporary file and line in an error message by ``data`` and a row number."""
    if not Path(file).name.startswith(NAME):
        return text
    return re.sub(rf"{re.escape(file)}(, line (\d+))?", _row_place, text)


def _row_place(found: re.Match[str]) -> str:
    return f"{NAME}, row {found[2]}" if found[2] else NAME


def _data_rows(data: Data) -> Iterable[Mapping[Any, Any]]:
    """Return the rows of a data frame, Arrow table, list or dict of columns as dicts."""
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "to_dict"):
        # A named index of a pandas data frame becomes a column of the log.
        named = any(name is not None for name in data.index.names)
        rows: list[dict[Any, Any]] = (data.reset_index() if named else data).to_dict("records")
        return rows
    if isinstance(data, pa.Table | pa.RecordBatch) or hasattr(data, "__arrow_c_stream__"):
        rows = _with_microseconds(pa.table(data)).to_pylist()
        return rows
    if isinstance(data, Mapping):
        columns = {key: list(values) for key, values in data.items()}
        if len(set(map(len, columns.values()))) > 1:
            raise UsageError(f"{NAME}: all columns must have the same length")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    rows = list(data) if isinstance(data, Iterable) else []
    if not isinstance(data, Iterable) or not all(isinstance(row, Mapping) for row in rows):
        raise UsageError(
            f"{NAME}: must be a data frame, an Arrow table, a list of dicts, a dict of columns, "
            f"or the name of a file, not {type(data).__name__}"
        )
    return rows


def _with_microseconds(table: pa.Table) -> pa.Table:
    """Round the times of a table to microseconds, because Python's times are not more precise."""
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz))
        if pa.types.is_timestamp(field.type)
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields), safe=False)


def _plain(value: Any) -> Any:
    """Return a value as a JSON type; missing and infinite values become None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if not isinstance(value, float | Decimal):
        return _text(value)
    number = float(value)
    # The float 7.0 becomes 7, because a column of client names may contain numbers.
    return None if not isfinite(number) else int(number) if number.is_integer() else number


def _text(value: Any) -> str | float | None:
    """Return a duration as a number of seconds, and any other value as text."""
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas uses these types for missing values.
        return None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class Answer:
    """The answer that ``diagnose``, ``score`` or ``plan`` returns.

    ``summary`` has the keys that the command prints with ``--json``. ``print(answer)`` shows the
    text that the command prints.
    """

    def __init__(self, summary: dict[str, Any], text: str, page: Callable[[], Page]) -> None:
        self.summary = summary
        self._text = text
        self._page = page

    def save_report(self, path: str | PathLike[str]) -> None:
        """Write a page with charts to a file whose name ends in .html or .md.

        Raises UsageError if the file cannot be written, or if its name has another ending.
        """
        write_page(self._page(), Path(path), "save_report")

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def diagnose(
    data: Data,
    *,
    # The argument is named after the flag --map, although ``map`` is also a Python function.
    map: Mapping[str, str] | None = None,
    time_unit: Literal["s", "ms", "us", "ns"] | None = None,
    dp: int | None = None,
    gpu: str | None = None,
    model: str | None = None,
    engine: str | None = None,
    scheduler: Sequence[str] = (FCFS, *FAIR),
    slo: Sequence[str] = (),
    no_plan: bool = False,
    show_progress: bool = False,
) -> Answer:
    """Find in a log the heavy clients, the clients that wait because of them, and a remedy.

    ``data`` is a data frame, an Arrow table, a list of dicts, or the name of a file. ``map`` names
    the columns of fields that have uncommon names, such as ``{"client": "team"}``. ``time_unit`` is
    the unit of times in columns whose names state no unit. All other arguments are flags of
    ``fairbench diagnose``. Schedulers and latency targets are given as lists.

    Raises UsageError for a wrong argument and DataError for wrong data; the message is one line.
    """
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
    *data: Data,
    map: Mapping[str, str] | None = None,
    layout: str | None = None,
    time_unit: Literal["s", "ms", "us", "ns"] | None = None,
    line: int | None = None,
    clients: Sequence[str] = (),
    misbehaving: Sequence[str] = (),
    weights: Mapping[str, float] | None = None,
    goodput: Mapping[str, str] | None = None,
    percentiles: str | None = None,
    latency: Literal["program", "ttft"] = "program",
    window_start: float | None = None,
    window_end: float | None = None,
) -> Answer:
    """Compute every fairness metric from the request records of any serving system.

    ``data`` is a data frame, an Arrow table, a list of dicts, or the names of files that form one
    run. Every argument except ``data`` is a flag of ``fairbench score``. Three flags are dicts:
    ``map`` maps a field to a column name, such as ``{"client": "team"}``, ``weights`` maps a client
    to a weight, and ``goodput`` maps a latency to a target, such as ``{"ttft": "500"}``.

    Raises UsageError for a wrong argument and DataError for wrong data; the message is one line.
    """
    if time_unit is not None and time_unit not in UNITS_S:
        raise UsageError(f"time_unit = {time_unit}: must be one of {', '.join(UNITS_S)}")
    if window_end is not None and window_end <= (window_start or 0.0):
        raise UsageError(f"window_end = {window_end:g}: must be above window_start")
    if len(data) != 1 and not all(isinstance(one, str | PathLike) for one in data):
        raise UsageError("data: give one table, or one or more file names")
    ranks = parse_percentiles(percentiles or "")
    with as_file(data[0]) as first:
        names = [first, *(str(one) for one in data[1:])]
        scored = read_scored(
            [Path(name) for name in names],
            layout=layout,
            names=parse_map((f"{key}={name}" for key, name in (map or {}).items()), NEEDED),
            line=line,
            unit_s=None if time_unit is None else UNITS_S[time_unit],
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
    data: Data | None = None,
    *,
    slo: Sequence[str],
    map: Mapping[str, str] | None = None,
    scheduler: Sequence[str] = (DEFAULTS["scheduler"],),
    dp: tuple[int, int] | None = None,
    max: Literal["users"] | None = None,
    gpu: Sequence[str] = (DEFAULTS["gpu"],),
    price: Mapping[str, float] | None = None,
    loads: Sequence[float] = (1.0,),
    settings: Mapping[str, Any] | None = None,
    num_runs: int = NUM_RUNS,
    certain: bool = False,
    every: bool = False,
    no_sharing: bool = False,
    show_progress: bool = False,
    **flags: Unpack[PlanFlags],
) -> Answer:
    """Find the smallest cluster that meets targets under the load of a log or workload.

    ``data`` is an access log; without ``data``, a flag in ``flags`` names a workload. ``slo`` lists
    the latency and fairness targets, such as ``["ttft_p99<2s"]``. ``dp`` is the smallest and the
    largest number of replicas to try, by default 1 and 32. With ``max="users"``, ``plan`` finds the
    largest number of users (clients) that a fixed cluster, such as ``dp=(4, 4)``, can serve within
    the targets. ``flags`` are flags of ``fairbench plan``. ``plan`` leaves no files on disk.

    If no cluster in the range meets the targets, the answer says so without an error. Raises
    UsageError for a wrong argument and DataError for wrong data; the message is one line.
    """
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
