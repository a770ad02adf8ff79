"""The result file of genai-bench: totals, and requests without start times.

Fields as ``RequestLevelMetrics`` has them (metrics/metrics.py of sgl-project/genai-bench at
025cf1c), times in seconds. Requests are taken as sent by as many users as the run has.
"""

from __future__ import annotations

from fairbench.score.files import Object
from fairbench.score.tools.tool import Run, Tool, first_of, inner, objects_in, placed, request

MOST_USERS = 100_000


def _recognise(item: Object) -> bool:
    return isinstance(item.get("individual_request_metrics"), list)


def _run(item: Object) -> Run:
    found = [_request(row) for row in objects_in(item["individual_request_metrics"])]
    totals = inner(item, "aggregated_metrics")
    users, completed = inner(totals, "num_concurrency"), inner(totals, "num_completed_requests")
    known = type(users) in (int, float) and 1 <= users <= MOST_USERS
    remarks = placed(found, int(users) if known else 1, "genai-bench")
    return Run(found, completed if type(completed) is int else None, remarks)


def _request(row: Object) -> Object:
    return request(
        row,
        start=first_of(row, "start_time", "request_start_time"),
        ttft=row.get("ttft"),
        latency=row.get("e2e_latency"),
        input_tokens=row.get("num_input_tokens"),
        output_tokens=row.get("num_output_tokens"),
        error=row.get("error_code"),
    )


GENAI_BENCH = Tool("genai-bench", _recognise, lambda objects: [_run(item) for item in objects])
