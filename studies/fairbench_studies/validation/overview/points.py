"""Measured runs as points, with a simulated and a measured value of each metric."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairbench.errors import DataError, UsageError
from fairbench.hardware.catalogue import canonical_model, model_names, named_profile
from fairbench.hardware.timing import TimingProfile
from fairbench.metrics.records import Ints
from fairbench_calibration.profiling.derived_profile import derive
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.kit.trace import throughput_tok_s, ttft_s
from fairbench_studies.validation.programs.compare import compare_programs
from fairbench_studies.validation.programs.measured import ProgramRun, read_programs
from fairbench_studies.validation.programs.replay import replay as replay_programs
from fairbench_studies.validation.records import Kind, kind_of
from fairbench_studies.validation.report import LONG_TTFT_S, NotReplayed, each
from fairbench_studies.validation.serving import compare
from fairbench_studies.validation.serving.engines import SERVER_DEFAULT
from fairbench_studies.validation.serving.files import read_serving
from fairbench_studies.validation.serving.measured import ServingRun
from fairbench_studies.validation.serving.profiles import (
    FORK_HOST_MS,
    gpu_name,
    profile_of,
    with_host_cost,
)
from fairbench_studies.validation.serving.prompts import requests_of
from fairbench_studies.validation.serving.replay import replay
from fairbench_studies.validation.serving.unanswered import rows_of, with_unanswered
from fairbench_studies.validation.slora.measured import MeasuredRun, read_measured
from fairbench_studies.validation.slora.replay import FITTED_RUNS, replay_run

THROUGHPUT, TIME_PER_TOKEN, FIRST_TOKEN = "throughput", "time per token", "first token"
METRICS = {THROUGHPUT: "tok/s", TIME_PER_TOKEN: "ms, P50", FIRST_TOKEN: "s, P50"}
"""The compared metrics with their units."""

# Prompts are short if their median length is below ``SHORT_TOKENS``, and long from ``LONG_TOKENS``.
SHORT_TOKENS, LONG_TOKENS = 100, 2_000
# Prompts are mixed if the 90th percentile of their lengths is more than ``MIXED`` times the 10th
# percentile.
MIXED = 4.0
_REPEAT = re.compile(r"[-_](?:rep|run)\d+$")


class Point(NamedTuple):
    """A measured run with its simulated and measured values.

    Attributes:
        engine: The engine that served the run, such as ``vllm``.
        gpu: The name of the GPU.
        model: The model, with ``tpN`` for more than one GPU.
        prompts: The kind of prompts in the run: short, medium, long or mixed.
        name: The name of the run.
        repeat: A key shared by all repeats of a run.
        profile: The id of the timing profile of the replay.
        fitted: Whether the timing profile, or a cost of the host, was fitted to this run.
        pairs: The simulated and measured values, for each metric that the run has.
    """

    engine: str
    gpu: str
    model: str
    prompts: str
    name: str
    repeat: str
    profile: str
    fitted: bool
    pairs: dict[str, Pair]

    def as_dict(self) -> dict[str, Any]:
        """Return this object's fields as a dict of JSON-compatible values."""
        pairs = {name: pair.as_dict() for name, pair in self.pairs.items()}
        return {**self._asdict(), "pairs": pairs}


def points_of(path: Path, profile: str | None) -> tuple[list[Point], list[NotReplayed]]:
    """Replay the runs of a file; return the replayed runs as points, and the runs that failed.

    Args:
        path: The file with the measured runs.
        profile: The timing profile (id or file) for all runs. If ``profile`` is None, each run uses
            the bundled profile of its GPU and model, or else a profile from a data sheet.

    Raises:
        DataError: the file holds no runs, or no run can be replayed.
    """
    used = None if profile is None else named_profile(profile)
    kind = kind_of(path)
    if kind is Kind.SERVING:
        runs, unread = read_serving(path)
        made, failed = _each(lambda run: serving_point(run, used), runs)
    elif kind is Kind.PROGRAMS:
        programs, unread = read_programs(path)
        made, failed = _each(lambda run: _program_point(run, used), programs)
    else:
        traces, unread = read_measured(path)
        made, failed = _each(lambda run: _slora_point(run, used), traces)
    return made, [*unread, *failed]


def _each(make: Callable[[Any], Point], runs: Sequence[Any]) -> tuple[list[Point], list[Any]]:
    return each(make, runs, lambda run: str(run.name), replayed=True)


