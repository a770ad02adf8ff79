"""Metrics of runs that play recorded sessions: duration without think time, turns, cache hits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairbench.metrics.catalogue import CLIENTS, Notes, Part
from fairbench.metrics.censored_latency import Sample, mean_percentile, percentile, samples
from fairbench.metrics.records import FINISHED, REFUSED, Facts, Floats
from fairbench.metrics.tables import Tables

PERCENTS = (50, 95)
OF_RUN = ("session", "ttft")  # latencies that are averaged over the well-behaved clients


def session_summary(tables: Tables, facts: Facts, notes: Notes) -> Part:
    """Return the metrics of a run whose programs are recorded sessions."""
    sessions = _Sessions(tables, facts)
    waits = samples(tables.requests, tables.programs, replace(facts, latency="ttft"))
    found = [
        {
            f"{name}_p{percent}_s": percentile(sample, percent)
            for name, sample in (
                ("session", sessions.busy(at)),
                ("turn", sessions.turns(at)),
                ("ttft", wait),
            )
            for percent in PERCENTS
        }
        for at, wait in enumerate(waits)
    ]
    clients = []
    for at, (client, own) in enumerate(zip(facts.clients, found, strict=True)):
        prefix = f"{CLIENTS}{client.name}."
        row = {key: notes.latency(prefix + key, one) for key, one in own.items()}
        hit = notes.values({"session_cache_hit_rate": sessions.hit_rate(at)}, prefix)
        clients.append({**row, **hit})
    good = [at for at, one in enumerate(facts.clients) if not one.misbehaving]
    # the other clients sent nothing in the window
    here = [at for at in good if waits[at].n] or good
    run = {
        key: notes.latency(key, mean_percentile([found[at][own] for at in here]))
        for own in (f"{name}_p{percent}_s" for name in OF_RUN for percent in PERCENTS)
        for key in [f"victim_{own}"]
    }
    return Part(run, clients)


class _Sessions:
    def __init__(self, tables: Tables, facts: Facts) -> None:
        requests, programs = tables.requests, tables.programs
        self._facts = facts
        self._programs = programs
        self._arrived = facts.window.holds(programs.arrival_s)
        order = np.lexsort((requests.arrival_s, requests.program_id))
        self._requests = requests.take(order)
        ids = self._requests.program_id
        self._first = np.searchsorted(ids, programs.program_id, "left").tolist()
        self._after = np.searchsorted(ids, programs.program_id, "right").tolist()
        ends = self._requests.finish_s
        self._ends = np.where(np.isnan(ends), facts.horizon_s, ends)

    def _of(self, client: int) -> list[int]:
        chosen: list[int] = np.flatnonzero(
            self._arrived & (self._programs.client == client)
        ).tolist()
        return chosen

    def busy(self, client: int) -> Sample:
        """Return the time in which each session had a call running: latency without think time."""
        status = self._programs.status
        mine = self._of(client)
        known = [self._busy_s(one) for one in mine if status[one] == FINISHED]
        more = [self._busy_s(one) for one in mine if status[one] not in (FINISHED, REFUSED)]
        refused = sum(status[one] == REFUSED for one in mine)
        return Sample(np.array(known, float), np.array(more, float), int(refused))

    def _busy_s(self, program: int) -> float:
        """Return the length of the union of the times in which the program's calls ran."""
        rows = slice(self._first[program], self._after[program])
        busy_s, until_s = 0.0, -np.inf
        for start_s, end_s in zip(
            self._requests.arrival_s[rows].tolist(), self._ends[rows].tolist(), strict=True
        ):
            busy_s += max(0.0, end_s - max(start_s, until_s))
            until_s = max(until_s, end_s)
        return busy_s

    def turns(self, client: int) -> Sample:
        """Return the duration of each call in the client's sessions, from arrival to last token."""
        mine = self._of(client)
        rows = [row for one in mine for row in range(self._first[one], self._after[one])]
        took_s: Floats = self._ends[rows] - self._requests.arrival_s[rows]
        status = self._requests.status[rows]
        done, refused = status == FINISHED, status == REFUSED
        return Sample(took_s[done], took_s[~done & ~refused], int(refused.sum()))

    def hit_rate(self, client: int) -> float:
        """Return the median cached fraction of input of the client's sessions; NaN without any."""
        rates = []
        for one in self._of(client):
            rows = slice(self._first[one], self._after[one])
            admitted = ~np.isnan(self._requests.admitted_s[rows])
            tokens = int(self._requests.input_tokens[rows][admitted].sum())
            if tokens:
                rates.append(int(self._requests.cached_tokens[rows][admitted].sum()) / tokens)
        return float(np.median(rates)) if rates else float("nan")
