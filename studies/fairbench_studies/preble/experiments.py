"""The runs behind the Preble paper's figures and claims, keyed by figure and system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from fairbench.config.resolve import resolve
from fairbench.config.spec import ExperimentSpec

CLIENTS = 4
WARMUP_S, DURATION_S, DRAIN_S = 30.0, 300.0, 9000.0

ROUND_ROBIN, PREBLE, ORACLE, MEMSERVE = "round-robin", "preble", "oracle", "memserve"
# ``SYSTEMS`` names the router and the local scheduler of each system.
SYSTEMS: Mapping[str, tuple[str, str]] = {
    ROUND_ROBIN: ("round-robin", "lpm"),
    PREBLE: ("preble-e2", "preble-groups"),
    ORACLE: ("oracle", "lpm"),
    MEMSERVE: ("memserve", "lpm"),
}

# ``RATES`` are 0.4, 0.8 and 1.2 times the workload's usual rate, in programs per second per client
# and GPU. The usual rates of workloads were chosen for runs with a heavy client. Without a heavy
# client, the workload ``agent`` leaves GPUs idle even at the highest rate.
RATES: Mapping[str, tuple[float, ...]] = {
    "tool-use": (1.8, 3.6, 5.4),
    "agent": (0.03, 0.06, 0.09),
    "programming": (0.056, 0.112, 0.168),
    "video-qa": (0.04, 0.08, 0.12),
    "loogle": (0.008, 0.016, 0.024),
}
MIX_RATES = (2.6, 4.0)
OFF = {
    "preble-e2.rebalance_threshold": inf,
    "preble-e2.autoscale_factor": inf,
    "preble-e2.imbalance_ratio": inf,
}
# ``ABLATION`` lists the steps of [Preble] Fig. 5. The name of a step is the mechanism that the step
# adds.
ABLATION: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    ROUND_ROBIN: ("round-robin", "lpm", {}),
    "E2 alone": ("preble-e2", "lpm", OFF),
    "rebalancing and autoscaling": ("preble-e2", "lpm", {"preble-e2.imbalance_ratio": inf}),
    "prefill/decode balancing": ("preble-e2", "lpm", {}),
    "priority groups": ("preble-e2", "preble-groups", {}),
}
# Every prompt of a workload begins with ``SHARED_BY_ALL`` common tokens, which every worker soon
# caches. MemServe ignores cache matches of at most ``SHARED_BY_ALL`` tokens; otherwise, all
# requests would go to the worker that received the first request.
SHARED_BY_ALL = {"tool-use": 190, "agent": 20, "programming": 2800, "video-qa": 15, "loogle": 13}
WINDOWS_S = (60.0, 180.0, 360.0)
SCALES = (2, 4, 8)
GPUS = 4
# With the burstiness ``BURSTS``, gaps between arrivals have a coefficient of variation of 2, as in
# Azure's trace, which the repository does not include.
BURSTS = 0.25


class Key(NamedTuple):
    """The key of a run: figure, workload, system, and the value of the varied parameter."""

    figure: str
    workload: str
    system: str
    value: float


@dataclass(frozen=True)
class Experiment:
    """A workload of the Preble paper that is run with a router and a local scheduler."""

    workload: str
    router: str
    local: str
    rate: float
    gpus: int = GPUS
    burstiness: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, seed: int) -> ExperimentSpec:
        """Return the experiment with the given seed, without a heavy client."""
        flags = {
            "workload": self.workload,
            "scenario": "none",
            "router": self.router,
            "local": self.local,
            "dp": self.gpus,
            "clients": CLIENTS,
            "request_rate": self.rate * self.gpus,
            "burstiness": self.burstiness,
            "duration_s": DURATION_S,
            "warmup_s": WARMUP_S,
            "max_drain_s": DRAIN_S,
            "seed": seed,
        }
        return resolve(flags, self.settings)


def experiments() -> dict[Key, Experiment]:
    """Return all experiments of the paper. Several keys may name the same experiment."""
    return dict([*_fig3(), *_fig4(), *_fig5(), *_baselines(), *_windows(), *_scales()])


def _fig3() -> Iterator[tuple[Key, Experiment]]:
    for workload, rates in RATES.items():
        for system in (ROUND_ROBIN, PREBLE):
            for rate in rates:
                one = Experiment(workload, *SYSTEMS[system], rate)
                yield Key("fig3", workload, system, rate), one


def _fig4() -> Iterator[tuple[Key, Experiment]]:
    for system in (ROUND_ROBIN, PREBLE):
        for rate in MIX_RATES:
            one = Experiment("preble-mix", *SYSTEMS[system], rate, burstiness=BURSTS)
            yield Key("fig4", "preble-mix", system, rate), one


def _fig5() -> Iterator[tuple[Key, Experiment]]:
    for step, (router, local, settings) in ABLATION.items():
        rate = RATES["tool-use"][-1]
        yield (
            Key("fig5", "tool-use", step, rate),
            Experiment("tool-use", router, local, rate, settings=settings),
        )


def _baselines() -> Iterator[tuple[Key, Experiment]]:
    for workload, (_, rate, _) in RATES.items():
        for system in (PREBLE, ORACLE, MEMSERVE):
            settings = _least_match(workload) if system == MEMSERVE else {}
            one = Experiment(workload, *SYSTEMS[system], rate, settings=settings)
            yield Key("baselines", workload, system, rate), one


def _least_match(workload: str) -> Mapping[str, Any]:
    return {"memserve.min_match_tokens": SHARED_BY_ALL[workload] + 1}


def _windows() -> Iterator[tuple[Key, Experiment]]:
    for workload in ("tool-use", "video-qa"):
        for window_s in WINDOWS_S:
            settings = {"preble-e2.window_s": window_s}
            rate = RATES[workload][1]
            yield (
                Key("window", workload, PREBLE, window_s),
                Experiment(workload, *SYSTEMS[PREBLE], rate, settings=settings),
            )


def _scales() -> Iterator[tuple[Key, Experiment]]:
    """Yield runs in which documents and GPUs increase by the same factor ([Preble] §F)."""
    for system in (ROUND_ROBIN, PREBLE):
        for gpus in SCALES:
            rate = RATES["loogle"][-1]
            one = Experiment("loogle", *SYSTEMS[system], rate, gpus=gpus)
            yield Key("scale", "loogle", system, gpus), one
