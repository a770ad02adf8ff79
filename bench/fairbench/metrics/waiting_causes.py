"""Facts that tell why a client waited in a window: queues, load, workers and cache hits."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairbench.metrics.arrays import ratio
from fairbench.metrics.reasons import NAN
from fairbench.metrics.records import REFUSED, Facts, Flags, Floats, Requests, Window
from fairbench.metrics.waiting import EVERYWHERE, Waits, waits


class WaitingCauses:
    """The waits of a run, from which ``row`` tells why a client waited in a window.

    ``measured`` is the window of the run with which a shorter window is compared.
    """

    def __init__(self, requests: Requests, facts: Facts, measured: Window) -> None:
        self._waits = _waits_by_place(requests, facts.horizon_s)
        self._requests = requests = requests.take(requests.status != REFUSED)
        self._measured = measured
        begun_s = np.where(np.isnan(requests.admitted_s), facts.horizon_s, requests.admitted_s)
        self._wait_s: Floats = np.maximum(0.0, begun_s - requests.arrival_s)

    def row(self, client: int, window: Window) -> dict[str, Any]:
        """Return the facts on a client's waits in a window; values without requests are NaN.

        - ``wait_p50_s`` is the median wait for admission of the client's requests that arrived
          before the window's end and were not admitted before its start. ``run_wait_p50_s`` is the
          median over all of the client's requests.
        - ``waiting`` and ``others_waiting`` are mean numbers of waiting requests, of the client and
          of all other clients.
        - ``arrivals_ratio`` is the client's rate of requests in the window divided by its rate in
          the measured window.
        - ``worker`` is the worker at which the client waited longest, or None if it is the
          gateway's queue; ``worker_ratio`` is the part of the client's waiting that was there.
        - ``admitted`` is the number of the client's requests admitted in the window, and
          ``hit_rate`` is their cache hit rate. ``run_hit_rate`` covers all of the client's
          requests.
        """
        requests, own = self._requests, self._requests.client == client
        open_here = own & (requests.arrival_s < window.end_s)
        open_here &= requests.arrival_s + self._wait_s >= window.start_s
        admitted = own & window.holds(requests.admitted_s)
        here = own & window.holds(requests.arrival_s)
        measured = own & self._measured.holds(requests.arrival_s)
        rate = ratio(float(measured.sum()), self._measured.length_s)
        return {
            "wait_p50_s": self._median_wait_s(open_here),
            "run_wait_p50_s": self._median_wait_s(own),
            **self._queues(client, window),
            "arrivals_ratio": ratio(ratio(float(here.sum()), window.length_s), rate),
            "admitted": int(admitted.sum()),
            "hit_rate": self._hit_rate(admitted),
            "run_hit_rate": self._hit_rate(own & ~np.isnan(requests.admitted_s)),
        }

    def _median_wait_s(self, chosen: Flags) -> float:
        return float(np.median(self._wait_s[chosen])) if chosen.any() else NAN

    def _hit_rate(self, chosen: Flags) -> float:
        cached = float(self._requests.cached_tokens[chosen].sum())
        return ratio(cached, cached + float(self._requests.extend_tokens[chosen].sum()))

    def _queues(self, client: int, window: Window) -> dict[str, Any]:
        table = self._waits
        start_s, end_s = (np.clip(at, *window) for at in (table.start, table.end))
        waited_s, own = end_s - start_s, table.client == client
        # the gateway's queue comes first, before worker 0
        places = np.bincount(table.worker[own] - EVERYWHERE, waited_s[own], minlength=1)
        longest, total_s = int(places.argmax()) + EVERYWHERE, float(places.sum())
        return {
            "waiting": ratio(total_s, window.length_s),
            "others_waiting": ratio(float(waited_s.sum()) - total_s, window.length_s),
            "worker": None if longest == EVERYWHERE else longest,
            "worker_ratio": ratio(float(places.max()), total_s),
        }


def _waits_by_place(requests: Requests, horizon_s: float) -> Waits:
    """Return the waits of requests, of which those at a worker begin after the gateway's queue."""
    if requests.routed_s is None:
        return waits(requests, horizon_s)
    columns = requests.to_columns()
    routed_s = columns.pop("routed_s")
    held = np.isnan(routed_s)
    in_gateway = columns | {"worker": np.full(len(requests), EVERYWHERE), "routed_s": routed_s}
    at_worker = columns | {"arrival_s": np.where(held, requests.arrival_s, routed_s)}
    parts = [waits(Requests.from_columns(each), horizon_s) for each in (in_gateway, at_worker)]
    return Waits(*(np.concatenate(each) for each in zip(*parts, strict=True)))
