"""Logs of gateways and servers: LiteLLM, OpenTelemetry and SGLang, with nested fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairbench.files.json_text import Place, inner, objects_in
from fairbench.files.times import Nanoseconds, nanoseconds, unit_of
from fairbench.workloads.traces.cells import OWN
from fairbench.workloads.traces.columns import Columns
from fairbench.workloads.traces.format import Asked, PlacedRow, Record
from fairbench.workloads.traces.rows import FIELDS

FOUND = {field: f"{OWN}{field}" for field in FIELDS}
"""Names of fields in addition to the record's own keys, which ``--map`` can use."""


@dataclass(frozen=True)
class Flattened:
    """A format of nested records.

    ``requests`` yields a record's requests: the known ones of ``FIELDS``, together with other keys
    that a user may name, or None for a request that is left out.
    """

    name: str
    recognise: Callable[[Record], bool]
    requests: Callable[[Record], Iterator[Mapping[str, Any] | None]]

    def fits(self, first: Record) -> bool:
        return self.recognise(first)

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]:
        columns = Columns(asked, FOUND)
        for where, record in records:
            for number, found in enumerate(self.requests(record), start=1):
                place = where if number == 1 else f"{where}, request {number}"
                if found is None:
                    yield PlacedRow(place, None)
                    continue
                own = {key: found.get(field) for field, key in FOUND.items()}
                yield PlacedRow(place, columns.row({**record, **found, **own}, place))
        columns.check_named()


def first_given(*values: Any) -> Any:
    """Return the first value that is present and not empty."""
    return next((value for value in values if value not in (None, "", [], {})), None)


NEEDS = frozenset({"startTime", "endTime", "prompt_tokens", "completion_tokens", "call_type"})
OWNERS = ("end_user", "user", "team_id", "api_key")
KEYS = ("end_user_id", "user_id", "team_id", "alias", "hash")


def _litellm_requests(record: Record) -> Iterator[Mapping[str, Any] | None]:
    """Yield the request of LiteLLM's standard payload or spend table.

    The fields are those of docs.litellm.ai, "StandardLoggingPayload Specification", and of
    LiteLLM_SpendLogs. The client is the end user, or else the user, the team or the key. Answers
    from LiteLLM's own cache never reached a server and are left out.
    """
    if str(record.get("cache_hit")).lower() == "true":
        yield None
        return
    metadata = [inner(record, "metadata", f"user_api_key_{name}") for name in KEYS]
    yield {
        "time": record.get("startTime"),
        "end": record.get("endTime"),
        "client": first_given(*(record.get(name) for name in OWNERS), *metadata),
        "input_tokens": record.get("prompt_tokens"),
        "output_tokens": record.get("completion_tokens"),
        "max_tokens": inner(record, "model_parameters", "max_tokens"),
        "session": first_given(record.get("session_id"), record.get("trace_id")),
        "text": first_given(record.get("messages")),
    }


LITELLM = Flattened("litellm", NEEDS.issubset, _litellm_requests)


def _is_otel(first: Record) -> bool:
    if "resourceSpans" in first:
        return True
    found = _attributes(first.get("attributes"))
    return any(key.startswith("gen_ai.") for key in found)


def _otel_requests(record: Record) -> Iterator[Mapping[str, Any] | None]:
    """Yield the requests in spans of model calls, by the conventions for generative AI.

    Spans with ``gen_ai.usage.input_tokens`` and ``gen_ai.usage.output_tokens`` (before 1.27
    ``prompt_tokens`` and ``completion_tokens``) are requests, as described on the page on spans of
    open-telemetry/semantic-conventions. A record is a batch of OTLP's JSON (``resourceSpans``), or
    a span whose attributes are an object or OTLP's list. The client is ``user.id`` or
    ``enduser.id``; ``--clients-from`` names any other attribute.
    """
    for attributes, span in _spans(record):
        read = _usage(attributes, "input", "prompt")
        written = _usage(attributes, "output", "completion")
        if read is None and written is None:
            continue
        yield {
            **attributes,
            "time": first_given(_unix_ns(span, "start"), span.get("start_time")),
            "end": first_given(_unix_ns(span, "end"), span.get("end_time")),
            "client": first_given(attributes.get("user.id"), attributes.get("enduser.id")),
            "input_tokens": read or 0,
            "output_tokens": written or 0,
            "max_tokens": attributes.get("gen_ai.request.max_tokens"),
            "session": attributes.get("gen_ai.conversation.id"),
        }


def _unix_ns(span: Mapping[str, Any], which: str) -> Any:
    """Return an OTLP time in nanoseconds; a value that is not a number stays unchanged."""
    value = span.get(f"{which}TimeUnixNano")
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return Nanoseconds(value)
    return Nanoseconds(value) if type(value) is int else value


def _usage(attributes: Mapping[str, Any], *names: str) -> Any:
    """Return a token count under the first of the names that is present."""
    return first_given(*(attributes.get(f"gen_ai.usage.{name}_tokens") for name in names))


def _spans(record: Record) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """Yield each span of a record with its attributes and those of its resource and scope."""
    if "resourceSpans" not in record:
        yield _attributes(record.get("attributes")), record
        return
    for resource in objects_in(record["resourceSpans"]):
        shared = _attributes(inner(resource, "resource", "attributes"))
        for scope in objects_in(resource.get("scopeSpans")):
            for span in objects_in(scope.get("spans")):
                yield shared | _attributes(span.get("attributes")), span


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object, or OTLP's list of typed values, as a dictionary; empty for other values."""
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items()}
    found = {}
    for one in objects_in(value):
        typed = one.get("value")
        if isinstance(typed, Mapping) and typed:
            found[str(one.get("key"))] = next(iter(typed.values()))
    return found


OTEL = Flattened("otel", _is_otel, _otel_requests)


FINISHED = "request.finished"


def _sglang_requests(record: Record) -> Iterator[Mapping[str, Any] | None]:
    """Yield the request of a line of ``--log-requests --log-requests-format json``.

    Lines ``request.finished`` (srt/utils/request_logger.py of sgl-project/sglang, 01bb912) are
    requests, which began ``out.meta_info.e2e_latency`` before the line's time. Lines from level 2
    on have the text, which level 2 shortens, so that only level 3 shows shared prefixes. No field
    identifies the client; ``--clients-from`` names one, such as ``obj.custom_labels.tenant``.
    """
    if record.get("event") != FINISHED:
        return
    meta = inner(record, "out", "meta_info")
    time, end = _times(record.get("timestamp"), inner(meta, "e2e_latency"))
    yield {
        "time": time,
        "end": end,
        "input_tokens": inner(meta, "prompt_tokens"),
        "output_tokens": inner(meta, "completion_tokens"),
        "max_tokens": inner(record, "obj", "sampling_params", "max_new_tokens"),
        "text": inner(record, "obj", "text"),
        "session": inner(record, "obj", "session_params", "id"),
    }


def _times(end: Any, latency_s: Any) -> tuple[Any, Any]:
    """Return the start and end of a request; both are the end if either cannot be read."""
    try:
        end_ns = nanoseconds(end, unit_of(end))
        return Nanoseconds(end_ns - nanoseconds(latency_s, "s")), Nanoseconds(end_ns)
    except (ValueError, OverflowError):
        return end, end


SGLANG = Flattened(
    "sglang",
    lambda first: str(first.get("event", "")).startswith("request.") and "rid" in first,
    _sglang_requests,
)
