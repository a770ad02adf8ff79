"""The formats of files that benchmark tools export.

To add a tool, write a layout (a description of its format) here and add the layout to ``TOOLS``.
All layouts convert times to seconds. The known files, and the documents that define their fields:

- aiperf (0.3 to 0.13): ``profile_export.jsonl``. Each line of the file has ``metadata`` (client and
  times in epoch nanoseconds), ``metrics`` (each a value with its unit) and ``error``. Sources:
  aiperf's "Working with Profile Export Files" and "Metrics Reference".
- genai-perf and Perf Analyzer: ``profile_export.json``, in nanoseconds. Each entry of the list
  ``experiments`` is a run. Each request has the times of its responses and, if stored, the texts of
  prompt and answer. Token counts come from the server's answers. If the server reports no counts,
  each response with text counts as one token, and a prompt's tokens are estimated from its text.
- GuideLLM: ``benchmarks.json``, runs with their requests grouped by outcome. A request's fields
  follow ``GenerativeRequestStats`` (schemas/request_stats.py of vllm-project/guidellm at 06cef29).
  Files of versions before 0.4 have the fields ``start_time``, ``end_time`` and
  ``first_token_time``. Requests may have only their ``info.timings``, ``input_metrics`` and
  ``output_metrics``. Requests that were cut off at the end of a run are unfinished.
- inference-perf: ``per_request_lifecycle_metrics.json``, a list of requests. A request's fields
  follow ``RequestLifecycleMetric`` and ``InferenceInfo`` (apis/base.py of
  kubernetes-sigs/inference-perf at 03e89d4); earlier versions put counts into ``info``.
- LLMPerf: a list of requests, ``*_individual_responses.json``, with the fields of common_metrics.py
  (ray-project/llmperf at 1eac866).
- genai-bench: totals and requests, with the fields of ``RequestLevelMetrics`` (metrics/metrics.py
  of sgl-project/genai-bench at 025cf1c).

The files of LLMPerf and genai-bench often lack start times. Requests without start times are
assumed to be sent in closed loops, in which a user waits for each answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from fairbench.errors import DataError, shortened
from fairbench.files.formats import inner, parsed
from fairbench.files.times import number_of
from fairbench.workloads.tokens import estimated_tokens
from fairbench_logs.records.layout import (
    Layout,
    Object,
    Record,
    Run,
    columns,
    has_all,
    objects_in,
    text_of,
)

FIELDS = ("start", "ttft", "latency", "input_tokens", "output_tokens")
OPTIONAL = ("cached_tokens", "status", "error", "gaps", "request_id")


def layout(
    name: str, fits: Callable[[Record], bool], runs: Callable[[list[Object], str], list[Run]]
) -> Layout:
    """Return the layout of a tool's export; ``runs`` must call ``request`` to create requests."""
    own = {field: field for field in (*FIELDS, *OPTIONAL)}
    units = dict.fromkeys(("start", "ttft", "latency", "gaps"), "s")
    return Layout(name, fits, own, units, runs=runs, own_units=True, exact=True)


def request(more: Mapping[str, Any], **fields: Any) -> Object:
    """Return a request with fairbench's field names, and with times in seconds.

    Without a TTFT, the whole answer is assumed to arrive at its end. ``more`` is the request as the
    benchmark tool recorded it; its lists and objects are dropped. Fields that are not given are
    None.
    """
    kept = {key: value for key, value in more.items() if not isinstance(value, list | dict)}
    made = kept | dict.fromkeys((*FIELDS, *OPTIONAL)) | fields
    return made | {"ttft": made["latency"] if made["ttft"] is None else made["ttft"]}


def first_of(value: Any, *keys: str) -> Any:
    """Return the first value under ``keys`` that is not None, or None if every value is None."""
    return next((value[key] for key in keys if inner(value, key) is not None), None)


def numbers_in(value: Any) -> list[float]:
    """Return the numbers in a list, or [] if ``value`` is not a list."""
    found = map(number_of, value) if isinstance(value, list) else ()
    return [float(one) for one in found if one is not None]


def time_difference(later: Any, earlier: Any) -> Any:
    """Return ``later`` minus ``earlier``, or None if either value is not a number."""
    one, other = number_of(later), number_of(earlier)
    return None if one is None or other is None else one - other


