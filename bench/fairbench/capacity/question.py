"""The question of a plan: targets, choices, and the fixed load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, NamedTuple

from fairbench.capacity.slo import Slo, parse_slos
from fairbench.config import ExperimentSpec
from fairbench.config.defaults import DEFAULTS
from fairbench.config.resolve import experiment
from fairbench.config.spec import MAX_REPLICAS
from fairbench.errors import UsageError, unknown_name
from fairbench.hardware.catalogue import resolve_profile
from fairbench.metrics.shown_percentiles import written_percentiles
from fairbench.results.expected import why_missing
from fairbench.workloads.trace_workload import KIND

NUM_RUNS = 3  # seeds of each cluster


class Choice(NamedTuple):
    """A choice: a scheduler on a GPU at a multiple of the load."""

    scheduler: str
    gpu: str
    load: float


@dataclass(frozen=True)
class Question:
    """The complete input of a plan, stored by ``as_json``.

    - The first of ``schedulers`` and of ``gpus`` is planned, the others are alternatives.
    - ``loads`` are multiples of the load that ``flags`` describe: of ``request_rate``, the
    trace's speed, or the workload's own rate for one replica of the first GPU.
    - ``prices`` are per GPU and hour.
    - ``certain`` requires the whole interval to meet a target.
    - ``every`` tries all numbers of replicas.
    - ``sharing`` also simulates each client alone on the cluster that is found.
    """

    slos: Sequence[str]
    schedulers: Sequence[str]
    low: int
    high: int
    flags: Mapping[str, Any]
    settings: Mapping[str, Any]
    gpus: Sequence[str] = (DEFAULTS["gpu"],)
    loads: Sequence[float] = (1.0,)
    prices: Mapping[str, float] | None = None
    num_runs: int = NUM_RUNS
    certain: bool = False
    every: bool = False
    sharing: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {name: _plain(value) for name, value in vars(self).items()}

    @property
    def targets(self) -> tuple[Slo, ...]:
        """The targets to meet."""
        return parse_slos(self.slos)

    @property
    def choices(self) -> list[Choice]:
        """Return all choices, by load; the planned choice comes first at each load."""
        return [
            Choice(scheduler, gpu, load)
            for load in self.loads
            for gpu in self.gpus
            for scheduler in self.schedulers
        ]

    @property
    def planned(self) -> list[Choice]:
        """The first choice of each load."""
        return self.choices[:: len(self.gpus) * len(self.schedulers)]

    def price(self, profile_id: str) -> float | None:
        """Return the hourly price of one GPU of a profile, or None if not given."""
        named = (self.prices or {}).items()
        return next((price for gpu, price in named if profile_id.startswith(gpu.lower())), None)


class Load(NamedTuple):
    """The fixed load: programs/s per well-behaved client, or None for a trace.

    ``usual`` is true if the rate is the workload's own for one replica.
    """

    rate: float | None
    usual: bool


class Clusters:
    """The experiments of a plan: every choice with any number of replicas, at one load."""

    def __init__(self, question: Question) -> None:
        """Prepare a plan. Raises UsageError, one line, if it is impossible."""
        self.question = question
        self.targets = question.targets
        _check(question)
        ranks = sorted({one.rank for one in self.targets if one.rank is not None})
        self._flags = {**question.flags, "percentiles": written_percentiles(tuple(ranks)) or None}
        first = Choice(question.schedulers[0], question.gpus[0], 1.0)
        self.load = self._load(first)
        _check_targets(self.targets, self.spec(first, question.low))
        for choice in question.choices:  # so that impossible questions fail before any run
            self.spec(choice, question.high)

    def spec(self, choice: Choice, dp: int) -> ExperimentSpec:
        """Return the experiment of a choice with ``dp`` replicas, under the first seed."""
        own: dict[str, Any] = {"scheduler": choice.scheduler, "gpu": choice.gpu, "dp": dp}
        if self.load.rate is not None:
            own["request_rate"] = self.load.rate * choice.load
        elif choice.load != 1:
            own["time_scale"] = (self._flags.get("time_scale") or 1.0) * choice.load
        return experiment({**self._flags, **own}, self.question.settings)

    def seeds(self, choice: Choice, dp: int) -> list[ExperimentSpec]:
        """Return the experiment of a choice under each seed. All choices share the seeds."""
        first = self.spec(choice, dp)
        return [
            first.model_copy(update={"seed": first.seed + number})
            for number in range(self.question.num_runs)
        ]

    def _load(self, first: Choice) -> Load:
        if self._flags.get("trace"):
            return Load(None, usual=False)
        own = {"scheduler": first.scheduler, "gpu": first.gpu, "dp": 1}
        spec = experiment({**self._flags, **own}, self.question.settings)
        if spec.workload.arrivals is not None and spec.workload.arrivals.kind == KIND:
            if set(self.question.loads) != {1.0}:
                raise UsageError(
                    "--loads cannot change a workload that replays a trace; give the trace "
                    "itself by --trace"
                )
            return Load(None, usual=False)
        if spec.request_rate is not None:
            return Load(spec.request_rate, usual=False)
        return Load(spec.workload.scenario(spec.scenario).rate_on(spec.gpu), usual=True)


def _check(question: Question) -> None:
    if not 1 <= question.low <= question.high <= MAX_REPLICAS:
        raise UsageError(
            f"--dp {question.low}..{question.high}: must be LOW..HIGH, from 1 to {MAX_REPLICAS:,}"
        )
    if question.certain and question.num_runs < 2:
        raise UsageError(
            "--certain needs a confidence interval, and one seed has none: give --num-runs 2 "
            "or more"
        )
    if question.flags.get("request_rate") == inf:
        raise UsageError(
            "request_rate = inf: a plan needs a finite load; give a number of programs per second"
        )
    for name, value in question.flags.items():
        if value == inf:
            raise UsageError(f"{name} = inf: a plan needs a finite number")
    for load in question.loads:
        if not (load > 0 and isfinite(load)):
            raise UsageError(f"--loads {load:g}: must be above 0")
    model = question.flags.get("model") or DEFAULTS["model"]
    profiles = [resolve_profile(gpu, model).profile_id for gpu in question.gpus]
    for gpu, price in (question.prices or {}).items():
        if not any(one.startswith(gpu.lower()) for one in profiles):
            raise unknown_name("gpu in --price", gpu, question.gpus)
        if not (price > 0 and isfinite(price)):
            raise UsageError(f"--price {gpu}={price:g}: must be above 0")


def _check_targets(targets: Sequence[Slo], spec: ExperimentSpec) -> None:
    """Raise UsageError if a target names an unknown client, or a metric that has no value here."""
    for slo in targets:
        if reason := why_missing(slo.metric, spec):
            raise UsageError(f"--slo {slo.text}: {reason}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
