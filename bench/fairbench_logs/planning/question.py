"""The inputs of a capacity plan: targets such as ``ttft_p99<2s``, schedulers, and load."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf, isfinite
from typing import Any, NamedTuple

from fairbench.api.logs import NUM_RUNS
from fairbench.config import ExperimentSpec
from fairbench.config.defaults import DEFAULTS
from fairbench.config.resolve import experiment
from fairbench.config.spec import MAX_REPLICAS
from fairbench.errors import UsageError, unknown_name
from fairbench.hardware.catalogue import resolve_profile
from fairbench.metrics.catalogue import CATALOGUE, CLIENTS, SHORT, key_of, metric_of, short_of
from fairbench.metrics.metric import Better, Form, Metric, Of
from fairbench.metrics.shown_percentiles import written_percentiles
from fairbench.results.run_facts import why_missing
from fairbench.workloads.model import MAX_CLIENTS
from fairbench.workloads.trace_workload import KIND

SHAPE = re.compile(
    r"(?P<metric>[^<>=\s]+)\s*(?P<sign>[<>]=?)\s*(?P<limit>[0-9]{1,15}(\.[0-9]{1,15})?)\s*"
    r"(?P<unit>%|ms|s)?"
)
NEGATIVE = re.compile(r"[<>]=?\s*-\s*[0-9]")
WRITE = "write METRIC<LIMIT or METRIC>LIMIT, such as ttft_p99<2s or min_share>80%"
LATENCY = re.compile(r"(ttft|tpot|e2el)_(p[1-9][0-9]?|mean|median)")
SHARING = re.compile(r"sharing_(p50|p95|p99)")
RANKED = re.compile(r"(?:victim_)?p([1-9][0-9]?)_\w+")
MOST_NAMED = 5
USUAL_RANKS = (50, 99)  # latency percentiles that every summary has

# ``UNITS`` maps the unit of a metric and the unit of a target to a conversion factor.
UNITS = {("ms", "s"): 1000.0, ("ms", "ms"): 1.0, ("s", "s"): 1.0, ("s", "ms"): 0.001}


class Slo(NamedTuple):
    """A target, such as ``ttft_p99<2s``: a metric and its limit.

    If ``below`` is True, the metric must be below its limit; otherwise, it must be above. If
    ``inclusive`` is True, a metric equal to its limit meets the target. ``text`` is the target as
    the user wrote it. ``metric`` is the metric's key in a run's summary.
    """

    text: str
    metric: str
    below: bool
    inclusive: bool
    limit: float

    @property
    def entry(self) -> Metric:
        """The entry of the target's metric in the catalogue of metrics."""
        found = metric_of(self.metric)
        assert found is not None  # ``parse_slo`` has already refused unknown metrics.
        return found

    @property
    def rank(self) -> int | None:
        """The percentile that the target adds to summaries, or None if it adds no percentile."""
        match = RANKED.fullmatch(self.metric.rpartition(".")[2])
        return int(match[1]) if match and int(match[1]) not in USUAL_RANKS else None

    @property
    def of_sharing(self) -> bool:
        """Whether the target's metric needs simulations of each client alone."""
        return "sharing_incentive" in self.metric

    def met_by(self, value: float) -> bool:
        """Return whether a value of the target's metric meets the target."""
        if value == self.limit:
            return self.inclusive
        return value < self.limit if self.below else value > self.limit

    def margin(self, value: float) -> float | None:
        """Return a value's distance from the limit as a fraction of the limit.

        The distance is positive if the value meets the target. Return None if the limit is 0.
        """
        if not self.limit:
            return None
        left = self.limit - value if self.below else value - self.limit
        return left / self.limit


def parse_slos(texts: Iterable[str]) -> tuple[Slo, ...]:
    """Parse the targets that follow ``--slo``, such as ``ttft_p99<2s``.

    Raises UsageError for an invalid target.
    """
    found = tuple(parse_slo(text) for text in texts)
    if not found:
        raise UsageError(f"--slo: missing; a plan needs at least one target: {WRITE}")
    return found


