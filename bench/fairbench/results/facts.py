"""The window of a run, and the theorem that bounds its service differences."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nextafter

from fairbench.config import ExperimentSpec
from fairbench.core import NoBound, ServiceBound, ServiceWeights
from fairbench.metrics.records import Window
from fairbench.schedulers.base import LocalScheduler, Router


def run_window(spec: ExperimentSpec, last_arrival_s: float, now_s: float) -> Window:
    """Return [end of warm-up, end of arrivals), or the whole run.

    The whole run is the window where the spec says so, and where hardly a window would be left.
    Fixed counts of programs may end within the warm-up, all of a trace may come at once, and a run
    may be interrupted there. The end of the run itself (``now_s``) is included, since its last
    tokens come just then.
    """
    whole = Window(0.0, nextafter(now_s, inf))
    end_s = spec.duration_s
    if end_s is None:
        end_s = last_arrival_s
        if end_s <= 2 * spec.warmup_s:
            return whole
    if spec.window == "whole" or now_s <= spec.warmup_s or last_arrival_s < spec.warmup_s:
        return whole
    return Window(spec.warmup_s, end_s)


DISAGGREGATED = (
    "disaggregated: a theorem bounds the prefill side alone, not the answers that decode workers "
    "generate"
)


def cluster_bound(
    router: Router,
    local: LocalScheduler,
    workers: int,
    gateway: str | None = None,
    *,
    disaggregated: bool = False,
) -> tuple[ServiceBound | None, str]:
    """Return the theorem for gateway, router and local scheduler; None with the reason."""
    bound = NoBound(DISAGGREGATED) if disaggregated else local.service_bound()
    if isinstance(bound, NoBound):
        return None, bound.reason
    counted, charged = ServiceWeights(), bound.weights
    if charged != counted:
        return None, (
            f"{local.name} charges {charged.extend} a token of extend and {charged.output} a token "
            f"of output, while service counts {counted.extend} and {counted.output}"
        )
    if router.holds or gateway:
        holder = gateway or router.name
        return None, f"{holder} holds requests back, where {local.name} does not see them"
    if workers == 1:
        return bound, ""
    theorem = router.cluster_theorems.get(bound.source)
    if theorem is None:
        return None, f"no theorem covers {local.name} behind {router.name} on several workers"
    return replace(bound, source=theorem, workers=workers), ""