def scaled(value: Any, factor: float) -> Any:
    """Return ``value`` times ``factor`` if ``value`` is a number.

    A value that is not a number is returned unchanged, so that a later check reports it as wrong.
    """
    number = number_of(value)
    return value if number is None else number * factor


UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0}
START = "request_start_ns"
TIMES = ("time_to_first_token", "request_latency")
# ``COUNTS`` maps each token count to the metrics from which it can be read, most exact first.
COUNTS = {
    "input_sequence_length": ("input_sequence_length", "error_isl"),
    "output_sequence_length": ("output_sequence_length", "output_token_count"),
    "cached_tokens": ("usage_prompt_cache_read_tokens", "usage_prompt_cached_tokens"),
}


def is_aiperf(item: Record) -> bool:
    """Return whether an object is a record of the tool aiperf."""
    metadata = item.get("metadata")
    return isinstance(metadata, dict) and START in metadata and "metrics" in item


def _measured_requests(item: Record, where: str) -> Iterator[Object]:
    """Yield the request in a record of aiperf, and skip records of the warm-up phase.

    Raises DataError, which names the line, if the object is not a record of aiperf.
    """
    if not is_aiperf(item):
        raise DataError(f"{where}: not a record of aiperf: the field metadata.{START} is missing")
    if item["metadata"].get("benchmark_phase") != "warmup":
        yield _flat_record(item, where)


def _flat_record(item: Record, where: str) -> Object:
    """Merge the metadata, metrics and failure of an aiperf record into one flat object."""
    metadata, metrics = item["metadata"], item["metrics"] or {}
    if not isinstance(metrics, dict):
        raise DataError(f"{where}: metrics must be a JSON object")
    start = metadata[START]
    if isinstance(start, bool) or not isinstance(start, int):
        raise DataError(f"{where}: metadata.{START} = {shortened(repr(start))}: must be an integer")
    flat = {
        **metadata,
        "start": start * UNITS_S["ns"],
        **{name: _time_s(metrics, name, where) for name in TIMES},
        **{name: _metric_value(metrics, names) for name, names in COUNTS.items()},
        "gaps": _gaps(metrics),
        "error": item.get("error") or ("cancelled" if metadata.get("was_cancelled") else None),
    }
    # aiperf omits the time to first token of an answer that was not streamed.
    if flat["time_to_first_token"] is None:
        flat["time_to_first_token"] = flat["request_latency"]
    read, cached = flat["input_sequence_length"], flat["cached_tokens"]
    # aiperf counts input tokens and the server counts cached tokens, so the number of cached tokens
    # may exceed the number of input tokens.
    if isinstance(read, int) and isinstance(cached, int):
        flat["cached_tokens"] = min(cached, read)
    return flat


def _gaps(metrics: Object) -> list[float] | None:
    """Return the gaps between tokens in seconds; None if a chunk may contain several tokens."""
    values, unit = _measured(metrics, "inter_chunk_latency")
    tokens = _metric_value(metrics, COUNTS["output_sequence_length"])
    if not isinstance(values, list) or unit not in UNITS_S or len(values) + 1 != tokens:
        return None
    return [one * UNITS_S[unit] for one in values if type(one) in (int, float)]


