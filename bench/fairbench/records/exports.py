"""Logs and exports of gateways, tracing tools and servers.

A layout lists a tool's own columns; fields that it does not list are found by common names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from fairbench.files.json_text import inner, objects_in
from fairbench.files.times import (
    Nanoseconds,
    duration_s,
    is_missing,
    is_number,
    nanoseconds,
    number_of,
    unit_of,
    zoned_moment_of,
)
from fairbench.records.layout import Layout, Object, Record, Run, Spread, first_given, has_all
from fairbench.records.names import OWN, cell_of


def _own(**fields: Any) -> Object:
    return {f"{OWN}{name}": value for name, value in fields.items()}


def _known(*fields: str) -> dict[str, str]:
    return {name: f"{OWN}{name}" for name in fields}


def _uncached(record: Record) -> bool:
    """Return whether an answer came from a server, not from the gateway's own cache."""
    hit = first_given(record.get("cache_hit"), record.get("cached"), record.get("cacheHit"))
    copied = record.get("cache_reference_id")  # of Helicone: the request that was answered first
    return str(hit).strip().lower() not in ("true", "hit", "1", "yes") and is_missing(copied)


_KEY = "metadata.user_api_key_"
# LiteLLM's standard payload and its table of spend: docs.litellm.ai, "StandardLoggingPayload
# Specification", and LiteLLM_SpendLogs. The client is the end user, or else the user, the team or
# the key; ``default_user_id`` stands for nobody.
LITELLM = Layout(
    "litellm",
    has_all("startTime", "endTime", "prompt_tokens", "completion_tokens", "call_type"),
    {
        "start": "startTime",
        "end": "endTime",
        "first_token": "completionStartTime",
        "client": (
            *("end_user", "user", "team_id", f"{_KEY}end_user_id", f"{_KEY}user_id"),
            *("api_key", f"{_KEY}team_id", f"{_KEY}alias", f"{_KEY}hash"),
        ),
        "input_tokens": "prompt_tokens",
        "output_tokens": "completion_tokens",
        "cached_tokens": (
            "metadata.usage_object.prompt_tokens_details.cached_tokens",
            "metadata.usage_object.cache_read_input_tokens",
        ),
        "max_tokens": "model_parameters.max_tokens",
        "session": ("session_id", "trace_id"),
        "request_id": ("request_id", "id"),
        "text": "messages",
    },
    keep=_uncached,
)

_PROJECT = ("extra.metadata.thread_id", "extra.metadata.session_id")
# Runs of LangSmith. Their ``session_id`` is the project, not a conversation.
LANGSMITH = Layout(
    "langsmith",
    lambda first: "run_type" in first and {"start_time", "end_time"} <= first.keys(),
    {
        "start": "start_time",
        "end": "end_time",
        "first_token": "first_token_time",
        "input_tokens": ("prompt_tokens", "usage_metadata.input_tokens"),
        "output_tokens": ("completion_tokens", "usage_metadata.output_tokens"),
        "cached_tokens": (
            "prompt_token_details.cache_read",
            "usage_metadata.input_token_details.cache_read",
        ),
        "client": tuple(
            f"{where}{name}"
            for where in ("extra.metadata.", "metadata.", "")
            for name in ("user_id", "user", "client", "tenant", "tenant_name", "customer_id")
        ),
        "session": (
            *_PROJECT,
            *("extra.metadata.conversation_id", "metadata.thread_id", "metadata.session_id"),
            *("thread_id", "trace_id"),
        ),
        "span_kind": "run_type",
        "span_id": "id",
        "parent_id": "parent_run_id",
        "request_id": "id",
    },
    events=True,
)


def _is_langfuse(first: Record) -> bool:
    if "observations" in first and _is_langfuse(next(iter(objects_in(first["observations"])), {})):
        return True
    typed = str(first.get("type")).upper() in ("SPAN", "GENERATION", "EVENT", "AGENT", "TOOL")
    parent = {"parent_observation_id", "parentObservationId", "trace_id", "traceId"}
    return typed and bool(parent & first.keys())


