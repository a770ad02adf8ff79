"""Latency of the well-behaved clients: the mean of their percentiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np

from fairbench.metrics.client_summary import PERCENTS, undefined
from fairbench.metrics.latency import Ranked, mean_percentile
from fairbench.metrics.notes import Notes
from fairbench.metrics.reasons import NO_VICTIM
from fairbench.metrics.records import FINISHED, UNFINISHED, Facts, Programs


@dataclass(frozen=True, slots=True)
class Victims:
    """The mean over the well-behaved clients of their percentiles, in seconds.

    See [DLPM] §6.1.

    Those that were absent are left out. ``victim_n`` is the smallest of their cohorts: that of the
    least certain percentile.
    """

    victim_p50_s: float
    victim_p95_s: float
    victim_p99_s: float
    victim_n: int


class WellBehaved:
    """The well-behaved clients that were not absent, whose latency counts.

    A client was absent if none of its work was in progress in the window, so that nothing kept
    it waiting. A client whose program came earlier and continues is kept, with an undefined
    latency, since a waiting client may send nothing more. If all were absent, all are kept.
    """

    def __init__(self, programs: Programs, cohorts: Ranked, facts: Facts) -> None:
        window, finished = facts.window, programs.status == FINISHED
        under_way = (programs.arrival_s < window.end_s) & (
            finished & (programs.finish_s > window.start_s) | (programs.status == UNFINISHED)
        )
        busy = np.bincount(programs.client[under_way], minlength=len(facts.clients)) > 0
        good = [index for index, one in enumerate(facts.clients) if not one.misbehaving]
        here = [index for index in good if busy[index] or cohorts.samples[index].n]
        self._cohorts, self._facts = cohorts, facts
        self._counted = here or good
        self._absent = len(good) - len(self._counted)

    def summary(self, notes: Notes) -> Victims:
        """Return their latency, which is undefined if it is undefined for one client."""
        p50, p95, p99 = (self.percentile(percent, notes) for percent in PERCENTS)
        samples = self._cohorts.samples
        return Victims(p50, p95, p99, min((samples[one].n for one in self._counted), default=0))

    def percentile(self, percent: int, notes: Notes) -> float:
        """Return a percentile over these clients."""
        every = self._cohorts.percentiles(percent)
        reasons = (
            f"client {self._facts.clients[one].name}: {undefined(self._cohorts.samples[one])}"
            for one in self._counted
            if not isfinite(every[one].value_s)
        )
        key = f"victim_p{percent}_s"
        if self._absent:
            absent = "one client" if self._absent == 1 else f"{self._absent} clients"
            notes.remark(key, f"without {absent} of whom nothing was under way")
        mean = mean_percentile([every[one] for one in self._counted])
        return notes.latency(key, mean, next(reasons, NO_VICTIM))
