"""A run's summary, computed from its records, and its JSON form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite, nextafter
from typing import Any

import numpy as np

from fairbench.metrics.catalogue import CATALOGUE, CLIENTS, Notes
from fairbench.metrics.censored_latency import Ranked, samples
from fairbench.metrics.client_summary import (
    ClientSummary,
    Victims,
    WellBehaved,
    chosen_of_clients,
    client_summaries,
)
from fairbench.metrics.contention import with_admissions
from fairbench.metrics.fairness import TenantShares, shares, tenant_shares
from fairbench.metrics.fairness_summary import Fairness, OverTime, fairness, over_time
from fairbench.metrics.goodput import Goodput, goodput
from fairbench.metrics.records import Facts, Programs, Requests, Window
from fairbench.metrics.shown_percentiles import KEY, written_percentiles
from fairbench.metrics.tables import ServiceLog, Tables
from fairbench.metrics.totals import (
    Totals,
    request_latency_ms,
    time_to_finish,
    totals,
)
from fairbench.metrics.useful_service import useful_service


@dataclass(frozen=True, slots=True)
class Summary:
    """The metrics of one run. Undefined numbers are NaN or infinite here, null in JSON.

    - ``window`` is the interval in which rates and shares were measured.
    - ``request_latency`` has keys such as ``mean_ttft_ms``; ``pace`` has ``time_to_50pct_s``
    and so on.
    - ``computed`` holds what catalogue entries compute themselves, for the run and for each client.
    - ``goodput`` is empty if no client has a latency target, ``tenants`` if no client belongs
    to a tenant.
    - ``some`` holds what only some runs have, for the run and for each client: user-chosen
    percentiles, demotions, and useful service if somebody pads.
    - ``notes`` gives the reason for each null of the JSON, by key (``clients.NAME.key`` inside
    ``clients``).
    - ``censored`` lists the latencies that are lower bounds, to be printed as "> x s" (and
    never rounded up).
    """

    window: Window
    totals: Totals
    request_latency: Mapping[str, float]
    pace: Mapping[str, float]
    fairness: Fairness
    over_time: OverTime
    victims: Victims
    clients: tuple[ClientSummary, ...]
    computed: Mapping[str, float]
    computed_clients: tuple[Mapping[str, float], ...]
    goodput: Goodput
    tenants: TenantShares
    some: Mapping[str, Any]
    some_clients: tuple[Mapping[str, float], ...]
    notes: Mapping[str, str]
    censored: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a flat object of JSON types, except ``clients``, ``notes``, ``censored``."""
        flat: dict[str, Any] = asdict(self.totals) | dict(self.request_latency) | dict(self.pace)
        flat |= {"window_start_s": self.window.start_s, "window_end_s": self.window.end_s}
        flat |= dict(self.over_time.run)
        flat |= asdict(self.fairness) | asdict(self.victims) | dict(self.computed)
        flat |= {**self.goodput.run, **self.some} | _rows(self.tenants.run)
        clients = zip(
            *(self.clients, self.computed_clients, self.some_clients, self.over_time.clients),
            strict=True,
        )
        goodputs, shares = self.goodput.clients, self.tenants.clients
        return _without_nan(flat) | {
            "clients": [
                _without_nan(
                    {
                        **one._asdict(),
                        **more,
                        **goodputs.get(one.client, {}),
                        **some,
                        **windows,
                        **shares.get(one.client, {}),
                    }
                )
                for one, more, some, windows in clients
            ],
            "worst_windows": self.over_time.rows,
            "censored": list(self.censored),
            "notes": dict(self.notes),
        }