def _observations(record: Record, where: str) -> Iterator[Object]:
    """Yield an observation, or those in a trace with the trace's user and session."""
    if "observations" not in record:
        yield dict(record)
    for one in objects_in(record.get("observations")):
        yield {**one, "trace": record}


def _details(*names: str) -> tuple[str, ...]:
    return tuple(f"{one}.{name}" for one in ("usage_details", "usageDetails") for name in names)


# Observations of Langfuse, alone or in their traces: generations are requests.
LANGFUSE = Layout(
    "langfuse",
    _is_langfuse,
    {
        "start": ("start_time", "startTime"),
        "end": ("end_time", "endTime"),
        "first_token": ("completion_start_time", "completionStartTime"),
        "ttft": ("time_to_first_token", "timeToFirstToken"),
        "latency": "latency",
        "input_tokens": (
            *("usage_details.input", "usageDetails.input", "usage.input", "promptTokens"),
            *("prompt_tokens", "inputUsage", "input_usage"),
        ),
        "output_tokens": (
            *("usage_details.output", "usageDetails.output", "usage.output", "completionTokens"),
            *("completion_tokens", "outputUsage", "output_usage"),
        ),
        "total_tokens": (
            *("usage_details.total", "usageDetails.total", "usage.total", "totalTokens"),
            *("total_tokens", "totalUsage", "total_usage"),
        ),
        "cached_tokens": _details(
            "input_cached_tokens", "cache_read_input_tokens", "input_cache_read"
        ),
        "written_tokens": _details("cache_creation_input_tokens", "input_cache_creation"),
        "reasoning_tokens": _details(
            "output_reasoning_tokens", "output_reasoning", "reasoning_tokens"
        ),
        "status": "level",
        "client": ("user_id", "userId", "trace.user_id", "trace.userId", "metadata.user_id"),
        "session": ("session_id", "sessionId", "trace.session_id", "trace.sessionId"),
        "span_kind": "type",
        "span_id": "id",
        "parent_id": ("parent_observation_id", "parentObservationId"),
        "request_id": "id",
    },
    dict.fromkeys(("ttft", "latency"), "s"),
    spread=lambda: _observations,
    events=True,
)

_HELICONE = ("request_created_at", "response_created_at", "request_user_id", "response_status")
HELICONE = Layout(
    "helicone",
    lambda first: "delay_ms" in first and any(one in first for one in _HELICONE),
    {
        "start": ("request_created_at", "created_at"),
        "end": "response_created_at",
        "latency": "delay_ms",
        "delay": "",
        "ttft": "time_to_first_token",
        "client": ("request_user_id", "user_id", "request_properties.Helicone-User-Id"),
        "session": (
            *("session_id", "request_properties.Helicone-Session-Id", "helicone_session_id"),
            "properties.Helicone-Session-Id",
        ),
        "cached_tokens": "prompt_cache_read_tokens",
        "written_tokens": "prompt_cache_write_tokens",
        "status": "response_status",
        "request_id": "request_id",
    },
    {"ttft": "ms"},
    keep=_uncached,
)

_GENERATION = frozenset({"generation_time", "generation_time_ms"})
# OpenRouter's activity: counts of the model's own tokenizer come first.
OPENROUTER = Layout(
    "openrouter",
    lambda first: (
        "created_at" in first
        and (
            "native_tokens_prompt" in first
            or ("tokens_prompt" in first and not _GENERATION.isdisjoint(first))
        )
    ),
    {
        "start": "created_at",
        "latency": ("generation_time", "generation_time_ms", "latency"),
        "input_tokens": ("native_tokens_prompt", "tokens_prompt"),
        "output_tokens": ("native_tokens_completion", "tokens_completion"),
        "cached_tokens": ("native_tokens_cached", "tokens_cached"),
        "client": ("external_user", "user", "user_id", "api_key_name", "app_name", "app_id"),
        "request_id": ("generation_id", "id"),
    },
    {"latency": "ms"},
)