def parse_slo(text: str) -> Slo:
    """Parse a target: ``METRIC<LIMIT`` or, for metrics that should be large, ``METRIC>LIMIT``.

    A metric is a key of a run's summary, ``clients.NAME.KEY``, ``min_share`` or ``on_time``. Names
    in the style of other tools, such as ``ttft_p99``, are allowed, too; a limit on such a metric
    needs a unit. Raises UsageError for a wrong form, sign, metric or unit, and for a limit that no
    value can meet.
    """
    match = SHAPE.fullmatch(text.strip())
    if match is None:
        if NEGATIVE.search(text):
            raise UsageError(f"--slo {text}: a limit must be at least 0")
        raise UsageError(f"--slo {text}: {WRITE}")
    key = metric_key(match["metric"])
    entry = metric_of(key)
    of_client = key.startswith(CLIENTS)
    if entry is None or not _is_of_a_run(entry) or (entry.of is Of.CLIENT and not of_client):
        raise _unknown_metric(match["metric"])
    below = match["sign"].startswith("<")
    if below != (entry.better is Better.LESS):
        better, sign = entry.better.name.lower(), "<" if entry.better is Better.LESS else ">"
        raise UsageError(
            f"--slo {text}: {better} {short_of(key)} is better, so the target must be written "
            f"with {sign}"
        )
    if LATENCY.fullmatch(match["metric"]) and match["unit"] is None:
        bare = text.strip()
        raise UsageError(f"--slo {bare}: needs a unit, {bare}s or {bare}ms")
    limit = float(match["limit"]) * _in_unit_of(entry, match["unit"], text)
    shown = text.strip().replace(match["metric"], SHORT.get(key, match["metric"]), 1)
    slo = Slo(shown, key, below, match["sign"].endswith("="), limit)
    if slo.below and not slo.met_by(0.0):
        raise UsageError(
            f"--slo {slo.text}: {short_of(slo.metric)} is never below 0; give a higher limit"
        )
    part = slo.entry.form in (Form.PERCENT, Form.INDEX) and slo.entry.of is not Of.CLIENT
    if part and not slo.metric.startswith(CLIENTS) and not slo.below and not slo.met_by(1.0):
        raise UsageError(
            f"--slo {slo.text}: {short_of(slo.metric)} is never above 1 (100%); give a lower limit"
        )
    return slo


def metric_key(name: str) -> str:
    """Return the summary key of a metric that the user named."""
    if match := LATENCY.fullmatch(name):
        return f"{match[2]}_{match[1]}_ms"
    if match := SHARING.fullmatch(name):
        return f"sharing_incentive_{match[1]}"
    return key_of(name)


def _in_unit_of(entry: Metric, unit: str | None, text: str) -> float:
    """Return the factor that converts a limit in ``unit`` to the metric's unit."""
    if unit is None:
        return 1.0
    if unit == "%" and (entry.form.is_share or entry.form is Form.INDEX):
        return 0.01
    if (entry.unit, unit) in UNITS:
        return UNITS[entry.unit, unit]
    measured = f"is measured in {entry.unit}" if entry.unit else "has no unit"
    allowed = [one for of, one in UNITS if of == entry.unit]
    advice = f"write it in {' or '.join(allowed)}" if allowed else "write a number without a unit"
    raise UsageError(
        f"--slo {text}: {entry.key} {measured}, so its limit cannot be in {unit}; {advice}"
    )


def _is_of_a_run(entry: Metric) -> bool:
    """Return whether a plan can have a target for this metric."""
    beside_others = entry.of_comparison and not entry.key.startswith("sharing_incentive")
    return entry.better is not Better.NEITHER and not beside_others


