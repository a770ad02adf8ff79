"""Measured runs of a real serving engine, and their file format with one run per line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fairbench.errors import DataError, printable
from fairbench.metrics.records import Flags, Floats, Ints
from fairbench_studies.validation.span import CLOCK_S, check_span

# ``FITTED`` names the runs to which a profile or a cost was fitted. A100 runs that are not in
# ``FITTED`` were inspected only after the fit for the A100. All H100 runs were inspected before the
# fit for the H100.
FITTED = frozenset(
    {
        *(f"sglang-a100-fixed-c{at_a_time}-run1" for at_a_time in (1, 8, 32, 128)),
        "sglang-a100-mixed-c1-run1",
        *(f"sglang-h100-fixed-c{n}-{cache}" for n in (1, 32, 128) for cache in ("cold", "warm")),
        "sglang-h100-mixed-c32-cold",
        "vllm-h100-qwen3-14b-sweep_rate-agg_4rps-vanilla",
        "vllm-h100-qwen3-14b-w5_sweep-agg12",
        "vllm-h100-qwen3-14b-w7_sweep-agg6",
        "sglang-fork-a100-good-mdrr-1000",
        "sglang-fork-a100-abl2_rate_2",
        # the run to which ``VLLM_REQUEST_MS`` was fitted
        "vllm-a100-fixed-c128-run1",
    }
)
DIRECT = "none"  # value of the field ``gateway`` in runs without a gateway
# Since the commit ``INFERGRID``, InferGrid's load generator counts the tokens of answered prompts,
# which delays the next request.
INFERGRID = "a8d3ea8934cb7c4144427c3065c31b6ab2a9af72"
_FIRST_OF_SET = re.compile(r"-c1-run1$")
# The first ``WARM_UP_S`` seconds of an open-loop run are a warm-up, in which the engine compiles
# kernels. Metrics leave out the warm-up, except in runs that send requests for less than 2 x
# ``WARM_UP_S``, in which too few requests would remain.
WARM_UP_S = 10.0

INPUTS = ("client", "submit_s", "prompt_tokens", "output_tokens")
COUNTS = ("prompt_tokens", "output_tokens")
# ``MAX_TOKENS`` (the maximum length of a prompt or an answer) is ten times the longest context of
# existing models.
MAX_TOKENS = 10_000_000
MAX_TIME_S = 1e10
MEASURED = ("ttft_s", "latency_s", "error")


@dataclass(frozen=True, slots=True, eq=False)
class ServingRun:
    """The requests of a measured run, in the order of sending, and the settings of the run.

    Times are in seconds after the first request. ``ttft_s`` and ``latency_s`` are NaN for requests
    that were refused or not answered; ``output_tokens`` is 0 for refused requests. In a closed
    loop, at most ``concurrency`` requests are in flight, and ``connection_limit`` of them reach the
    server. ``warm`` means that the same prompts had been sent to the server before the run.
    ``counts_prompts`` means that the benchmark client counts the tokens of each answered prompt.
    ``pool_tokens`` is the size of the KV pool in tokens, or 0 if unknown; ``pool_doubted`` means
    that a run with equal settings contradicts ``pool_tokens``. ``kind`` names the kind of each
    request, if the file states kinds. ``policy`` and ``quantum`` describe the server's scheduler;
    "" and "default" mean the default scheduler. ``max_num_seqs`` and ``max_num_batched_tokens`` are
    vLLM's limits; 0 means the default. ``predicted`` has metrics predicted by another simulator
    (BLIS). Comparisons leave out requests of the first ``warm_up_s`` seconds.
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
    kind: tuple[str, ...] = ()
    policy: str = ""
    quantum: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    predicted: Mapping[str, Any] = field(default_factory=dict)
    counts_prompts: bool = False
    warm_up_s: float = 0.0
    pool_doubted: bool = False

    def __len__(self) -> int:
        return len(self.client)

    @property
    def fitted(self) -> bool:
        """Whether a timing profile or a cost was fitted to this run."""
        return self.name in FITTED

    @property
    def direct(self) -> bool:
        """Whether requests arrived in an open loop, and directly at the engine."""
        return not self.closed and self.gateway == DIRECT

    @property
    def served(self) -> Flags:
        """A mask of the requests that the server answered."""
        return ~np.isnan(self.latency_s)

    @property
    def output_limit(self) -> int:
        """The longest output of any request, as an estimate of the limit on output tokens."""
        return int(self.output_tokens.max())

    @property
    def steady(self) -> Flags:
        """A mask of the requests after the warm-up, to which comparisons are restricted."""
        return np.asarray(self.submit_s >= self.warm_up_s)


