"""Logs and exports of gateways, tracing tools and servers.

Each layout lists the columns of one tool's format. For fields that a layout does not list, the
reader tries common column names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from fairbench.files.formats import inner
from fairbench.files.times import is_number, number_of, zoned_moment_of
from fairbench_logs.records import cells
from fairbench_logs.records.column_names import OWN, cell_of
from fairbench_logs.records.layout import (
    Layout,
    Object,
    Record,
    Run,
    Spread,
    columns,
    first_given,
    has_all,
    objects_in,
)


def _own(**fields: Any) -> Object:
    return {f"{OWN}{name}": value for name, value in fields.items()}


def _known(*fields: str) -> dict[str, tuple[str, ...]]:
    return {name: (f"{OWN}{name}",) for name in fields}


def _first_value(record: Mapping[str, Any], *names: str) -> Any:
    return first_given(*map(record.get, names))


def _uncached(record: Record) -> bool:
    """Return whether an answer came from a server, not from the gateway's cache."""
    hit = _first_value(record, "cache_hit", "cached", "cacheHit")
    # In Helicone's logs, ``cache_reference_id`` is the request whose stored answer was sent again.
    copied = record.get("cache_reference_id")
    return str(hit).strip().lower() not in ("true", "hit", "1", "yes") and cells.is_missing(copied)


# LiteLLM's standard payload (docs.litellm.ai, "StandardLoggingPayload Specification") and its table
# LiteLLM_SpendLogs name the client in columns that are tried in order: end user, user, team, key.
# LiteLLM's user ``default_user_id`` means that the client is unknown.
LITELLM = Layout(
    "litellm",
    has_all("startTime", "endTime", "prompt_tokens", "completion_tokens", "call_type"),
    columns(
        "start=startTime end=endTime first_token=completionStartTime",
        "client=end_user|user|team_id|metadata.user_api_key_{end_user_id,user_id}|api_key",
        "|metadata.user_api_key_{team_id,alias,hash}",
        "input_tokens=prompt_tokens output_tokens=completion_tokens",
        "cached_tokens=metadata.usage_object.prompt_tokens_details.cached_tokens",
        "|metadata.usage_object.cache_read_input_tokens",
        "max_tokens=model_parameters.max_tokens session=session_id|trace_id",
        "request_id=request_id|id text=messages",
    ),
    keep=_uncached,
)

# In runs of LangSmith, ``session_id`` identifies a project, not a conversation.
LANGSMITH = Layout(
    "langsmith",
    lambda first: "run_type" in first and {"start_time", "end_time"} <= first.keys(),
    columns(
        "start=start_time end=end_time first_token=first_token_time",
        "input_tokens=prompt_tokens|usage_metadata.input_tokens",
        "output_tokens=completion_tokens|usage_metadata.output_tokens",
        "cached_tokens={prompt,usage_metadata.input}_token_details.cache_read",
        "client={extra.metadata.,metadata.,}{user_id,user,client,tenant,tenant_name,customer_id}",
        "session=extra.metadata.{thread,session,conversation}_id|metadata.{thread,session}_id",
        "|thread_id|trace_id",
        "span_kind=run_type span_id=id parent_id=parent_run_id request_id=id",
    ),
    events=True,
)


def _is_langfuse(first: Record) -> bool:
    if "observations" in first and _is_langfuse(next(iter(objects_in(first["observations"])), {})):
        return True
    typed = str(first.get("type")).upper() in ("SPAN", "GENERATION", "EVENT", "AGENT", "TOOL")
    parent = {"parent_observation_id", "parentObservationId", "trace_id", "traceId"}
    return typed and bool(parent & first.keys())


def _observations(record: Record, where: str) -> Iterator[Object]:
    """Yield a lone observation unchanged; add a trace's record to each of its observations."""
    if "observations" not in record:
        yield dict(record)
    for one in objects_in(record.get("observations")):
        yield {**one, "trace": record}