def _unknown_metric(name: str) -> UsageError:
    known = [key for key, one in CATALOGUE.items() if _is_of_a_run(one) and one.of is not Of.CLIENT]
    latencies = [f"{one}_p{rank}" for one in ("ttft", "tpot", "e2el") for rank in (50, 95, 99)]
    choices = [*SHORT.values(), "on_time", *latencies, "sharing_p99", *known]
    near = get_close_matches(name, choices, n=MOST_NAMED, cutoff=0.5)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    named = ", ".join(near or latencies[:MOST_NAMED])
    return UsageError(
        f"unknown metric in --slo {name!r}{hint or '.'} Choose a metric of a run, such as "
        f"{named}; docs/reference/metrics.md lists all {len(choices)}"
    )


USERS, REPLICAS = "users", "replicas"
"""A plan finds either the most users that a cluster can serve or the fewest replicas."""
# A plan tries at most 64 times as many users as the workload has by default.
MOST_TIMES = 64


class PlanChoice(NamedTuple):
    """A combination of scheduler, GPU and load factor for which a plan finds the cluster size."""

    scheduler: str
    gpu: str
    load: float


@dataclass(frozen=True)
class PlanQuestion:
    """The question that a capacity plan answers, with all inputs.

    - ``slos`` are the targets of ``--slo`` as text.
    - ``schedulers`` and ``gpus`` are combined in all ways. The plan is for the first scheduler on
      the first GPU; all other combinations are alternatives.
    - ``low`` and ``high`` are the minimum and maximum number of replicas to consider.
    - ``flags`` and ``settings`` describe the experiment.
    - ``loads`` are factors for the request rate or, with a trace, for the replay speed. The default
      rate is the workload's rate for one replica of the first GPU.
    - ``prices`` are prices of one GPU for one hour.
    - ``num_runs`` is the number of seeds simulated for each number of replicas.
    - With ``certain``, the whole 95% interval of a metric must meet the target.
    - With ``every``, the plan tests every number of replicas.
    - With ``sharing``, each client is also simulated alone on the planned cluster.
    - ``most`` is "" for a plan that seeks the fewest replicas. If ``most`` is USERS, the plan seeks
      the most users (clients) that ``low`` replicas can serve; ``high`` equals ``low``.
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
    most: str = ""

    @property
    def targets(self) -> tuple[Slo, ...]:
        """The targets that the cluster must meet."""
        return parse_slos(self.slos)

    @property
    def choices(self) -> list[PlanChoice]:
        """All choices (scheduler, GPU, load), ordered by load; the plan is for the first choice."""
        return [
            PlanChoice(scheduler, gpu, load)
            for load in self.loads
            for gpu in self.gpus
            for scheduler in self.schedulers
        ]

    @property
    def size(self) -> str:
        """The quantity that the plan determines: USERS or REPLICAS."""
        return USERS if self.most else REPLICAS

    @property
    def planned(self) -> list[PlanChoice]:
        """The choice with the first scheduler and the first GPU, for each load."""
        return self.choices[:: len(self.gpus) * len(self.schedulers)]

    def price(self, profile_id: str) -> float | None:
        """Return the price of one hour of one GPU, or None if the user gave no price."""
        named = (self.prices or {}).items()
        return next((price for gpu, price in named if profile_id.startswith(gpu.lower())), None)


class FixedLoad(NamedTuple):
    """The fixed load of a plan, which does not depend on the number of replicas.

    ``rate`` is in programs/s of each well-behaved client; for a trace, ``rate`` is None. ``usual``
    is True if ``rate`` is the rate that the workload file states for one replica.
    """

    rate: float | None
    usual: bool


class Clusters:
    """The experiments of a plan, for each scheduler, GPU, load and cluster size."""

    def __init__(self, question: PlanQuestion) -> None:
        """Check the inputs of a plan and prepare its experiments.

        Raises UsageError if the inputs of ``question`` contradict each other.
        """
        self.question = question
        self.targets = question.targets
        _check_question(question)
        ranks = sorted({one.rank for one in self.targets if one.rank is not None})
        self._flags = {**question.flags, "percentiles": written_percentiles(tuple(ranks)) or None}
        first = PlanChoice(question.schedulers[0], question.gpus[0], 1.0)
        self.load = self._load(first)
        self.first_size, self.last_size = question.low, question.high
        if question.most:
            self.first_size, self.last_size = self._user_range(first)
        smallest = self.spec(first, self.first_size)
        for slo in self.targets:
            if reason := why_missing(slo.metric, smallest):
                raise UsageError(f"--slo {slo.text}: {reason}")
        # Build every experiment once, to find contradictory settings before the first run.
        for choice in question.choices:
            self.spec(choice, self.last_size)

    def _user_range(self, first: PlanChoice) -> tuple[int, int]:
        if self.load.rate is None:
            raise UsageError(
                f"--max {USERS}: not supported with a trace; give a workload with --workload"
            )
        own = {"scheduler": first.scheduler, "gpu": first.gpu, "dp": self.question.low}
        usual = experiment({**self._flags, **own}, self.question.settings).clients
        return usual, min(MAX_CLIENTS, MOST_TIMES * usual)

    def is_possible(self, choice: PlanChoice, size: int) -> bool:
        """Return whether the workload can run with ``size`` replicas or users."""
        try:
            self.spec(choice, size)
        except UsageError:
            return False
        return True

    def spec(self, choice: PlanChoice, size: int) -> ExperimentSpec:
        """Return the experiment of one scheduler and GPU with ``size`` replicas or users."""
        dp = self.question.low if self.question.most else size
        own: dict[str, Any] = {"scheduler": choice.scheduler, "gpu": choice.gpu, "dp": dp}
        if self.question.most:
            own["clients"] = size
        if self.load.rate is not None:
            own["request_rate"] = self.load.rate * choice.load
        elif choice.load != 1:
            own["time_scale"] = (self._flags.get("time_scale") or 1.0) * choice.load
        return experiment({**self._flags, **own}, self.question.settings)

    def seeds(self, choice: PlanChoice, size: int) -> list[ExperimentSpec]:
        """Return the experiments of a choice (scheduler, GPU, load), one per seed."""
        first = self.spec(choice, size)
        return [
            first.model_copy(update={"seed": first.seed + number})
            for number in range(self.question.num_runs)
        ]

    def _load(self, first: PlanChoice) -> FixedLoad:
        """Return the load of the plan; its default is the workload's rate on the first GPU."""
        if self._flags.get("trace"):
            return FixedLoad(None, usual=False)
        own = {"scheduler": first.scheduler, "gpu": first.gpu, "dp": 1}
        spec = experiment({**self._flags, **own}, self.question.settings)
        if spec.workload.arrivals is not None and spec.workload.arrivals.kind == KIND:
            if set(self.question.loads) != {1.0}:
                raise UsageError(
                    "--loads cannot change a workload that replays a trace; give the trace by "
                    "--trace instead"
                )
            return FixedLoad(None, usual=False)
        if spec.request_rate is not None:
            return FixedLoad(spec.request_rate, usual=False)
        return FixedLoad(spec.workload.scenario(spec.scenario).rate_on(spec.gpu), usual=True)


def _check_question(question: PlanQuestion) -> None:
    if question.most:
        _check_most(question)
    if not 1 <= question.low <= question.high <= MAX_REPLICAS:
        raise UsageError(
            f"--dp {question.low}..{question.high}: must be LOW..HIGH, from 1 to {MAX_REPLICAS:,}"
        )
    if question.certain and question.num_runs < 2:
        raise UsageError(
            "--certain needs a confidence interval, which needs at least two seeds: give "
            "--num-runs 2 or more"
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


def _check_most(question: PlanQuestion) -> None:
    """Raise UsageError if ``--max`` has a wrong value or conflicts with other flags."""
    if question.most != USERS:
        raise UsageError(f"--max {question.most}: must be {USERS}")
    if question.low != question.high:
        raise UsageError(
            f"--dp {question.low}..{question.high}: must be a single number with --max {USERS}, "
            "such as --dp 4"
        )
    if question.every:
        raise UsageError(f"--every: not supported with --max {USERS}; leave one of them out")
