"""Runs of a real serving engine: the file, one run a line, and what each says of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fairbench.errors import DataError
from fairbench.metrics.records import Flags, Floats, Ints
from fairbench.validate.span import check_span

# The ids of the runs that a measured profile was fitted to. Of the A100 nothing else was looked at
# before; of the H100 all was.
FITTED = frozenset(
    {
        *(f"sglang-a100-fixed-c{concurrency}-run1" for concurrency in (1, 8, 32, 128)),
        "sglang-a100-mixed-c1-run1",
        *(f"sglang-h100-fixed-c{c}-{state}" for c in (1, 32, 128) for state in ("cold", "warm")),
        "sglang-h100-mixed-c32-cold",
    }
)
_FIRST_OF_SET = re.compile(r"-c1-run1$")
WARM_UP_S = 10.0  # of an open-loop run: the engine compiles

INPUTS = ("client", "submit_s", "prompt_tokens", "output_tokens")
COUNTS = ("prompt_tokens", "output_tokens")
LIMITS = ("max_num_seqs", "max_num_batched_tokens", "block_size")
NO_GATEWAY = "none"
MAX_TOKENS = 10_000_000  # of a prompt or an answer: ten times the longest context there is
MAX_TIME_S = 1e10
MEASURED = ("ttft_s", "latency_s", "error")


@dataclass(frozen=True, slots=True, eq=False)
class ServingRun:
    """One run. Times are seconds from its start; ``ttft_s`` and ``latency_s`` are NaN if refused.

    ``output_tokens`` is 0 for what was refused. Closed loop: at most ``concurrency`` requests
    under way, of which ``connection_limit`` reach the server; ``warm`` if the same prompts had been
    sent to the same server before. ``pool_tokens`` is its KV pool, 0 if nobody said. ``policy`` is
    the server's own scheduling and ``limits`` what it was started with. ``exact_prompts``: the
    server counted ``prompt_tokens``, and no two prompts share anything. ``kind`` groups clients.
    ``blis`` is the median time to first token in seconds that BLIS predicted, by kind.
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
    policy: str
    exact_prompts: bool
    limits: Mapping[str, int]
    blis: Mapping[str, float]
    client: tuple[str, ...]
    kind: tuple[str, ...]
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
        return self.name in FITTED

    @property
    def served(self) -> Flags:
        """The requests that got an answer."""
        return ~np.isnan(self.latency_s)

    @property
    def pool_refuted(self) -> bool:
        """Whether prompts that share nothing ran at once, and were more than ``pool_tokens``."""
        if not (self.pool_tokens and self.exact_prompts):
            return False
        prompts = self.prompt_tokens[self.served]
        starts = (self.submit_s + self.ttft_s)[self.served]
        ends = (self.submit_s + self.latency_s)[self.served]
        order = np.argsort(np.concatenate([ends, starts]), kind="stable")
        return int(np.concatenate([-prompts, prompts])[order].cumsum().max()) > self.pool_tokens

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
    where = f"{where} ({name})"
    gateway = field("gateway", str, "") if record.get("gateway") is not None else ""
    direct = gateway == NO_GATEWAY
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
        gateway="" if direct else gateway,
        policy=_policy(record, where),
        exact_prompts=direct,
        limits={key: field(key, int) for key in LIMITS if key in record},
        blis=_blis(record.get("blis")),
        **columns,
    )


def _policy(record: dict[str, Any], where: str) -> str:
    """Return ``fcfs``, or ``dlpm QUANTUM`` for the DLPM authors' ``lpm_mdrr``."""
    policy, quantum = record.get("policy", "default"), record.get("quantum")
    if policy in ("default", "fcfs", "lpm"):  # alike where nothing is shared
        return "fcfs"
    if policy == "lpm_mdrr" and isinstance(quantum, int) and quantum > 0:
        return f"dlpm {quantum}"
    raise DataError(
        f"{where}: field 'policy' = {policy!r}, quantum {quantum!r}: known are default, fcfs, lpm, "
        "and lpm_mdrr with a quantum"
    )


def _blis(given: Any) -> dict[str, float]:
    """Return BLIS's predictions of the median time to first token, where there are any."""
    tenants = given.get("tenants", {}) if isinstance(given, dict) else {}
    return {
        str(name): found["p50_us"] / 1e6
        for name, one in tenants.items()
        if isinstance(one, dict) and isinstance(found := one.get("ttft_percentiles"), dict)
        and isinstance(found.get("p50_us"), int | float)
    }  # fmt: skip


def kind_of(client: str) -> str:
    """Return the kind of a client: its name before any number."""
    return client.rstrip("0123456789").rstrip("_-")


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
    # Null where a request failed.
    numbers["output_tokens"] = np.nan_to_num(numbers["output_tokens"])
    check_span(numbers["submit_s"], "submit_s", f"{where}: columns")
    if not predict:
        refused = np.array([bool(error) for error in given["error"]])
        refused |= numbers["output_tokens"] == 0
        for name in ("ttft_s", "latency_s"):
            numbers[name] = np.where(refused, nan, numbers[name])
    for name in COUNTS:
        numbers[name] = numbers[name].astype(np.int64)
    clients = tuple(str(client) for client in given["client"])
    kinds = given.get("kind")
    if kinds is None:
        kinds = [kind_of(client) for client in clients]
    elif not isinstance(kinds, list) or len(kinds) != n:
        raise DataError(f"{where}: columns: field 'kind' is not as long as 'client'")
    return {"client": clients, "kind": tuple(map(str, kinds)), **numbers}


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
