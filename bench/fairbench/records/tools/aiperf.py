"""Records of aiperf (``profile_export.jsonl``) as flat objects with times in seconds.

A line has ``metadata`` (epoch nanoseconds, client and times), ``metrics`` (each a value with its
unit) and ``error``, as aiperf's "Working with Profile Export Files" describes them; metrics are
named as in its "Metrics Reference" (0.3 to 0.13).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairbench.errors import DataError, shortened
from fairbench.records.layout import Layout, Object, Record

UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0}
START = "request_start_ns"
# Times by metric, then the metrics that may hold each count, best first.
TIMES = ("time_to_first_token", "request_latency")
COUNTS = {
    "input_sequence_length": ("input_sequence_length", "error_isl"),
    "output_sequence_length": ("output_sequence_length", "output_token_count"),
    "cached_tokens": ("usage_prompt_cache_read_tokens", "usage_prompt_cached_tokens"),
}


def is_aiperf(item: Record) -> bool:
    """Return whether an object is a record of aiperf."""
    metadata = item.get("metadata")
    return isinstance(metadata, dict) and START in metadata and "metrics" in item


def _measured_requests(item: Record, where: str) -> Iterator[Object]:
    """Yield the request of a record, unless it belongs to the warm-up.

    Raises DataError naming the line that is not such a record.
    """
    if not is_aiperf(item):
        raise DataError(f"{where}: not a record of aiperf: the field metadata.{START} is missing")
    if item["metadata"].get("benchmark_phase") != "warmup":
        yield _flat(item, where)


def _flat(item: Record, where: str) -> Object:
    """Return the metadata, the metrics used and the reason for a failure as a flat object."""
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
        **{name: _count(metrics, names) for name, names in COUNTS.items()},
        "gaps": _gaps(metrics, where),
        "error": item.get("error") or ("cancelled" if metadata.get("was_cancelled") else None),
    }
    if flat["time_to_first_token"] is None:  # all tokens of an answer in one piece arrive together
        flat["time_to_first_token"] = flat["request_latency"]
    read, cached = flat["input_sequence_length"], flat["cached_tokens"]
    # aiperf counts one of them, the server the other
    if isinstance(read, int) and isinstance(cached, int):
        flat["cached_tokens"] = min(cached, read)
    return flat


def _gaps(metrics: Object, where: str) -> list[float] | None:
    """Return the gaps between tokens in seconds, if each piece of the answer was a token."""
    values, unit = _measured(metrics, "inter_chunk_latency")
    tokens = _count(metrics, COUNTS["output_sequence_length"])
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


def _count(metrics: Object, names: tuple[str, ...]) -> Any:
    return next(
        (value for name in names if (value := _measured(metrics, name)[0]) is not None), None
    )


def _measured(metrics: Object, name: str) -> tuple[Any, str]:
    """Return a metric's value and unit; the unit is always text."""
    metric = metrics.get(name)
    if not isinstance(metric, dict):
        return metric, ""
    return metric.get("value"), str(metric.get("unit"))


_NAMES = {"start": "start", "ttft": "time_to_first_token", "latency": "request_latency"}
_NAMES |= {"input_tokens": "input_sequence_length", "output_tokens": "output_sequence_length"}
_NAMES |= {"cached_tokens": "cached_tokens", "error": "error", "gaps": "gaps"}

AIPERF = Layout(
    "aiperf",
    is_aiperf,
    _NAMES,
    dict.fromkeys(("start", "ttft", "latency", "gaps"), "s"),
    spread=lambda: _measured_requests,
    own_units=True,
    exact=True,
    nothing="holds only records of the warm-up, so there is nothing to score",
)