# The tracing service Langfuse exports observations alone or inside traces. In Langfuse exports,
# observations of type GENERATION are requests.
LANGFUSE = Layout(
    "langfuse",
    _is_langfuse,
    columns(
        "start=start_time|startTime end=end_time|endTime",
        "first_token=completion_start_time|completionStartTime",
        "ttft=time_to_first_token|timeToFirstToken latency=latency",
        "input_tokens={usage_details,usageDetails,usage}.input|prompt{Tokens,_tokens}",
        "|input{Usage,_usage}",
        "output_tokens={usage_details,usageDetails,usage}.output|completion{Tokens,_tokens}",
        "|output{Usage,_usage}",
        "total_tokens={usage_details,usageDetails,usage}.total|total{Tokens,_tokens,Usage,_usage}",
        "cached_tokens={usage_details,usageDetails}"
        ".{input_cached_tokens,cache_read_input_tokens,input_cache_read}",
        "written_tokens={usage_details,usageDetails}"
        ".{cache_creation_input_tokens,input_cache_creation}",
        "reasoning_tokens={usage_details,usageDetails}"
        ".{output_reasoning_tokens,output_reasoning,reasoning_tokens}",
        "status=level client=user_id|userId|trace.user_id|trace.userId|metadata.user_id",
        "session=session_id|sessionId|trace.session_id|trace.sessionId span_kind=type",
        "span_id=id parent_id=parent_observation_id|parentObservationId request_id=id",
    ),
    dict.fromkeys(("ttft", "latency"), "s"),
    spread=lambda: _observations,
    events=True,
)

_HELICONE = ("request_created_at", "response_created_at", "request_user_id", "response_status")
HELICONE = Layout(
    "helicone",
    lambda first: "delay_ms" in first and any(one in first for one in _HELICONE),
    columns(
        "start=request_created_at|created_at end=response_created_at latency=delay_ms delay=",
        "ttft=time_to_first_token",
        "client=request_user_id|user_id|request_properties.Helicone-User-Id",
        "session=session_id|request_properties.Helicone-Session-Id|helicone_session_id",
        "|properties.Helicone-Session-Id",
        "cached_tokens=prompt_cache_read_tokens written_tokens=prompt_cache_write_tokens",
        "status=response_status request_id=request_id",
    ),
    {"ttft": "ms"},
    keep=_uncached,
)

_GENERATION = frozenset({"generation_time", "generation_time_ms"})
# In OpenRouter's activity log, token counts by the model's own tokenizer are preferred to
# normalized counts.
OPENROUTER = Layout(
    "openrouter",
    lambda first: (
        "created_at" in first
        and (
            "native_tokens_prompt" in first
            or ("tokens_prompt" in first and not _GENERATION.isdisjoint(first))
        )
    ),
    columns(
        "start=created_at latency=generation_time|generation_time_ms|latency",
        "input_tokens=native_tokens_prompt|tokens_prompt",
        "output_tokens=native_tokens_completion|tokens_completion",
        "cached_tokens=native_tokens_cached|tokens_cached",
        "client=external_user|user|user_id|api_key_name|app_name|app_id",
        "request_id=generation_id|id",
    ),
    {"latency": "ms"},
)

# Logs of Cloudflare's AI Gateway also contain requests that the gateway answered from its own
# cache. These requests are left out, because they did not reach a server.
CLOUDFLARE = Layout(
    "cloudflare",
    has_all("created_at", "duration", "tokens_in", "tokens_out"),
    columns(
        "start=created_at latency=duration input_tokens=tokens_in output_tokens=tokens_out",
        "client=metadata.{user,user_id,userId,client,tenant,team}",
        "status=success",
    ),
    {"latency": "ms"},
    keep=_uncached,
)


def _with_start(record: Record, end: Any, length: Any) -> Object:
    """Add start and end times to the record of a request that was logged when the request ended.

    ``length`` is the duration of the request: seconds, or a text with units.
    """
    start, end = _start_and_end(end, length)
    return {**record, **_own(start=start, end=end)}


def _start_and_end(end: Any, length: Any) -> tuple[Any, Any]:
    """Compute a request's start from its end and duration; return the start and the end.

    If ``end`` is not a time, ``end`` is returned twice, so that a later check reports it.
    """
    told_s, number = cells.duration_s(length), number_of(length)
    length_s = told_s if told_s is not None else number
    try:
        if length_s is None:
            return end, end
        if is_number(end):
            end_ns = cells.nanoseconds(end, cells.unit_of(end))
            return cells.Nanoseconds(end_ns - cells.nanoseconds(length_s, "s")), cells.Nanoseconds(
                end_ns
            )
        moment = zoned_moment_of(end)
        return (moment - timedelta(seconds=length_s)).isoformat(), moment.isoformat()
    except (ValueError, OverflowError):
        return end, end