def serving_run(record: dict[str, Any], where: str, *, predict: bool = False) -> ServingRun:
    """Read a measured run from ``record``, one line of the file.

    With ``predict``, measured columns are not read and are NaN. Raises DataError for an invalid
    field; the message names ``where`` and the field.
    """

    def given(name: str, kind: type, default: Any = None) -> Any:
        value = record.get(name, default)
        if value is None:
            value = default
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
            raise DataError(f"{where}: field {name!r} = {value!r}: must be {kind.__name__}")
        return value

    name = printable(given("run_id", str))
    where = f"{where}, run {name}"

    for what, allowed in (("engine", ("sglang", "vllm")), ("arrival", ("closed", "open"))):
        if given(what, str) not in allowed:
            raise DataError(
                f"{where}: field {what!r} = {record[what]!r}: must be {' or '.join(allowed)}"
            )
    columns, closed = _columns(record["columns"], where, predict), record["arrival"] == "closed"
    n = len(columns["client"])
    no_limit = n if closed else 0

    def count(field: str, default: int | None, least: int = 0) -> int:
        value: int = given(field, int, default)
        if not least <= value <= MAX_TOKENS:
            allowed = f"least {least}" if value < least else f"most {MAX_TOKENS:,}"
            raise DataError(f"{where}: field {field!r} = {value}: must be at {allowed}")
        return value

    run = ServingRun(
        name=name,
        engine=record["engine"],
        engine_version=given("engine_version", str, ""),
        gpu=given("gpu", str),
        model=given("model", str),
        tp=count("tp", 1, least=1),
        closed=closed,
        concurrency=count("concurrency", None if closed else 0, least=int(closed)),
        connection_limit=count("connection_limit", no_limit, least=int(closed)),
        warm=given("warm", bool, closed and _FIRST_OF_SET.search(name) is None),
        pool_tokens=count("pool_tokens", 0),
        gateway=given("gateway", str, ""),
        policy=given("policy", str, ""),
        quantum=count("quantum", 0),
        max_num_seqs=count("max_num_seqs", 0),
        max_num_batched_tokens=count("max_num_batched_tokens", 0),
        predicted=given("blis", dict, {}),
        counts_prompts=closed and given("commit", str, "") == INFERGRID,
        warm_up_s=0.0 if closed else _warm_up_s(columns["submit_s"]),
        **columns,
    )
    answered = run.served | predict
    if (run.closed or run.direct) and (run.prompt_tokens[answered] == 0).any():
        raise DataError(
            f"{where}: columns: field 'prompt_tokens' must be at least 1 for each answered request"
        )
    return run


def _warm_up_s(submit_s: Floats) -> float:
    return WARM_UP_S if submit_s[-1] >= 2 * WARM_UP_S else 0.0


def _columns(given: Any, where: str, predict: bool) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise DataError(f"{where}: field 'columns' must be an object")
    for name in INPUTS if predict else (*INPUTS, *MEASURED):
        if not isinstance(given.get(name), list) or not given[name]:
            raise DataError(f"{where}: columns: field {name!r} must be a list of values")
        if len(given[name]) != len(given["client"]):
            raise DataError(f"{where}: columns: field {name!r} must have one value per request")
    if None in given["client"]:
        raise DataError(f"{where}: columns: field 'client' must hold a name for each request")
    n, nan = len(given["client"]), float("nan")
    failed = {name: _failed_as_zero(given, name) for name in COUNTS}
    values = {**given, **failed}
    numbers = {
        name: _numbers([nan] * n if predict and name in MEASURED else values[name], name, where)
        for name in ("submit_s", "prompt_tokens", "output_tokens", "ttft_s", "latency_s")
    }
    sent_s = numbers["submit_s"]
    if np.isnan(sent_s).any():
        raise DataError(f"{where}: columns: field 'submit_s' must hold a number for each request")
    check_span(sent_s, "submit_s", f"{where}: columns")
    numbers["submit_s"] = sent_s - sent_s.min()
    for name in COUNTS:
        numbers[name] = numbers[name].astype(np.int64)
    if not predict:
        refused = np.array([bool(error) for error in given["error"]])
        refused |= (numbers["output_tokens"] == 0) | np.isnan(numbers["latency_s"])
        for name in ("ttft_s", "latency_s"):
            numbers[name] = np.where(refused, nan, numbers[name])
        _check_answers(numbers, ~refused, where)
    order = np.argsort(sent_s, kind="stable")
    clients, kinds = _names(given["client"]), _kinds(given, n, where)
    return {
        "client": tuple(clients[row] for row in order),
        "kind": tuple(kinds[row] for row in order) if kinds else (),
        **{name: column[order] for name, column in numbers.items()},
    }


def _check_answers(numbers: Mapping[str, Any], answered: Flags, where: str) -> None:
    """Raise DataError if no request was answered, or if a request ended before its first token."""
    if not answered.any():
        raise DataError(f"{where}: no request was answered, so there is nothing to compare")
    ttft_s, latency_s = numbers["ttft_s"][answered], numbers["latency_s"][answered]
    if np.isnan(ttft_s).any():
        raise DataError(
            f"{where}: columns: field 'ttft_s' must hold a number for each answered request"
        )
    if (late := ttft_s > latency_s + CLOCK_S).any():
        raise DataError(
            f"{where}: columns: field 'ttft_s' = {ttft_s[late][0]:g}: must be at most the "
            f"request's latency_s = {latency_s[late][0]:g}"
        )


def _kinds(given: Mapping[str, Any], n: int, where: str) -> tuple[str, ...]:
    kinds = given.get("kind", [])
    if not isinstance(kinds, list) or len(kinds) not in (0, n):
        raise DataError(f"{where}: columns: field 'kind' must have one value per request")
    return _names(kinds)


def _names(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(printable(str(value)) for value in values)


def _failed_as_zero(given: Mapping[str, Any], name: str) -> list[Any]:
    """Return a column of counts, with 0 for failed requests that have no count."""
    errors = given.get("error")
    if not isinstance(errors, list) or len(errors) != len(given[name]):
        return list(given[name])
    return [
        0 if value is None and error else value
        for value, error in zip(given[name], errors, strict=True)
    ]


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
    # NaN counts as a number that is not whole, and is therefore refused.
    if name in COUNTS and (column != np.floor(column)).any():
        raise DataError(f"{where}: columns: field {name!r} must hold whole numbers")
    return column
