"""Exports that often lack the start times of requests: LLMPerf's and genai-bench's.

LLMPerf writes a list of requests, ``*_individual_responses.json``, with the fields of
common_metrics.py (ray-project/llmperf at 1eac866); genai-bench totals and requests, with the fields
of ``RequestLevelMetrics`` (metrics/metrics.py of sgl-project/genai-bench at 025cf1c). Times are in
seconds. Requests without start times are assumed to be sent in closed loops.
"""

from __future__ import annotations

import heapq

from fairbench.files.json_text import inner, objects_in
from fairbench.files.times import number_of
from fairbench.records.layout import Object, Run
from fairbench.records.tools.tool import first_of, layout, request

MOST_USERS = 100_000


def _llmperf(objects: list[Object], where: str) -> list[Run]:
    found = [
        request(
            row,
            start=first_of(row, "start_time", "request_start_time", "sample_time"),
            ttft=row.get("ttft_s"),
            latency=row.get("end_to_end_latency_s"),
            input_tokens=row.get("number_input_tokens"),
            output_tokens=row.get("number_output_tokens"),
            error=row.get("error_code"),
        )
        for row in objects
    ]
    return [Run(found, remarks=_placed(found, 1, "LLMPerf"))]


def _genai_bench(item: Object) -> Run:
    found = [
        request(
            row,
            start=first_of(row, "start_time", "request_start_time"),
            ttft=row.get("ttft"),
            latency=row.get("e2e_latency"),
            input_tokens=row.get("num_input_tokens"),
            output_tokens=row.get("num_output_tokens"),
            error=row.get("error_code"),
        )
        for row in objects_in(item["individual_request_metrics"])
    ]
    totals = inner(item, "aggregated_metrics")
    users, completed = inner(totals, "num_concurrency"), inner(totals, "num_completed_requests")
    known = type(users) in (int, float) and 1 <= users <= MOST_USERS
    remarks = _placed(found, int(users) if known else 1, "genai-bench")
    return Run(found, completed if type(completed) is int else None, remarks)


def _placed(requests: list[Object], users: int, tool: str) -> tuple[str, ...]:
    """Give requests without starts, in place, those of a closed loop; return a remark.

    Each user sends its next request when its previous one has been answered; the first free user
    sends the next request of the file. Requests of unknown duration take no time.
    """
    if any(one["start"] is not None for one in requests):
        return ()
    free_s = [0.0] * users
    for one in requests:
        one["start"] = heapq.heappop(free_s)
        heapq.heappush(free_s, one["start"] + max(0.0, number_of(one["latency"]) or 0.0))
    loop = "one after the other" if users == 1 else f"by {users} users in closed loops"
    return (
        f"{tool} exports no start times: requests are assumed to be sent {loop}, in their order",
    )


LLMPERF = layout(
    "llmperf",
    lambda item: {"number_input_tokens", "number_output_tokens", "error_code"} <= set(item),
    _llmperf,
)
GENAI_BENCH = layout(
    "genai-bench",
    lambda item: isinstance(item.get("individual_request_metrics"), list),
    lambda objects, where: [_genai_bench(item) for item in objects],
)