_NGINX_TIMES = ("msec", "time_iso8601", "time_local", "@timestamp", "timestamp", "time")


def _is_nginx(first: Record) -> bool:
    timed = any(name in first for name in _NGINX_TIMES)
    own = {"remote_addr", "upstream_response_time", "time_iso8601", "time_local", "msec"}
    return timed and "request_time" in first and bool(own & first.keys())


def _logged_at_end(times: tuple[str, ...], length: str) -> Callable[[], Spread]:
    def spread_one(record: Record, where: str) -> Iterator[Object]:
        yield _with_start(record, _first_value(record, *times), record.get(length))

    return lambda: spread_one


NGINX = Layout(
    "nginx", _is_nginx, _known("start", "end"), spread=_logged_at_end(_NGINX_TIMES, "request_time")
)

# In the access log of the web server Caddy, ``ts`` is the time at which a request ended.
CADDY = Layout(
    "caddy",
    lambda first: (
        str(first.get("logger")).startswith("http.log.access")
        and {"ts", "duration"} <= first.keys()
    ),
    _known("start", "end"),
    spread=_logged_at_end(("ts",), "duration"),
)

# The access log of the proxy Envoy has %START_TIME%, and %DURATION% in milliseconds.
ENVOY = Layout(
    "envoy",
    lambda first: (
        {"start_time", "duration"} <= first.keys()
        and bool({"response_code", "response_flags", "upstream_service_time"} & first.keys())
    ),
    columns("start=start_time latency=duration request_id=x-request-id|request_id"),
    {"latency": "ms"},
)


def _is_agentgateway(first: Record) -> bool:
    scoped = first.get("scope") == "request" or "http.status" in first or "gateway" in first
    called = any(str(key).startswith(("gen_ai.", "llm.")) for key in first)
    return scoped and "duration" in first and called


_AGENT_TIMES = ("time", "timestamp", "ts", "@timestamp")


AGENTGATEWAY = Layout(
    "agentgateway",
    _is_agentgateway,
    _known("start", "end")
    | columns(
        "input_tokens=gen_ai.usage.input_tokens|llm.request.tokens",
        "output_tokens=gen_ai.usage.output_tokens|llm.response.tokens",
        "client=jwt.sub|user.id|user|apikey.user|api_key.user|src.addr",
        "session=gen_ai.conversation.id status=http.status span_kind=gen_ai.operation.name",
    ),
    spread=_logged_at_end(_AGENT_TIMES, "duration"),
)


def _vidur_runs(objects: list[Object], where: str) -> list[Run]:
    """Return the requests of a Vidur log, whose arrival times are sums of inter-arrival delays.

    Vidur writes requests in the order of their ends, so the requests are first sorted by id.
    """
    ids = [number_of(one.get("Request Id")) for one in objects]
    order = sorted(range(len(objects)), key=lambda row: (ids[row] or 0, row))
    clock_s, rows = 0.0, []
    for row in order:
        clock_s += number_of(objects[row].get("request_inter_arrival_delay")) or 0.0
        at_s = objects[row].get("arrived_at")
        rows.append({**objects[row], **_own(start=clock_s if cells.is_missing(at_s) else at_s)})
    return [Run(rows)]


# The simulator Vidur writes the file request_metrics.csv, with times in seconds.
VIDUR = Layout(
    "vidur",
    has_all("request_e2e_time", "request_num_prefill_tokens", "request_num_decode_tokens"),
    _known("start")
    | columns(
        "ttft=prefill_e2e_time latency=request_e2e_time",
        "input_tokens=request_num_prefill_tokens output_tokens=request_num_decode_tokens",
    )
    | {"request_id": ("Request Id",)},
    dict.fromkeys(("start", "ttft", "latency"), "s"),
    runs=_vidur_runs,
)

