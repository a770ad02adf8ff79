"""The frontier study's main claim: fair-finish has its rivals' throughput and a lower P99."""

from __future__ import annotations

from math import log
from typing import NamedTuple

from fairbench_studies.frontier.compare import Outcomes, seed_gains
from fairbench_studies.frontier.frozen import PUBLISHED, Cell, Configuration
from fairbench_studies.frontier.measures import Outcome
from fairbench_studies.frontier.paired_tests import Estimate, estimate, holm, non_inferior_gain

CLAIMED = (("tot", "s1"), ("judge", "s1"), ("long-qa", "s2"))
RIVALS = tuple(Configuration(pair, PUBLISHED) for pair in ("d2lpm", "preble"))


class Claimed(NamedTuple):
    """The frontier study's main claim against one rival in one configuration.

    The claim says that fair-finish's throughput is at most ``margin`` lower than the rival's, and
    that fair-finish has a lower P99 than the rival. ``service``, ``output`` and ``makespan`` are
    factors by which fair-finish is better than the rival. ``p_service`` is the Holm-corrected
    p-value of the hypothesis that fair-finish's service is lower than the rival's by ``margin`` or
    more. ``p99_s`` holds the P99 latencies (s) of fair-finish and the rival, or NaN if too few
    latencies are known.
    """

    cell: Cell
    rival: Configuration
    service: Estimate
    output: Estimate
    makespan: Estimate
    p_service: float
    p99_s: tuple[float, float]
    latencies: int
    margin: float

    @property
    def throughput_holds(self) -> bool:
        """Whether fair-finish's mean service is at most ``margin`` lower than the rival's."""
        return self.service.gain >= log(1 - self.margin)

    @property
    def latency_holds(self) -> bool:
        """Whether fair-finish has a lower P99 latency over all seeds than the rival scheduler."""
        ours, rival = self.p99_s
        return ours < rival


def headline(found: Outcomes, ours: Configuration, margin: float) -> list[Claimed]:
    """Return the results for the main claim by rival and by configuration with finished runs."""
    pairs = [
        (cell, here, rival)
        for cell, here in found.items()
        if (cell.workload, cell.scenario) in CLAIMED and cell.part == "test"
        for rival in RIVALS
    ]
    if not pairs:
        return []

    def of(name: str, here: dict[Configuration, Outcome], rival: Configuration) -> Estimate:
        return estimate({"": seed_gains(name, here[ours].runs, here[rival].runs)})

    services = [of("service_tok_s", dict(here), rival) for _, here, rival in pairs]
    adjusted = holm([one.p_above(non_inferior_gain(margin)) for one in services])
    return [
        Claimed(
            cell,
            rival,
            service,
            of("output_tok_s", dict(here), rival),
            of("to_100_s", dict(here), rival),
            p,
            (_p99_s(here[ours]), _p99_s(here[rival])),
            here[ours].together.n,
            margin,
        )
        for (cell, here, rival), service, p in zip(pairs, services, adjusted, strict=True)
    ]


def _p99_s(outcome: Outcome) -> float:
    return float("nan") if outcome.p99 is None else outcome.p99.value_s
