"""OpenTelemetry's spans of model calls, by its conventions for generative AI.

Spans with ``gen_ai.usage.input_tokens`` and ``gen_ai.usage.output_tokens`` (before 1.27
``prompt_tokens`` and ``completion_tokens``), as the page on spans of
open-telemetry/semantic-conventions has them; the rest is no request. As OTLP's JSON, a batch a line
or in a file (``resourceSpans``), or a span a line, its attributes an object or OTLP's list. The
client is ``user.id`` or ``enduser.id``; ``--clients-from`` names any other attribute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairbench.files.times import Nanoseconds
from fairbench.workloads.traces.format import Record
from fairbench.workloads.traces.formats.flattened import Flattened, first_given, inner


def _recognise(first: Record) -> bool:
    if "resourceSpans" in first:
        return True
    found = _attributes(first.get("attributes"))
    return any(key.startswith("gen_ai.") for key in found)


def _requests(record: Record) -> Iterator[Mapping[str, Any] | None]:
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
    for resource in _listed(record["resourceSpans"]):
        shared = _attributes(inner(resource, "resource", "attributes"))
        for scope in _listed(resource.get("scopeSpans")):
            for span in _listed(scope.get("spans")):
                yield shared | _attributes(span.get("attributes")), span


def _listed(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list; nothing for other values."""
    found = value if isinstance(value, list) else []
    yield from (one for one in found if isinstance(one, Mapping))


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object, or OTLP's list of typed values, as a dictionary; empty for others."""
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items()}
    found = {}
    for one in _listed(value):
        typed = one.get("value")
        if isinstance(typed, Mapping) and typed:
            found[str(one.get("key"))] = next(iter(typed.values()))
    return found


OTEL = Flattened("otel", _recognise, _requests)
