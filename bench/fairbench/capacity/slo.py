"""A target of a plan: a metric and its limit (``ttft_p99<2s``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import NamedTuple

from fairbench.errors import UsageError
from fairbench.metrics.catalogue import CATALOGUE, CLIENTS, SHORT, key_of, metric_of, short_of
from fairbench.metrics.metric import Better, Form, Metric, Of

SHAPE = re.compile(
    r"(?P<metric>[^<>=\s]+)\s*(?P<sign>[<>]=?)\s*(?P<limit>[0-9]{1,15}(\.[0-9]{1,15})?)\s*"
    r"(?P<unit>%|ms|s)?"
)
NEGATIVE = re.compile(r"[<>]=?\s*-\s*[0-9]")
WRITE = "write METRIC<LIMIT or METRIC>LIMIT, such as ttft_p99<2s or min_share>80%"
LATENCY = re.compile(r"(ttft|tpot|e2el)_(p[1-9][0-9]?|mean|median)")
SHARING = re.compile(r"sharing_(p50|p95|p99)")
RANKED = re.compile(r"(?:victim_)?p([1-9][0-9]?)_\w+")
MOST_NAMED = 5  # names in the message for an unknown metric
USUAL_RANKS = (50, 99)  # percentiles that every summary has
# Factors from a target's unit to its metric's unit, by (metric's unit, target's unit).
UNITS = {("ms", "s"): 1000.0, ("ms", "ms"): 1.0, ("s", "s"): 1.0, ("s", "ms"): 0.001}


class Slo(NamedTuple):
    """A target: ``metric`` must be below ``limit``, or above unless ``below``.

    The limit itself is good enough if it is ``inclusive``.
    """

    text: str
    metric: str
    below: bool
    inclusive: bool
    limit: float

    @property
    def entry(self) -> Metric:
        """The catalogue entry of the metric."""
        found = metric_of(self.metric)
        assert found is not None  # ``parse_slo`` has checked the name
        return found

    @property
    def rank(self) -> int | None:
        """The percentile of the metric; None if every summary has it."""
        match = RANKED.fullmatch(self.metric.rpartition(".")[2])
        return int(match[1]) if match and int(match[1]) not in USUAL_RANKS else None

    @property
    def of_sharing(self) -> bool:
        """Return whether the metric needs simulations of clients alone."""
        return "sharing_incentive" in self.metric

    def met_by(self, value: float) -> bool:
        """Return whether a value meets the limit."""
        if value == self.limit:
            return self.inclusive
        return value < self.limit if self.below else value > self.limit

    def margin(self, value: float) -> float | None:
        """Return a value's margin as a fraction of the limit; None for a limit of 0."""
        if not self.limit:
            return None
        left = self.limit - value if self.below else value - self.limit
        return left / self.limit


def parse_slos(texts: Iterable[str]) -> tuple[Slo, ...]:
    """Parse the targets, at least one. Raises UsageError naming the wrong part."""
    found = tuple(parse_slo(text) for text in texts)
    if not found:
        raise UsageError(f"--slo: missing; a plan needs at least one target: {WRITE}")
    return found


def parse_slo(text: str) -> Slo:
    """Parse ``METRIC<LIMIT`` (if less is better) or ``METRIC>LIMIT``.

    A metric is one of a run's summary, ``clients.NAME.KEY``, ``min_share``, ``on_time``, or a name
    in the order of other tools, such as ``ttft_p99``, whose limit needs a unit. Raises UsageError
    for another shape, sign, metric or unit, and for a limit that no value can meet.
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
    """Return the summary key for a user's name of a metric."""
    if match := LATENCY.fullmatch(name):
        return f"{match[2]}_{match[1]}_ms"
    if match := SHARING.fullmatch(name):
        return f"sharing_incentive_{match[1]}"
    return key_of(name)


def _in_unit_of(entry: Metric, unit: str | None, text: str) -> float:
    if unit is None:
        return 1.0
    if unit == "%" and (entry.form.is_share or entry.form is Form.INDEX):
        return 0.01
    if (entry.unit, unit) in UNITS:
        return UNITS[entry.unit, unit]
    written = f"in {entry.unit}" if entry.unit else "a plain number"
    raise UsageError(f"--slo {text}: {entry.key} is {written}, not in {unit}")


def _is_of_a_run(entry: Metric) -> bool:
    """Return whether a metric has a better direction and needs a single run only."""
    beside_others = entry.of_comparison and not entry.key.startswith("sharing_incentive")
    return entry.better is not Better.NEITHER and not beside_others


def _unknown_metric(name: str) -> UsageError:
    """Return the error for an unknown metric, with the names nearest to it."""
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
