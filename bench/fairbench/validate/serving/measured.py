"""Runs of a real serving engine: the file, one run a line, and what each says of itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fairbench.errors import DataError
from fairbench.metrics.records import Flags, Floats, Ints

# A profile was fitted to SGLang's, the time of vLLM's server for a request to the last one. Of
# SGLang on the A100 nothing else was looked at before; of the H100 all was.
FITTED = re.compile(
    r"sglang-(a100-(fixed-c\d+|mixed-c1)-run\d+|h100-(fixed-c(1|32|128)-(cold|warm)|mixed-c32-cold))"
    r"|vllm-a100-fixed-c128-run1"
)
_FIRST_OF_SET = re.compile(r"-c1-run1$")
WARM_UP_S = 10.0  # of an open-loop run: the engine compiles

INPUTS = ("client", "submit_s", "prompt_tokens", "output_tokens")
COUNTS = ("prompt_tokens", "output_tokens")
MAX_TOKENS = 10_000_000  # of a prompt or an answer: ten times the longest context there is
MAX_TIME_S = 1e10
MEASURED = ("ttft_s", "latency_s", "error")


@dataclass(frozen=True, slots=True, eq=False)
class ServingRun:
    """One run. Times are seconds from its start; ``ttft_s`` and ``latency_s`` are NaN if refused.

    ``output_tokens`` is 0 for what was refused. Closed loop: at most ``concurrency`` requests
    under way, of which ``connection_limit`` reach the server; ``warm`` if the same prompts had been
    sent to the same server before. ``pool_tokens`` is its KV pool, 0 if nobody said.
    """

    name: str
    engine: Literal["sglang", "vllm"]
    engine_version: str
    gpu: str
    model: str
    tp: int
    closed: bool
    concurrency: int
    connection_limit: int
    warm: bool
    pool_tokens: int
    gateway: str
    client: tuple[str, ...]
    submit_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    ttft_s: Floats
    latency_s: Floats

    def __len__(self) -> int:
        return len(self.client)

    @property
    def fitted(self) -> bool:
        """Whether the measured profile of its GPU was fitted to it."""
        return FITTED.fullmatch(self.name) is not None

    @property
    def served(self) -> Flags:
        """The requests that got an answer."""
        return ~np.isnan(self.latency_s)

    @property
    def output_limit(self) -> int:
        """The most output tokens that were asked for: nearly all requests run to it."""
        return int(self.output_tokens.max())

    @property
    def steady(self) -> Flags:
        """Requests that count: of an open loop, those after the warm-up."""
        return np.asarray(self.submit_s >= (0.0 if self.closed else WARM_UP_S))


def is_serving_run(record: Any) -> bool:
    """Whether a line of a file of measured runs is of this kind."""
    return isinstance(record, dict) and "run_id" in record and "columns" in record


def serving_run(record: dict[str, Any], where: str, *, predict: bool = False) -> ServingRun:
    """One line of the file. ``predict``: leave the measured columns unread, they are NaN.

    Raises DataError naming ``where`` and the field.
    """

    def field(name: str, kind: type, default: Any = None) -> Any:
        value = record.get(name, default)
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
            raise DataError(f"{where}: field {name!r} = {value!r}: must be {kind.__name__}")
        return value

    for what, allowed in (("engine", ("sglang", "vllm")), ("arrival", ("closed", "open"))):
        if field(what, str) not in allowed:
            raise DataError(
                f"{where}: field {what!r} = {record[what]!r}: allowed are {' and '.join(allowed)}"
            )
    name = field("run_id", str)
    columns, closed = _columns(record["columns"], where, predict), record["arrival"] == "closed"
    n = len(columns["client"])
    no_limit = n if closed else 0
    if (pool_tokens := field("pool_tokens", int, 0)) < 0:
        raise DataError(f"{where}: field 'pool_tokens' = {pool_tokens}: must be at least 0")
    return ServingRun(
        name=name,
        engine=record["engine"],
        engine_version=field("engine_version", str, ""),
        gpu=field("gpu", str),
        model=field("model", str),
        tp=field("tp", int, 1),
        closed=closed,
        concurrency=field("concurrency", int, None if closed else 0),
        connection_limit=field("connection_limit", int, no_limit),
        warm=field("warm", bool, closed and _FIRST_OF_SET.search(name) is None),
        pool_tokens=pool_tokens,
        gateway=field("gateway", str, ""),
        **columns,
    )


def _columns(given: Any, where: str, predict: bool) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise DataError(f"{where}: field 'columns' must be an object")
    for name in INPUTS if predict else (*INPUTS, *MEASURED):
        if not isinstance(given.get(name), list) or not given[name]:
            raise DataError(f"{where}: columns: field {name!r} must be a list of values")
        if len(given[name]) != len(given["client"]):
            raise DataError(f"{where}: columns: field {name!r} is not as long as 'client'")
    n, nan = len(given["client"]), float("nan")
    numbers = {
        name: _numbers([nan] * n if predict and name in MEASURED else given[name], name, where)
        for name in ("submit_s", "prompt_tokens", "output_tokens", "ttft_s", "latency_s")
    }
    if not predict:
        refused = np.array([bool(error) for error in given["error"]])
        refused |= numbers["output_tokens"] == 0
        for name in ("ttft_s", "latency_s"):
            numbers[name] = np.where(refused, nan, numbers[name])
    for name in COUNTS:
        numbers[name] = numbers[name].astype(np.int64)
    return {"client": tuple(str(client) for client in given["client"]), **numbers}


def _numbers(values: Sequence[Any], name: str, where: str) -> Floats:
    try:
        column = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        column = np.empty(0)
    if column.ndim != 1 or not column.size or (column < 0).any() or np.isinf(column).any():
        raise DataError(f"{where}: columns: field {name!r} must hold numbers of at least 0")
    most = MAX_TOKENS if name in COUNTS else MAX_TIME_S
    if (column > most).any():
        raise DataError(f"{where}: columns: field {name!r} must hold numbers of at most {most:g}")
    if name in COUNTS and (column != np.floor(column)).any():  # NaN is no whole number either
        raise DataError(f"{where}: columns: field {name!r} must hold whole numbers")
    return column