def serving_point(run: ServingRun, profile: TimingProfile | None = None) -> Point:
    """Return the measured and simulated metrics of a run of SGLang or vLLM, as a point to draw.

    Raises:
        DataError: the run cannot be replayed.
    """
    compare.check_steady(run)
    used = with_host_cost(profile or default_profile(run), run.policy)
    sent, recorded = with_unanswered(run)
    replayed = replay(sent, used)
    simulated = rows_of(replayed, recorded)
    until = compare.answered_tokens(run) if run.direct else None
    fork = run.engine == "sglang" and run.policy not in SERVER_DEFAULT
    warm = " cached" if run.warm else ""
    return Point(
        engine="sglang fork" if fork else run.engine,
        gpu=gpu_name(run.gpu),
        model=canonical_model(run.model, model_names()) + (f" tp{run.tp}" if run.tp > 1 else ""),
        prompts=kind_of_prompts(_prompt_tokens(run)) + warm,
        name=run.name,
        repeat=_REPEAT.sub("", run.name) + warm,
        profile=used.profile_id,
        fitted=run.fitted and (profile is None or run.policy in FORK_HOST_MS),
        pairs=_defined(
            Pair(compare.throughput_tok_s(replayed, until), compare.throughput_tok_s(run)),
            Pair(compare.tpot_p50_ms(simulated), compare.tpot_p50_ms(run)),
            _first_token(simulated, run),
        ),
    )


def _first_token(simulated: ServingRun, run: ServingRun) -> Pair:
    """Return the simulated and measured median TTFT (s) of requests served in both runs."""
    both = run.served & simulated.served & run.steady
    if not both.any():
        return Pair(np.nan, np.nan)
    return Pair(*(float(np.median(side.ttft_s[both])) for side in (simulated, run)))


def _defined(throughput: Pair, time_per_token: Pair, first_token: Pair) -> dict[str, Pair]:
    """Return the metrics whose simulation error is defined; omit TTFT if TTFT is short."""
    if not first_token.measured > LONG_TTFT_S:
        first_token = Pair(np.nan, np.nan)
    pairs = dict(zip(METRICS, (throughput, time_per_token, first_token), strict=True))
    return {name: pair for name, pair in pairs.items() if _has_error(pair)}


def _has_error(pair: Pair) -> bool:
    return pair.simulated > 0 and pair.measured > 0


def default_profile(run: ServingRun) -> TimingProfile:
    """Return the bundled timing profile of a run's server, or a profile from the data sheet.

    Raises:
        DataError: the GPU or the model is unknown.
    """
    try:
        return profile_of(run.gpu, run.model, run.tp, run.engine)
    except DataError as unknown:
        try:
            return _derived(run.model, run.gpu, run.tp, run.engine)
        except UsageError:
            raise unknown from None


@cache
def _derived(model: str, gpu: str, tp: int, engine: str) -> TimingProfile:
    return derive(model, gpu, tp=tp, engine=engine, roofline=True).profile


def _prompt_tokens(run: ServingRun) -> Ints:
    return np.array([one.input_tokens for one in requests_of(run)])[run.served]


def kind_of_prompts(tokens: Ints) -> str:
    """Classify prompts as short, medium or long by their median length.

    If the lengths of prompts vary widely, the returned text ends in ``mixed``.
    """
    low, median, high = np.percentile(tokens, [10, 50, 90])
    length = "short" if median < SHORT_TOKENS else "long" if median >= LONG_TOKENS else "medium"
    return f"{length} mixed" if high > MIXED * max(low, 1) else length


def _program_point(run: ProgramRun, profile: TimingProfile | None) -> Point:
    found = compare_programs(run, *replay_programs(run, profile))
    gpu, model, *_ = found.profile.split("/")
    return Point(
        *("sglang fork", gpu, model, kind_of_prompts(np.array([int(run.prompt_tokens)])), run.name),
        f"{run.policy} {run.quantum} {run.branches} {run.programs}",
        *(found.profile, False),
        {THROUGHPUT: found.service} if _has_error(found.service) else {},
    )


def _slora_point(run: MeasuredRun, profile: TimingProfile | None) -> Point:
    """Return a point for an S-LoRA run, whose records have no time per output token."""
    sides = replay_run(run, profile), run.trace
    fitted = profile is None and not run.section and run.name in FITTED_RUNS
    first = Pair(*(ttft_s(side, run.trace.clients, 50) for side in sides))
    return Point(
        *("s-lora", "a10g-24gb", "llama-2-7b", kind_of_prompts(run.trace.prompt_tokens), run.name),
        *(run.name, "a10g-24gb/llama-2-7b/tp1/slora-fitted", fitted),
        _defined(Pair(*map(throughput_tok_s, sides)), Pair(np.nan, np.nan), first),
    )


def files_of(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the given files, and all files of measured runs in the given directories."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for file in sorted(path.rglob("*.json*")):
            if file.name.endswith((".json", ".jsonl", ".json.gz", ".jsonl.gz")) and _has_runs(file):
                yield file


def _has_runs(path: Path) -> bool:
    try:
        kind_of(path)
    except DataError:
        return False
    return True