# Cloudflare's AI Gateway: answers from its cache reached no server.
CLOUDFLARE = Layout(
    "cloudflare",
    has_all("created_at", "duration", "tokens_in", "tokens_out"),
    {
        "start": "created_at",
        "latency": "duration",
        "input_tokens": "tokens_in",
        "output_tokens": "tokens_out",
        "client": tuple(
            f"metadata.{name}" for name in ("user", "user_id", "userId", "client", "tenant", "team")
        ),
        "status": "success",
    },
    {"latency": "ms"},
    keep=_uncached,
)


def _placed(record: Record, end: Any, length: Any) -> Object:
    """Return the start and end of a request that was logged at its end, after a duration (s)."""
    start, end = _times(end, length)
    return {**record, **_own(start=start, end=end)}


def _times(end: Any, length: Any) -> tuple[Any, Any]:
    """Return the start and end of a request; both are the end if either cannot be read."""
    told_s, number = duration_s(length), number_of(length)
    length_s = told_s if told_s is not None else number
    try:
        if length_s is None:
            return end, end
        if is_number(end):
            end_ns = nanoseconds(end, unit_of(end))
            return Nanoseconds(end_ns - nanoseconds(length_s, "s")), Nanoseconds(end_ns)
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
    """Return a spread of requests that are logged at their end, with their durations (s)."""

    def requests(record: Record, where: str) -> Iterator[Object]:
        yield _placed(
            record, first_given(*(record.get(name) for name in times)), record.get(length)
        )

    return lambda: requests


NGINX = Layout(
    "nginx", _is_nginx, _known("start", "end"), spread=_logged_at_end(_NGINX_TIMES, "request_time")
)

# Envoy's access log: %START_TIME% and %DURATION%, which is in milliseconds.
ENVOY = Layout(
    "envoy",
    lambda first: (
        {"start_time", "duration"} <= first.keys()
        and bool({"response_code", "response_flags", "upstream_service_time"} & first.keys())
    ),
    {"start": "start_time", "latency": "duration", "request_id": ("x-request-id", "request_id")},
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
    {
        **_known("start", "end"),
        "input_tokens": ("gen_ai.usage.input_tokens", "llm.request.tokens"),
        "output_tokens": ("gen_ai.usage.output_tokens", "llm.response.tokens"),
        "client": ("jwt.sub", "user.id", "user", "apikey.user", "api_key.user", "src.addr"),
        "session": "gen_ai.conversation.id",
        "status": "http.status",
        "span_kind": "gen_ai.operation.name",
    },
    spread=_logged_at_end(_AGENT_TIMES, "duration"),
)


def _vidur_runs(objects: list[Object], where: str) -> list[Run]:
    """Return the requests of Vidur; an arrival is the sum of the delays of all earlier requests.

    Vidur writes requests in the order in which they ended.
    """
    ids = [number_of(one.get("Request Id")) for one in objects]
    order = sorted(range(len(objects)), key=lambda row: (ids[row] or 0, row))
    clock_s, rows = 0.0, []
    for row in order:
        clock_s += number_of(objects[row].get("request_inter_arrival_delay")) or 0.0
        at_s = objects[row].get("arrived_at")
        rows.append({**objects[row], **_own(start=clock_s if is_missing(at_s) else at_s)})
    return [Run(rows)]


# Vidur's request_metrics.csv, in seconds.
VIDUR = Layout(
    "vidur",
    has_all("request_e2e_time", "request_num_prefill_tokens", "request_num_decode_tokens"),
    {
        **_known("start"),
        "ttft": "prefill_e2e_time",
        "latency": "request_e2e_time",
        "input_tokens": "request_num_prefill_tokens",
        "output_tokens": "request_num_decode_tokens",
        "request_id": "Request Id",
    },
    dict.fromkeys(("start", "ttft", "latency"), "s"),
    runs=_vidur_runs,
)