def summarize(requests: Requests, programs: Programs, log: ServiceLog, facts: Facts) -> Summary:
    """Return every metric of a run. A run that stopped early ends the window.

    Args:
        requests: Table of the run's requests.
        programs: Table of the run's programs.
        log: The run's service log.
        facts: Facts about the run that the tables do not contain.
    """
    notes = Notes()
    # Requests that end with the run are included: their last tokens come at the horizon.
    horizon_s = nextafter(facts.horizon_s, inf)
    window = Window(facts.window.start_s, min(facts.window.end_s, horizon_s))
    seen = with_admissions(requests)
    got = shares(seen, programs, log, facts, window)
    cohorts = Ranked(samples(requests, programs, facts))
    counted = _totals(requests, programs, log, facts, notes)
    good = WellBehaved(programs, cohorts, facts, counted.lost)
    tables = Tables([client.name for client in facts.clients], requests, programs, log)
    cut = replace(facts, window=window)
    return Summary(
        window=window,
        totals=counted,
        request_latency=_request_latency(requests, facts, notes),
        pace=_pace(programs, facts, notes),
        fairness=fairness(tables, facts, got, notes),
        over_time=over_time(replace(tables, requests=seen), facts, got, notes),
        victims=good.summary(notes),
        clients=tuple(client_summaries(tables, facts, got, cohorts, counted.lost, notes)),
        computed=_computed(tables, cut, notes),
        computed_clients=tuple(_computed_of_clients(tables, cut, notes)),
        goodput=goodput(tables, cut, notes) if facts.promised else Goodput(),
        tenants=tenant_shares(got, facts, notes),
        some=_demoted(requests) | _chosen(good, facts, notes),
        some_clients=tuple(
            demoted | chosen | served
            for demoted, chosen, served in zip(
                _demoted_of_clients(requests, len(facts.clients)),
                chosen_of_clients(cohorts, facts, counted.lost, notes),
                useful_service(tables, cut, notes) if facts.padded else [{}] * len(facts.clients),
                strict=True,
            )
        ),
        notes=notes.reasons,
        censored=tuple(notes.censored),
    )


def _totals(
    requests: Requests, programs: Programs, log: ServiceLog, facts: Facts, notes: Notes
) -> Totals:
    result = totals(requests, programs, log, facts.horizon_s, facts.failed)
    for key in ("request_throughput", "output_throughput", "extend_throughput"):
        notes.value(key, getattr(result, key))
    notes.value("cache_hit_rate", result.cache_hit_rate)
    return result


def _request_latency(requests: Requests, facts: Facts, notes: Notes) -> dict[str, float]:
    result = request_latency_ms(requests, facts.percentiles)
    for key, value in result.items():
        notes.value(key, value)
    return result


def _pace(programs: Programs, facts: Facts, notes: Notes) -> dict[str, float]:
    """Return the times until half, 90% and all of the programs had finished."""
    result = {}
    for percent in (50, 90, 100):
        key = f"time_to_{percent}pct_s"
        result[key] = notes.value(key, time_to_finish(programs, facts.window, percent))
    return result


def _demoted(requests: Requests) -> dict[str, Any]:
    """Return the number of demoted requests; empty without demotion."""
    return {} if requests.demoted is None else {"demoted": int(requests.demoted.sum())}


def _demoted_of_clients(requests: Requests, clients: int) -> list[dict[str, int]]:
    """Return the number of demoted requests of each client."""
    if requests.demoted is None:
        return [{}] * clients
    counts = np.bincount(requests.client, weights=requests.demoted, minlength=clients)
    return [{"demoted": int(count)} for count in counts.tolist()]


def _chosen(good: WellBehaved, facts: Facts, notes: Notes) -> dict[str, Any]:
    """Return the user's percentiles of well-behaved clients; empty without a choice."""
    if not facts.percentiles:
        return {}
    return {KEY: written_percentiles(facts.percentiles)} | {
        f"victim_p{one}_s": good.percentile(one, notes) for one in facts.percentiles
    }


def _computed(tables: Tables, facts: Facts, notes: Notes) -> dict[str, float]:
    """Return the run's metrics that catalogue entries compute."""
    return {
        key: notes.value(key, metric.compute(tables, facts))
        for key, metric in CATALOGUE.items()
        if metric.compute
    }


def _computed_of_clients(tables: Tables, facts: Facts, notes: Notes) -> Iterator[dict[str, float]]:
    """Yield the metrics that entries compute for each client, and weights other than 1."""
    weighted = facts.weighted
    columns = {
        key: metric.compute_clients(tables, facts).tolist()
        for key, metric in CATALOGUE.items()
        if metric.compute_clients
    }
    for index, client in enumerate(facts.clients):
        prefix = f"{CLIENTS}{client.name}."
        own = {"weight": client.weight} if weighted else {}
        yield own | {
            key: notes.value(prefix + key, column[index]) for key, column in columns.items()
        }


def _rows(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with null for undefined numbers, including in rows of tables."""
    return {
        key: [_without_nan(row) for row in value] if isinstance(value, list) else value
        for key, value in values.items()
    }


def _without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with null for every number that JSON cannot represent."""
    return {
        key: None if isinstance(value, float) and not isfinite(value) else value
        for key, value in values.items()
    }
