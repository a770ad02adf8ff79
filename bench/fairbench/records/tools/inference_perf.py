"""inference-perf's ``per_request_lifecycle_metrics.json``: a list of requests.

The fields are those of ``RequestLifecycleMetric`` and ``InferenceInfo`` (apis/base.py of
kubernetes-sigs/inference-perf at 03e89d4); earlier versions have the counts directly in ``info``.
Times are in seconds.
"""

from __future__ import annotations

from itertools import pairwise

from fairbench.files.json_text import inner
from fairbench.records.layout import Object, Record, Run
from fairbench.records.tools.tool import difference, layout, numbers_in, request


def _recognise(item: Record) -> bool:
    return {"start_time", "end_time", "request", "info"} <= set(item)


def _runs(objects: list[Object], where: str) -> list[Run]:
    return [Run([_request(row) for row in objects])]


def _request(row: Object) -> Object:
    info = inner(row, "info")
    answer = inner(info, "response_metrics")
    output = inner(answer, "output_tokens")
    lists = (inner(answer, "output_token_times"), inner(info, "output_token_times"))
    times = next(filter(None, map(numbers_in, (*lists, inner(answer, "chunk_times")))), [])
    output = inner(info, "output_tokens") if output is None else output
    read = inner(info, "request_metrics", "text", "input_tokens")
    start = row.get("start_time")
    known = info if isinstance(info, dict) else {}
    texts = {"request", "response"}  # the text may be long
    return request(
        {**known, **{key: value for key, value in row.items() if key not in texts}},
        start=start,
        ttft=difference(times[0], start) if times else None,
        latency=difference(row.get("end_time"), start),
        input_tokens=inner(info, "input_tokens") if read is None else read,
        output_tokens=output,
        cached_tokens=inner(answer, "server_usage", "prompt_tokens_details", "cached_tokens"),
        error=row.get("error"),
        gaps=[after - at for at, after in pairwise(times)] if len(times) == output else None,
    )


INFERENCE_PERF = layout("inference-perf", _recognise, _runs)