# Amazon Bedrock's log of model invocations.
BEDROCK = Layout(
    "bedrock",
    has_all("timestamp", "requestId", "modelId", "input", "output"),
    {
        "start": "timestamp",
        "client": ("requestMetadata.user", "requestMetadata.tenant", "identity.arn"),
        "input_tokens": "input.inputTokenCount",
        "output_tokens": "output.outputTokenCount",
        "cached_tokens": "input.cacheReadInputTokenCount",
        "written_tokens": "input.cacheWriteInputTokenCount",
        "latency": ("output.outputBodyJson.metrics.latencyMs",),
        "request_id": "requestId",
    },
    {"latency": "ms"},
)

_USAGE = "message.usage."


def _is_transcript(first: Record) -> bool:
    return isinstance(cell_of(first, f"{_USAGE}output_tokens"), int) and "sessionId" in first


# Transcripts of coding agents: a line for each block of an answer, with the usage of the answer.
TRANSCRIPT = Layout(
    "transcript",
    _is_transcript,
    {
        "start": "timestamp",
        "session": "sessionId",
        "client": ("userId", "user_id", "user"),
        "input_tokens": f"{_USAGE}input_tokens",
        "output_tokens": f"{_USAGE}output_tokens",
        "cached_tokens": f"{_USAGE}cache_read_input_tokens",
        "written_tokens": f"{_USAGE}cache_creation_input_tokens",
        "request_id": ("requestId", "message.id"),
    },
    events=True,
)


def _attributes(value: Any) -> Object:
    """Return an object, or OTLP's list of typed values, as a dictionary; empty for other values."""
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items()}
    found = {}
    for one in objects_in(value):
        typed = one.get("value")
        if isinstance(typed, Mapping) and typed:
            found[str(one.get("key"))] = next(iter(typed.values()))
    return found


def _is_otel(first: Record) -> bool:
    if "resourceSpans" in first:
        return True
    return any(key.startswith("gen_ai.") for key in _attributes(first.get("attributes")))


def _otel_requests(record: Record, where: str) -> Iterator[Object]:
    """Yield the spans of a record, by the conventions for generative AI.

    Spans with ``gen_ai.usage.input_tokens`` and ``gen_ai.usage.output_tokens`` (before 1.27
    ``prompt_tokens`` and ``completion_tokens``) are requests, as described on the page on spans of
    open-telemetry/semantic-conventions. A record is a batch of OTLP's JSON (``resourceSpans``), or
    a span whose attributes are an object or OTLP's list. The client is ``user.id`` or
    ``enduser.id``; ``--clients-from`` names any other attribute.
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
                client=first_given(attributes.get("user.id"), attributes.get("enduser.id")),
                input_tokens=(read or 0) if called else None,
                output_tokens=(written or 0) if called else None,
                cached_tokens=attributes.get("gen_ai.usage.cache_read.input_tokens"),
                ttft=_first_token_s(attributes),
                max_tokens=attributes.get("gen_ai.request.max_tokens"),
                session=first_given(
                    attributes.get("gen_ai.conversation.id"), attributes.get("session.id")
                ),
                span_kind=first_given(
                    attributes.get("gen_ai.operation.name"),
                    attributes.get("traceloop.span.kind"),
                    attributes.get("openinference.span.kind"),
                ),
                span_id=first_given(
                    span.get("spanId"), span.get("span_id"), inner(context, "span_id")
                ),
                parent_id=first_given(
                    *(span.get(name) for name in ("parentSpanId", "parent_span_id", "parent_id"))
                ),
                error=attributes.get("error.type"),
                status=first_given(inner(span, "status", "code"), span.get("status_code")),
            ),
        }


def _first_token_s(attributes: Mapping[str, Any]) -> Any:
    """Return the time to the first token of a span (s), under the names that servers use."""
    names = ("gen_ai.server.time_to_first_token", "gen_ai.latency.time_to_first_token")
    found = (attributes.get(name) for name in (*names, "gen_ai.response.time_to_first_chunk"))
    return first_given(*found)


def _unix_ns(span: Mapping[str, Any], which: str) -> Any:
    """Return an OTLP time in nanoseconds; a value that is not a number stays unchanged."""
    value = span.get(f"{which}TimeUnixNano")
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return Nanoseconds(value)
    return Nanoseconds(value) if type(value) is int else value


def _usage(attributes: Mapping[str, Any], *names: str) -> Any:
    """Return a token count under the first of the names that is present, or OpenInference's."""
    found = (attributes.get(f"gen_ai.usage.{name}_tokens") for name in names)
    return first_given(*found, attributes.get(f"llm.token_count.{names[-1]}"))


