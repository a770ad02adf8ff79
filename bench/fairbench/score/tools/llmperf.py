"""LLMPerf's ``*_individual_responses.json``: a list of requests, often without starts.

Fields as common_metrics.py of ray-project/llmperf (at 1eac866) names them, times in seconds.
"""

from __future__ import annotations

from fairbench.score.files import Object
from fairbench.score.tools.tool import Run, Tool, first_of, placed, request


def _recognise(item: Object) -> bool:
    return {"number_input_tokens", "number_output_tokens", "error_code"} <= set(item)


def _runs(objects: list[Object]) -> list[Run]:
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
    return [Run(found, remarks=placed(found, 1, "LLMPerf"))]


LLMPERF = Tool("llmperf", _recognise, _runs)