def _time_s(metrics: Object, name: str, where: str) -> Any:
    value, unit = _measured(metrics, name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if unit not in UNITS_S:
        known = ", ".join(UNITS_S)
        raise DataError(
            f"{where}: the unit of {name} is {shortened(repr(unit))}: must be one of {known}"
        )
    return value * UNITS_S[unit]


def _metric_value(metrics: Object, names: tuple[str, ...]) -> Any:
    return next(
        (value for name in names if (value := _measured(metrics, name)[0]) is not None), None
    )


def _measured(metrics: Object, name: str) -> tuple[Any, str]:
    metric = metrics.get(name)
    if not isinstance(metric, dict):
        return metric, ""
    return metric.get("value"), str(metric.get("unit"))


AIPERF = Layout(
    "aiperf",
    is_aiperf,
    columns(
        "start=start ttft=time_to_first_token latency=request_latency cached_tokens=cached_tokens",
        "input_tokens=input_sequence_length output_tokens=output_sequence_length",
        "error=error gaps=gaps",
    ),
    dict.fromkeys(("start", "ttft", "latency", "gaps"), "s"),
    spread=lambda: _measured_requests,
    own_units=True,
    exact=True,
    nothing="holds only records of the warm-up, so there is nothing to score",
)


NS = 1e-9
ESTIMATED = (
    "genai-perf exports no token counts: each response counts as one token, prompts are estimated"
)


def _genai_perf_run(experiment: Object) -> Run:
    rows = [_genai_perf_request(row) for row in objects_in(experiment.get("requests"))]
    estimated = any(row.pop("estimated") for row in rows)
    return Run(rows, remarks=(ESTIMATED,) if estimated else ())


def _genai_perf_request(row: Object) -> Object:
    moments = numbers_in(row.get("response_timestamps"))
    outputs = row.get("response_outputs")
    answers = [_answer_object(one) for one in outputs] if isinstance(outputs, list) else []
    # Timestamps of responses without text are dropped, because these responses contain no token.
    if len(answers) == len(moments):
        kept = [moment for moment, one in zip(moments, answers, strict=True) if _has_text(one)]
        moments = kept or moments
    usage = next((one for answer in answers if (one := inner(answer, "usage"))), None)
    read, written = inner(usage, "prompt_tokens"), inner(usage, "completion_tokens")
    start = numbers_in([row.get("timestamp")])
    since = start[0] if start else 0.0
    return request(
        {key: value for key, value in row.items() if key != "timestamp"},
        start=since * NS if start else None,
        ttft=(moments[0] - since) * NS if moments else None,
        latency=(moments[-1] - since) * NS if moments else None,
        input_tokens=estimated_tokens(_stored_prompt(row.get("request_inputs")))
        if read is None
        else read,
        output_tokens=len(moments) if written is None else written,
        gaps=[(after - at) * NS for at, after in pairwise(moments)],
        estimated=read is None or written is None,
    )


def _answer_object(output: Any) -> Any:
    """Return a response as an object: a chunk of OpenAI's API, or an answer of Triton."""
    text = inner(output, "response")
    return _json_or_empty(text.strip().removeprefix("data:")) if isinstance(text, str) else output


def _json_or_empty(text: str) -> Any:
    try:
        return parsed(text.encode(), "")
    except DataError:
        return {}


def _has_text(answer: Any) -> bool:
    choices = objects_in(inner(answer, "choices"))
    texts = [inner(answer, "text_output"), *(inner(choice, "text") for choice in choices)]
    for choice in choices:
        texts += [inner(choice, part, "content") for part in ("delta", "message")]
        texts += [inner(choice, "delta", name) for name in ("reasoning_content", "reasoning")]
    return any(texts)


def _stored_prompt(inputs: Any) -> str:
    payload = inner(inputs, "payload")
    found = _json_or_empty(payload) if isinstance(payload, str) else inputs
    prompt = first_of(found, "messages", "prompt", "text_input")
    return "" if prompt is None else text_of(prompt)


GENAI_PERF = layout(
    "genai-perf",
    lambda item: any("requests" in one for one in objects_in(item.get("experiments"))),
    lambda items, where: [
        _genai_perf_run(one) for item in items for one in objects_in(item.get("experiments"))
    ],
)


ENDS = {"successful": None, "errored": "failed", "incomplete": "unfinished"}


def _is_guidellm(item: Record) -> bool:
    return any(
        isinstance(inner(run, "requests", end), list)
        for run in objects_in(item.get("benchmarks"))
        for end in ENDS
    )


def _guidellm_run(run: Object) -> Run:
    found = [
        _guidellm_request(row, status)
        for end, status in ENDS.items()
        for row in objects_in(inner(run, "requests", end))
    ]
    counts = inner(run, "metrics", "request_totals"), inner(run, "request_totals")
    totals = [count for one in counts if type(count := inner(one, "successful")) is int]
    return Run(found, totals[0] if totals else None)


def _guidellm_request(row: Object, status: str | None) -> Object:
    timings = inner(row, "info", "timings")
    start = first_of(row, "request_start_time", "start_time")
    start = inner(timings, "request_start") if start is None else start
    end = first_of(row, "request_end_time", "end_time")
    end = inner(timings, "request_end") if end is None else end
    first = row.get("first_token_time")
    first = (
        first_of(timings, "first_token_iteration", "first_iteration") if first is None else first
    )
    latency = row.get("request_latency")
    ttft = scaled(row.get("time_to_first_token_ms"), 1e-3)
    return request(
        row,
        start=start,
        ttft=time_difference(first, start) if ttft is None else ttft,
        latency=None if status else time_difference(end, start) if latency is None else latency,
        input_tokens=_guidellm_count(row, "prompt_tokens", "input_metrics"),
        output_tokens=_guidellm_count(row, "output_tokens", "output_metrics"),
        status=status,
        request_id=row.get("request_id"),
    )


def _guidellm_count(row: Object, name: str, metrics: str) -> Any:
    count = row.get(name)
    return first_of(row.get(metrics), "total_tokens", "text_tokens") if count is None else count


GUIDELLM = layout(
    "guidellm",
    _is_guidellm,
    lambda items, where: [
        _guidellm_run(run) for item in items for run in objects_in(item.get("benchmarks"))
    ],
)


def _inference_perf_request(row: Object) -> Object:
    info = inner(row, "info")
    answer = inner(info, "response_metrics")
    output = inner(answer, "output_tokens")
    lists = (inner(answer, "output_token_times"), inner(info, "output_token_times"))
    times = next(filter(None, map(numbers_in, (*lists, inner(answer, "chunk_times")))), [])
    output = inner(info, "output_tokens") if output is None else output
    read = inner(info, "request_metrics", "text", "input_tokens")
    start = row.get("start_time")
    known = info if isinstance(info, dict) else {}
    texts = {"request", "response"}
    return request(
        {**known, **{key: value for key, value in row.items() if key not in texts}},
        start=start,
        ttft=time_difference(times[0], start) if times else None,
        latency=time_difference(row.get("end_time"), start),
        input_tokens=inner(info, "input_tokens") if read is None else read,
        output_tokens=output,
        cached_tokens=inner(answer, "server_usage", "prompt_tokens_details", "cached_tokens"),
        error=row.get("error"),
        gaps=[after - at for at, after in pairwise(times)] if len(times) == output else None,
    )


INFERENCE_PERF = layout(
    "inference-perf",
    has_all("start_time", "end_time", "request", "info"),
    lambda items, where: [Run(list(map(_inference_perf_request, items)))],
)


MOST_USERS = 100_000


def _untimed_request(row: Object, ttft: str, latency: str, count: str) -> Object:
    """Return a request of LLMPerf or genai-bench from the fields that the arguments name."""
    return request(
        row,
        start=first_of(row, "start_time", "request_start_time", "sample_time"),
        ttft=row.get(ttft),
        latency=row.get(latency),
        input_tokens=row.get(f"{count}_input_tokens"),
        output_tokens=row.get(f"{count}_output_tokens"),
        error=row.get("error_code"),
    )


def _llmperf(objects: list[Object], where: str) -> list[Run]:
    names = ("ttft_s", "end_to_end_latency_s", "number")
    found = [_untimed_request(row, *names) for row in objects]
    return [Run(found, remarks=_with_closed_loop_starts(found, 1, "LLMPerf"))]


def _genai_bench(item: Object) -> Run:
    rows = objects_in(item["individual_request_metrics"])
    found = [_untimed_request(row, "ttft", "e2e_latency", "num") for row in rows]
    totals = inner(item, "aggregated_metrics")
    users, completed = inner(totals, "num_concurrency"), inner(totals, "num_completed_requests")
    known = type(users) in (int, float) and 1 <= users <= MOST_USERS
    remarks = _with_closed_loop_starts(found, int(users) if known else 1, "genai-bench")
    return Run(found, completed if type(completed) is int else None, remarks)


def _with_closed_loop_starts(requests: list[Object], users: int, tool: str) -> tuple[str, ...]:
    """Set missing start times as if ``users`` users had sent the requests in closed loops.

    Each user sends a request as soon as the user's previous request has been answered. The requests
    are sent in the order of the file, each by the first user who is free. A request of unknown
    duration takes no time. The function returns a remark about the computed start times. If some
    request has a start time, the function changes nothing and returns ().
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
    "llmperf", has_all("number_input_tokens", "number_output_tokens", "error_code"), _llmperf
)
GENAI_BENCH = layout(
    "genai-bench",
    lambda item: isinstance(item.get("individual_request_metrics"), list),
    lambda objects, where: [_genai_bench(item) for item in objects],
)


TOOLS: tuple[Layout, ...] = (*(AIPERF, GUIDELLM, INFERENCE_PERF, LLMPERF, GENAI_BENCH, GENAI_PERF),)