def _spans(record: Record) -> Iterator[tuple[Object, Mapping[str, Any]]]:
    """Yield each span of a record with its attributes and those of its resource and scope."""
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
    _is_otel,
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

_LLM = "attributes.llm.token_count."


def _is_openinference(first: Record) -> bool:
    kind = cell_of(first, "attributes.openinference.span.kind")
    return kind is not None or cell_of(first, f"{_LLM}prompt") is not None


# Spans of OpenInference, as Phoenix exports them: attributes are nested or have dotted names.
OPENINFERENCE = Layout(
    "openinference",
    _is_openinference,
    {
        "start": "start_time",
        "end": "end_time",
        "input_tokens": f"{_LLM}prompt",
        "output_tokens": f"{_LLM}completion",
        "cached_tokens": f"{_LLM}prompt_details.cache_read",
        "total_tokens": f"{_LLM}total",
        "client": ("attributes.user.id", "attributes.metadata.user_id", "user_id"),
        "session": ("attributes.session.id", "session_id"),
        "span_kind": ("attributes.openinference.span.kind", "span_kind"),
        "span_id": ("context.span_id", "span_id"),
        "parent_id": ("parent_id", "parent_span_id"),
        "status": "status_code",
    },
    events=True,
)

FINISHED = "request.finished"


def _sglang_requests(record: Record, where: str) -> Iterator[Object]:
    """Yield the request of a line of ``--log-requests --log-requests-format json``.

    Lines ``request.finished`` (srt/utils/request_logger.py of sgl-project/sglang, 01bb912) are
    requests, which began ``out.meta_info.e2e_latency`` before the line's time. Lines from level 2
    on have the text, which level 2 shortens, so that only level 3 shows shared prefixes. No field
    identifies the client; ``--clients-from`` names one, such as ``obj.custom_labels.tenant``.
    """
    if record.get("event") == FINISHED:
        latency = inner(record, "out", "meta_info", "e2e_latency")
        yield _placed(record, record.get("timestamp"), latency)


_META = "out.meta_info."
SGLANG = Layout(
    "sglang",
    lambda first: str(first.get("event", "")).startswith("request.") and "rid" in first,
    {
        **_known("start", "end"),
        "input_tokens": f"{_META}prompt_tokens",
        "output_tokens": f"{_META}completion_tokens",
        "cached_tokens": f"{_META}cached_tokens",
        "ttft": (f"{_META}ttft", f"{_META}time_to_first_token"),
        "max_tokens": "obj.sampling_params.max_new_tokens",
        "text": "obj.text",
        "session": "obj.session_params.id",
        "request_id": "rid",
    },
    {"ttft": "s"},
    spread=lambda: _sglang_requests,
    exact=True,
)

# Conversations of WildChat: the hash of a conversation is its identity, not the list of its turns.
WILDCHAT = Layout(
    "wildchat",
    lambda first: "conversation_hash" in first and isinstance(first.get("conversation"), list),
    {"session": ("conversation_id", "conversation_hash"), "client": ("hashed_ip", "user_id")},
)

EXPORTS: tuple[Layout, ...] = (
    *(SGLANG, OPENINFERENCE, OTEL, LITELLM, LANGSMITH, LANGFUSE, HELICONE, OPENROUTER),
    *(CLOUDFLARE, NGINX, ENVOY, AGENTGATEWAY, VIDUR, BEDROCK, TRANSCRIPT, WILDCHAT),
)
