"""GuideLLM's ``benchmarks.json``: runs with their requests, grouped by outcome.

The fields are those of ``GenerativeRequestStats`` (schemas/request_stats.py of
vllm-project/guidellm at 06cef29), and before 0.4 ``start_time``, ``end_time`` and
``first_token_time``. Requests cut off at a run's end are unfinished.
"""

from __future__ import annotations

from fairbench.files.json_text import inner, objects_in
from fairbench.records.layout import Object, Record, Run
from fairbench.records.tools.tool import difference, first_of, layout, request, scaled

ENDS = {"successful": None, "errored": "failed", "incomplete": "unfinished"}


def _recognise(item: Record) -> bool:
    return any(
        isinstance(inner(run, "requests", end), list)
        for run in objects_in(item.get("benchmarks"))
        for end in ENDS
    )


def _runs(objects: list[Object], where: str) -> list[Run]:
    runs = [run for item in objects for run in objects_in(item.get("benchmarks"))]
    return [_run(run) for run in runs]


def _run(run: Object) -> Run:
    found = [
        _request(row, status)
        for end, status in ENDS.items()
        for row in objects_in(inner(run, "requests", end))
    ]
    counts = inner(run, "metrics", "request_totals"), inner(run, "request_totals")
    totals = [count for one in counts if type(count := inner(one, "successful")) is int]
    return Run(found, totals[0] if totals else None)


def _request(row: Object, status: str | None) -> Object:
    timings = inner(row, "info", "timings")
    start = first_of(row, "request_start_time", "start_time")
    start = inner(timings, "request_start") if start is None else start
    end = first_of(row, "request_end_time", "end_time")
    latency = row.get("request_latency")
    ttft = scaled(row.get("time_to_first_token_ms"), 1e-3)
    return request(
        row,
        start=start,
        ttft=difference(row.get("first_token_time"), start) if ttft is None else ttft,
        latency=None if status else difference(end, start) if latency is None else latency,
        input_tokens=row.get("prompt_tokens"),
        output_tokens=row.get("output_tokens"),
        status=status,
        request_id=row.get("request_id"),
    )


GUIDELLM = layout("guidellm", _recognise, _runs)