BEDROCK = Layout(
    "bedrock",
    has_all("timestamp", "requestId", "modelId", "input", "output"),
    columns(
        "start=timestamp client=requestMetadata.user|requestMetadata.tenant|identity.arn",
        "input_tokens=input.inputTokenCount output_tokens=output.outputTokenCount",
        "cached_tokens=input.cacheReadInputTokenCount",
        "written_tokens=input.cacheWriteInputTokenCount",
        "latency=output.outputBodyJson.metrics.latencyMs request_id=requestId",
    ),
    {"latency": "ms"},
)

# In transcripts of coding agents, each line is a part of an answer and repeats the token counts of
# the whole answer.
TRANSCRIPT = Layout(
    "transcript",
    lambda first: (
        isinstance(cell_of(first, "message.usage.output_tokens"), int) and "sessionId" in first
    ),
    columns(
        "start=timestamp session=sessionId client=userId|user_id|user",
        "input_tokens=message.usage.input_tokens output_tokens=message.usage.output_tokens",
        "cached_tokens=message.usage.cache_read_input_tokens",
        "written_tokens=message.usage.cache_creation_input_tokens",
        "request_id=requestId|message.id",
    ),
    events=True,
)


def _attributes(value: Any) -> Object:
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items()}
    found = {}
    for one in objects_in(value):
        typed = one.get("value")
        if isinstance(typed, Mapping) and typed:
            found[str(one.get("key"))] = next(iter(typed.values()))
    return found


def _otel_requests(record: Record, where: str) -> Iterator[Object]:
    """Yield the requests in a record of spans that follow OpenTelemetry's GenAI conventions.

    A request is a span with ``gen_ai.usage.input_tokens`` and ``gen_ai.usage.output_tokens``.
    Before release 1.27 of open-telemetry/semantic-conventions, the attributes were
    ``gen_ai.usage.prompt_tokens`` and ``gen_ai.usage.completion_tokens``. A record is a batch of
    OTLP's JSON (``resourceSpans``), or one span, whose attributes are an object or OTLP's list. The
    client is in ``user.id`` or ``enduser.id``; ``--clients-from`` names any other attribute.
    """
    for attributes, span in _spans(record):
        read = _usage(attributes, "input", "prompt")
        written = _usage(attributes, "output", "completion")
        called = read is not None or written is not None
        context = span.get("context")
        yield {
            **span,
            **attributes,
            **_own(
                start=first_given(_unix_ns(span, "start"), span.get("start_time")),
                end=first_given(_unix_ns(span, "end"), span.get("end_time")),
                client=_first_value(attributes, "user.id", "enduser.id"),
                input_tokens=(read or 0) if called else None,
                output_tokens=(written or 0) if called else None,
                cached_tokens=attributes.get("gen_ai.usage.cache_read.input_tokens"),
                ttft=_first_value(attributes, *_OTEL_TTFT),
                max_tokens=attributes.get("gen_ai.request.max_tokens"),
                session=_first_value(attributes, "gen_ai.conversation.id", "session.id"),
                span_kind=_first_value(attributes, *_OTEL_KINDS),
                span_id=first_given(
                    _first_value(span, "spanId", "span_id"), inner(context, "span_id")
                ),
                parent_id=_first_value(span, "parentSpanId", "parent_span_id", "parent_id"),
                error=attributes.get("error.type"),
                status=first_given(inner(span, "status", "code"), span.get("status_code")),
            ),
        }


_OTEL_KINDS = ("gen_ai.operation.name", "traceloop.span.kind", "openinference.span.kind")
_OTEL_TTFT = (
    *("gen_ai.server.time_to_first_token", "gen_ai.latency.time_to_first_token"),
    "gen_ai.response.time_to_first_chunk",
)


def _unix_ns(span: Mapping[str, Any], which: str) -> Any:
    """Return an OTLP time as ``Nanoseconds``, or unchanged if the time is not a number."""
    value = span.get(f"{which}TimeUnixNano")
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return cells.Nanoseconds(value)
    return cells.Nanoseconds(value) if type(value) is int else value


def _usage(attributes: Mapping[str, Any], *names: str) -> Any:
    known = (f"gen_ai.usage.{name}_tokens" for name in names)
    return _first_value(attributes, *known, f"llm.token_count.{names[-1]}")


