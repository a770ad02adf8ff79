"""What metrics must know of a run beside its tables: the window, and the theorem that holds."""

from __future__ import annotations

from math import inf, nextafter

from fairbench.config import ExperimentSpec
from fairbench.core import ServiceBound
from fairbench.metrics.records import Window
from fairbench.schedulers.base import LocalScheduler, Router


def run_window(spec: ExperimentSpec, last_arrival_s: float, now_s: float) -> Window:
    """[end of warm-up, end of arrivals); the whole run where that would be hardly a window.

    Fixed counts of programs may end within the warm-up, and a run may be interrupted there. The
    end of the run itself (``now_s``) is included, since its last tokens come just then.
    """
    end_s = spec.duration_s
    if end_s is None:
        end_s = last_arrival_s
        if end_s <= 2 * spec.warmup_s:
            return Window(0.0, nextafter(now_s, inf))
    if now_s <= spec.warmup_s:
        return Window(0.0, nextafter(now_s, inf))
    return Window(spec.warmup_s, end_s)


def cluster_bound(
    router: Router, local: LocalScheduler, workers: int
) -> tuple[ServiceBound | None, str]:
    """The theorem that holds for router and local scheduler together, or None and why."""
    bound = local.service_bound()
    if bound is None:
        return None, f"{local.name} bounds no service difference"
    if workers == 1:
        return bound, ""
    if not router.cluster_theorem:
        return None, f"no theorem covers {local.name} behind {router.name} on several workers"
    return ServiceBound(bound.view, bound.quantum_tokens, router.cluster_theorem), ""
