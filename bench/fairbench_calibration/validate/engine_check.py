"""Comparison of an installed engine's own code with fairbench's model, on random runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.config.resolve import experiment
from fairbench.doors import CODE_GROUP, through
from fairbench.hardware.engines import DEFAULT_ENGINE, ENGINES
from fairbench.metrics.tables import RunResult
from fairbench.named import imported
from fairbench.sim.run import simulate
from fairbench.streams import stream

# At the arrival rates ``RATES`` (programs/s of a well-behaved client), a small KV pool fills soon.
RATES = {"chat": 2.5, "judge": 0.68, "tot": 0.44}
POLICIES = {DEFAULT_ENGINE: ("fcfs", "lpm"), "vllm": ("fcfs",)}
BLOCK = 16  # tokens of a KV block in vLLM
# ``DECIDED`` lists columns of a request's record, in the order in which an engine sets them.
DECIDED = (
    *("admitted_s", "cached_tokens", "extend_tokens", "first_token_s", "retractions"),
    *("recompute_tokens", "output_tokens", "finish_s"),
)


class FirstDifference(NamedTuple):
    """The first request for which fairbench's model and the engine's own code decide differently.

    ``ours`` is the value of ``column`` in fairbench's model, and ``theirs`` is the engine's value.
    """

    request: int
    client: str
    column: str
    ours: float
    theirs: float


@dataclass(frozen=True, slots=True)
class CheckedStream:
    """A run of random requests, simulated with fairbench's model and with the engine's own code.

    ``differing`` is the number of requests whose records differ. ``first`` is the first value that
    differs between model and engine code, or None. ``code`` describes the engine's code, as
    ``engine_code`` does in a summary.
    """

    spec: ExperimentSpec
    requests: int
    differing: int
    first: FirstDifference | None
    code: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The workload, the policy and the seed of the run."""
        return f"{self.spec.workload.name} {self.spec.local} seed {self.spec.seed}"


def random_spec(engine: str, seed: int) -> ExperimentSpec:
    """Return a short random experiment that soon fills an engine's KV pool."""
    rng = stream(seed, "engine-check")
    workload = rng.choice(sorted(RATES))
    flags = {
        "workload": workload,
        "scheduler": f"least-loaded+{rng.choice(POLICIES[engine])}",
        "engine": engine,
        "dp": rng.choice((1, 2)),
        "request_rate": RATES[workload] * rng.uniform(0.5, 1.0),
        "duration": 6.0,
        "seed": seed,
    }
    settings = _vllm_settings(rng) if engine == "vllm" else _sglang_settings(rng)
    spec = experiment(flags, settings)
    return spec.model_copy(update={"max_drain_s": 5.0})


def _sglang_settings(rng: Random) -> dict[str, Any]:
    return {
        "engine.max_total_tokens": rng.randrange(20_000, 60_000),
        "engine.chunked_prefill_size": rng.choice((1_024, 2_048, 8_192)),
        "engine.max_running_requests": rng.choice((8, 64, 2_048)),
        "engine.schedule_conservativeness": rng.choice((0.3, 1.0)),
    }


def _vllm_settings(rng: Random) -> dict[str, Any]:
    return {
        "vllm.num_gpu_blocks_override": rng.randrange(20_000, 60_000) // BLOCK,
        "vllm.max_num_batched_tokens": rng.choice((1_024, 2_048, 8_192)),
        "vllm.max_num_seqs": rng.choice((8, 64, 256)),
    }


def release_settings(engine: str, version: str) -> dict[str, str]:
    """Return the setting that makes the model follow a release, or {} for an unknown release."""
    kind = ENGINES[engine]
    known = get_args(get_type_hints(imported(kind.params))["release"])
    names = {name for part in known for name in get_args(part)}
    numbers = version.partition("+")[0].split(".")
    for name in (".".join(numbers[:3]), ".".join(numbers[:2])):
        if name in names:
            return {f"{kind.part}.release": name}
    return {}


def check_engine(
    python: str,
    engine: str,
    seeds: range,
    interrupted: Callable[[], bool] | None = None,
) -> Iterator[CheckedStream]:
    """Yield, for each seed, the comparison of the simulated engine with the engine's own code.

    The simulator imitates the installed release of the engine, or the newest known release if the
    installed release is unknown.

    Args:
        python: Path of the Python interpreter in whose environment the engine is installed.
        engine: The name of the engine.
        seeds: The seeds of the random runs.
        interrupted: Function that ends the runs early when it returns true, or None.
    """
    release = release_settings(engine, through(CODE_GROUP, engine).installed(python)["version"])
    for seed in seeds:
        spec = random_spec(engine, seed)
        modelled = spec.model_copy(update={"settings": {**spec.settings, **release}})
        ours = simulate(modelled, interrupted=interrupted)
        coded = spec.model_copy(update={"engine_code": python})
        theirs = simulate(coded, interrupted=interrupted)
        if not (ours.complete and theirs.complete):
            return
        yield compared(spec, ours, theirs)


def compared(spec: ExperimentSpec, ours: RunResult, theirs: RunResult) -> CheckedStream:
    """Compare two runs of one experiment, request by request."""
    numbers, others = (np.asarray(one.requests["request_id"]) for one in (ours, theirs))
    both, at, other = np.intersect1d(numbers, others, return_indices=True)
    differing, first, first_s = len(numbers) + len(others) - 2 * len(both), None, inf
    columns = {
        name: (np.asarray(ours.requests[name])[at], np.asarray(theirs.requests[name])[other])
        for name in DECIDED
    }
    # Two values that are both undefined (NaN) are equal.
    unlike = {
        name: (one != two) & ((one == one) | (two == two)) for name, (one, two) in columns.items()
    }
    rows = np.flatnonzero(np.any(list(unlike.values()), axis=0))
    for row in rows:
        name = next(name for name in DECIDED if unlike[name][row])
        one, two = (float(values[row]) for values in columns[name])
        # The time of a difference is the earlier of both simulations' times in the column ``name``
        # or, if this column holds no times, of their admission times.
        timed = columns[name if name.endswith("_s") else "admitted_s"]
        times_s = [float(side[row]) for side in timed]
        time_s = min((value for value in times_s if value == value), default=inf)
        if time_s < first_s:
            client = str(ours.requests["client"][int(at[row])])
            first_s, first = time_s, FirstDifference(int(both[row]), client, name, one, two)
    code = theirs.summary["engine_code"]
    return CheckedStream(spec, len(numbers), differing + len(rows), first, code)


def check_lines(found: CheckedStream) -> list[str]:
    """Return lines of text that compare the records of the model and of the engine's code."""
    requests = f"{found.requests:,} requests"
    if not found.differing:
        return [f"{found.name}: {requests}, equal records"]
    lines = [f"{found.name}: {requests}, {found.differing:,} differ"]
    if (first := found.first) is not None:
        lines.append(
            f"  first: request {first.request} of {first.client}: {first.column} "
            f"{first.ours:g} by the model, {first.theirs:g} by the code"
        )
    return lines