def _spans(record: Record) -> Iterator[tuple[Object, Mapping[str, Any]]]:
    if "resourceSpans" not in record:
        yield _attributes(record.get("attributes")), record
        return
    for resource in objects_in(record["resourceSpans"]):
        shared = _attributes(inner(resource, "resource", "attributes"))
        for scope in objects_in(resource.get("scopeSpans")):
            for span in objects_in(scope.get("spans")):
                yield shared | _attributes(span.get("attributes")), span


OTEL = Layout(
    "otel",
    lambda first: (
        "resourceSpans" in first
        or any(key.startswith("gen_ai.") for key in _attributes(first.get("attributes")))
    ),
    _known(
        *("start", "end", "client", "input_tokens", "output_tokens", "cached_tokens", "ttft"),
        *("max_tokens", "session", "span_kind", "span_id", "parent_id", "error"),
        "status",
    ),
    {"ttft": "s"},
    spread=lambda: _otel_requests,
    exact=True,
    events=True,
)

_PHOENIX = ("attributes.openinference.span.kind", "attributes.llm.token_count.prompt")
# Phoenix exports spans of OpenInference with nested attributes or with dotted names.
OPENINFERENCE = Layout(
    "openinference",
    lambda first: any(cell_of(first, name) is not None for name in _PHOENIX),
    columns(
        "start=start_time end=end_time input_tokens=attributes.llm.token_count.prompt",
        "output_tokens=attributes.llm.token_count.completion",
        "cached_tokens=attributes.llm.token_count.prompt_details.cache_read",
        "total_tokens=attributes.llm.token_count.total",
        "client=attributes.user.id|attributes.metadata.user_id|user_id",
        "session=attributes.session.id|session_id",
        "span_kind=attributes.openinference.span.kind|span_kind span_id=context.span_id|span_id",
        "parent_id=parent_id|parent_span_id status=status_code",
    ),
    events=True,
)


def _sglang_requests(record: Record, where: str) -> Iterator[Object]:
    """Yield the request in a line that SGLang writes with ``--log-requests-format json``.

    Lines with the event ``request.finished`` (srt/utils/request_logger.py of sgl-project/sglang,
    01bb912) are requests. A request started ``out.meta_info.e2e_latency`` seconds before the
    timestamp of its log line. SGLang writes shortened prompts at log level 2, and whole prompts,
    which reveal shared prefixes, at log level 3. ``--clients-from`` names the field with the
    client, such as ``obj.custom_labels.tenant``.
    """
    if record.get("event") == "request.finished":
        latency = inner(record, "out", "meta_info", "e2e_latency")
        reason = inner(record, "out", "meta_info", "finish_reason")
        made = _with_start(record, record.get("timestamp"), latency)
        yield made if reason is None else {**made, "finish_reason": reason}


SGLANG = Layout(
    "sglang",
    lambda first: str(first.get("event", "")).startswith("request.") and "rid" in first,
    _known("start", "end")
    | columns(
        "input_tokens=out.meta_info.prompt_tokens output_tokens=out.meta_info.completion_tokens",
        "cached_tokens=out.meta_info.cached_tokens",
        "ttft=out.meta_info.ttft|out.meta_info.time_to_first_token",
        "max_tokens=obj.sampling_params.max_new_tokens text=obj.text",
        "session=obj.session_params.id request_id=rid",
    ),
    {"ttft": "s"},
    spread=lambda: _sglang_requests,
    exact=True,
)

# Each record of WildChat is a conversation with a hash and a list ``conversation`` of turns.
WILDCHAT = Layout(
    "wildchat",
    lambda first: "conversation_hash" in first and isinstance(first.get("conversation"), list),
    columns("session=conversation_id|conversation_hash client=hashed_ip|user_id"),
)

EXPORTS: tuple[Layout, ...] = (
    *(SGLANG, OPENINFERENCE, OTEL, LITELLM, LANGSMITH, LANGFUSE, HELICONE, OPENROUTER),
    *(CLOUDFLARE, NGINX, CADDY, ENVOY, AGENTGATEWAY, VIDUR, BEDROCK, TRANSCRIPT, WILDCHAT),
)
