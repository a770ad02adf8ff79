"""The catalogue of metrics: the unit, direction, columns and function of each metric.

``METRICS`` has the metrics of every run, and ``optional_entries`` has metrics that some runs lack.
To add a metric, add a ``Metric`` to a tuple in ``METRICS``. The functions of a metric get the
``RunData`` of a run; quantities that several metrics share are properties of ``RunData``.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from fairbench.metrics.arrays import ratio
from fairbench.metrics.contention import lone_tpot_ratio
from fairbench.metrics.fairness import jain, least
from fairbench.metrics.metric import (
    ALWAYS,
    BOTH,
    CACHED,
    CLIENT,
    COUNT,
    IN_REPORTS,
    LESS,
    MORE,
    OPTIONAL,
    Display,
    Form,
    Kind,
    Metric,
    Needs,
    Shown,
)
from fairbench.metrics.optional_entries import (
    COMPARISON,
    GOODPUT,
    LIMIT,
    LIVE,
    MEMORY,
    SESSIONS,
    SIDES,
    SOMETIMES,
    STALLS,
    TREE,
    WINDOWS,
)
from fairbench.metrics.reasons import (
    EMPTY_WINDOW,
    LATENCIES,
    NAN,
    NO_BOUND,
    NO_COHORT,
    NO_DEMAND,
    NO_SERVICE,
    NO_TIME,
    NO_VICTIM,
    NOT_ALL_ACTIVE,
    Noted,
)
from fairbench.metrics.records import FINISHED, UNFINISHED
from fairbench.metrics.service import gpu_time, gpu_time_of_clients, outside_fit_ratio
from fairbench.metrics.shown_percentiles import P95, P99, TAILS
from fairbench.metrics.totals import cache_hit_rate, time_to_finish
from fairbench.metrics.waiting import DEMAND_LIMITED_ABOVE

STATISTICS = ("mean", "median", "std", "p50", "p99")

TOTALS = (
    Metric("duration", "duration", unit="s", presence=ALWAYS,
        meaning="time from the first arrival to the end",
        compute=lambda run: run.facts.horizon_s),
    Metric("num_programs", "programs made", kind=COUNT, presence=ALWAYS,
        meaning="number of programs that clients started",
        compute=lambda run: len(run.programs)),
    Metric("num_requests", "requests made", kind=COUNT, presence=ALWAYS,
        meaning="number of requests that clients made",
        compute=lambda run: len(run.requests)),
    Metric("completed", "requests completed", kind=COUNT, better=MORE, presence=ALWAYS,
        meaning="number of completed requests; completed, failed, refused and unfinished requests "
        "add up to `num_requests`",
        compute=lambda run: run.count_status(FINISHED)),
    Metric("failed", "requests failed", kind=COUNT, better=LESS, presence=ALWAYS,
        meaning="number of requests that broke off (HTTP 5xx, timeout, disconnected); 0 in a "
        "simulation",
        compute=lambda run: run.facts.failed),
    Metric("refused", "requests refused", kind=COUNT, better=LESS, presence=ALWAYS,
        meaning="number of requests that were refused (larger than the KV pool, over a limit, HTTP "
        "4xx)",
        compute=lambda run: run.refused_requests),
    Metric("unfinished", "requests unfinished", kind=COUNT, better=LESS, presence=ALWAYS,
        meaning="number of requests that were queued or running at the end of the run",
        compute=lambda run: run.count_status(UNFINISHED)),
    Metric("total_input_tokens", "input of completed requests", kind=COUNT,
        meaning="input tokens of completed requests",
        compute=lambda run: int(run.requests.input_tokens[run.done].sum())),
    Metric("total_output_tokens", "output of completed requests", kind=COUNT, better=MORE,
        meaning="output tokens of completed requests",
        compute=lambda run: int(run.requests.output_tokens[run.done].sum())),
    Metric("request_throughput", "requests completed", unit="1/s", better=MORE,
        undefined=NO_TIME, shown=(Shown(Display.LIVE, 4),),
        meaning="completed requests per second of the whole run",
        compute=lambda run: run.per_second(run.count_status(FINISHED))),
    Metric("output_throughput", "output of completed requests", unit="tok/s", better=MORE,
        undefined=NO_TIME, presence=ALWAYS,
        meaning="output tokens of completed requests per second of the whole run",
        compute=lambda run: run.per_second(int(run.requests.output_tokens[run.done].sum()))),
    Metric("extend_throughput", "computed input of the whole run", unit="tok/s",
        undefined=NO_TIME, needs=CACHED,
        meaning="uncached input tokens per second of the whole run",
        compute=lambda run: run.per_second(
            float(sum(int(part.extend_tokens.sum()) for part in run.log.parts())))),
    Metric("programs", "programs", of=CLIENT, kind=COUNT, presence=ALWAYS,
        shown=(Shown(Display.CLIENTS, 0, dropped=3),),
        meaning="number of programs that the client started",
        by_client=lambda run: run.rows_by_client(run.programs.client)),
    Metric("requests", "requests", of=CLIENT, kind=COUNT,
        meaning="number of requests that the client made",
        by_client=lambda run: run.rows_by_client(run.requests.client)),
)  # fmt: skip


# ``OF_REQUESTS`` maps the name of each request latency to its meaning.
OF_REQUESTS = {
    "ttft": "time to first token of completed requests of the whole run",
    "tpot": "time per output token after the first, over completed requests of the whole run",
    "e2el": "time to the last token of completed requests of the whole run",
    "itl": "gap between two consecutive tokens of completed requests of the whole run",
}


def request_latency(statistic: str, latency: str) -> Metric:
    """Return a metric of the latency of completed requests; ``statistic`` may be p90."""
    known = "tpot" if (statistic, latency) == ("mean", "itl") else latency
    return Metric(
        key=f"{statistic}_{latency}_ms",
        heading=f"{statistic} {latency.upper()}",
        unit="ms",
        better=LESS,
        undefined=LATENCIES[known],
        meaning=OF_REQUESTS[latency],
        compute=lambda run: run.request_ms(statistic, latency),
    )


def _time_to_finish(percent: int, *shown: Shown) -> Metric:
    return Metric(
        f"time_to_{percent}pct_s", f"time to {percent}% completion", column=f"{percent}% done\ns",
        unit="s", better=LESS, shown=shown,
        undefined=f"fewer than {percent}% of the programs that arrived by the window's end "
        "finished",
        meaning=f"time until {percent}% of the programs that arrived by the window's end had "
        "finished",
        compute=lambda run: time_to_finish(run.programs, run.facts.window, percent),
    )  # fmt: skip


def victim_latency(rank: int, *shown: Shown) -> Metric:
    """Return the metric for a latency percentile, averaged over the well-behaved clients."""
    return Metric(
        f"victim_p{rank}_s", f"well-behaved P{rank}", column=f"P{rank}\ns", unit="s", better=LESS,
        form=Form.SECONDS, undefined=NO_VICTIM, shown=shown,
        meaning="mean, over the well-behaved clients, of a percentile of each client's latency",
        compute=lambda run: run.well_behaved.percentile(rank),
    )  # fmt: skip


def client_latency(rank: int) -> Metric:
    """Return the metric for a percentile of each client's latency."""
    after = int(rank != 50)
    return Metric(
        f"p{rank}_s", f"P{rank}", column=f"P{rank}\ns", unit="s", better=LESS, of=CLIENT,
        form=Form.SECONDS, undefined=NO_COHORT,
        shown=(Shown(Display.CLIENTS, 5 + after), Shown(Display.COMPARED_CLIENTS, 3 + after),
            Shown(Display.REPEATED_CLIENTS, 4 + after), Shown(Display.LIVE_CLIENTS, 2 + after)),
        meaning="latency of the client's programs, or of their first tokens (`latency`)",
        by_client=lambda run: run.client_latency(rank),
    )  # fmt: skip


VICTIM_P50 = replace(
    victim_latency(50, Shown(Display.COMPARISON, 6, dropped=3), Shown(Display.CONTRAST, 3),
        Shown(Display.REPEATS, 12), Shown(Display.LIVE, 9)),
    presence=ALWAYS,
)  # fmt: skip
CLIENT_P50 = replace(client_latency(50), presence=ALWAYS)


def chosen_metric(key: str) -> Metric | None:
    """Return the metric of a latency percentile such as ``p90_s``; None for any other ``key``."""
    match = re.fullmatch(r"(victim_)?p([1-9][0-9]?)_(s|(?:ttft|tpot|e2el)_ms)", key)
    if match is None or (match[1] and match[3] != "s"):
        return None
    rank = int(match[2])
    if match[3] != "s":
        return request_latency(f"p{rank}", match[3].removesuffix("_ms"))
    made = victim_latency(rank) if match[1] else client_latency(rank)
    return replace(made, shown=(VICTIM_P50 if match[1] else CLIENT_P50).shown)


LATENCY = (
    *(request_latency(statistic, latency) for latency in LATENCIES for statistic in STATISTICS),
    _time_to_finish(50),
    _time_to_finish(90, Shown(Display.COMPARISON, 8, dropped=1)),
    _time_to_finish(100, Shown(Display.LIVE, 12)),
    Metric("window_start_s", "start of the window", unit="s", presence=IN_REPORTS,
        meaning="start of the window, after the warm-up",
        compute=lambda run: run.window.start_s),
    Metric("window_end_s", "end of the window", unit="s", presence=IN_REPORTS,
        meaning="end of the window, at the end of arrivals",
        compute=lambda run: run.window.end_s),
)  # fmt: skip


SERVICE = (
    Metric("service_rate_tok_s", "service", unit="tok/s", better=MORE, of=BOTH,
        undefined=EMPTY_WINDOW, presence=ALWAYS, meaning="service per second of the window",
        shown=(Shown(Display.CLIENTS, 1),
            Shown(Display.HEADLINES, 4, heading="service", form=Form.WHOLE,
                note="input + 2 x output tok/s"),
            Shown(Display.COMPARISON, 3), Shown(Display.CONTRAST, 5),
            Shown(Display.COMPARED_CLIENTS, 1),
            Shown(Display.REPEATS, 1), Shown(Display.SEEDS, 4, form=Form.WHOLE),
            Shown(Display.REPEATED_CLIENTS, 1), Shown(Display.LIVE, 1),
            Shown(Display.LIVE_CLIENTS, 1)),
        compute=lambda run: run.window_rate(run.fair_shares.service),
        by_client=lambda run: run.window_rates(run.fair_shares.service)),
    Metric("actual_service_tok_s", "computed service", column="computed\ntok/s", unit="tok/s",
        better=MORE, of=BOTH, undefined=EMPTY_WINDOW, needs=CACHED, presence=ALWAYS,
        verdict=False, meaning="computed service per second of the window",
        shown=(Shown(Display.CLIENTS, 3, dropped=1), Shown(Display.REPEATS, 2),
            Shown(Display.REPEATED_CLIENTS, 2)),
        compute=lambda run: run.window_rate(run.fair_shares.actual),
        by_client=lambda run: run.window_rates(run.fair_shares.actual)),
    Metric("demand_tok_s", "demand", unit="tok/s", of=CLIENT, undefined=EMPTY_WINDOW,
        meaning="service that the client [was due](#due-service)",
        by_client=lambda run: run.window_rates(run.fair_shares.demand)),
    Metric("entitlement_tok_s", "fair share", unit="tok/s", of=CLIENT, undefined=EMPTY_WINDOW,
        meaning="max-min fair share of the client",
        by_client=lambda run: run.window_rates(run.fair_shares.entitlement)),
    Metric("entitlement_ratio", "of fair share", column="of fair\nshare", better=MORE,
        of=CLIENT, form=Form.PERCENT, undefined="the client was entitled to no service",
        presence=ALWAYS, shown=(Shown(Display.CLIENTS, 4), Shown(Display.REPEATED_CLIENTS, 3)),
        meaning="the client's service, divided by its max-min fair share; null if "
        "[not contended](#not-contended)",
        by_client=lambda run: [
            run.noted_share(share if run.fair_shares.contended else NAN)
            for share in run.fair_shares.ratio.tolist()]),
    Metric("output_rate_tok_s", "output", unit="tok/s", better=MORE, undefined=EMPTY_WINDOW,
        shown=(Shown(Display.REPEATS, 3), Shown(Display.LIVE, 2)),
        meaning="output tokens per second of the window",
        compute=lambda run: run.window_rate(run.fair_shares.booked.output)),
    Metric("extend_rate_tok_s", "computed input", unit="tok/s", undefined=EMPTY_WINDOW,
        needs=CACHED, shown=(Shown(Display.LIVE, 3),),
        meaning="uncached input tokens per second of the window",
        compute=lambda run: run.window_rate(run.fair_shares.booked.extend)),
    Metric("queue_empty_share", "queues empty", form=Form.PERCENT, most=1.0,
        undefined="the window is empty", presence=IN_REPORTS,
        meaning="part of the window in which no request waited; an estimate if the server reports "
        "no admissions",
        compute=lambda run: run.queue_empty_share),
    Metric("demand_limited", "queues empty for more than 5% of the time", kind=Kind.FLAG,
        undefined="the run is old, and the server did not report admissions",
        presence=IN_REPORTS,
        meaning="whether `queue_empty_share` is above 5%, so that rates reflect the load instead "
        "of the scheduler",
        compute=lambda run: not run.queue_empty_share.value <= DEMAND_LIMITED_ABOVE),
)  # fmt: skip


FAIRNESS = (
    Metric("jain_index", "Jain index", better=MORE, form=Form.INDEX, most=1.0, verdict=False,
        undefined=NO_SERVICE, presence=ALWAYS,
        meaning="Jain's index of the clients' service, divided by their weights",
        shown=(Shown(Display.HEADLINES, 3,
                note="of service; the best for this demand may be below 1"),
            Shown(Display.CONTRAST, 8), Shown(Display.REPEATS, 5), Shown(Display.LIVE, 6)),
        compute=lambda run: jain(run.fair_shares.service / run.facts.client_weights)),
    Metric("jain_index_actual", "Jain index, computed service", column="Jain,\ncomputed",
        better=MORE, form=Form.INDEX, most=1.0, undefined=NO_SERVICE, verdict=False,
        needs=CACHED, presence=ALWAYS,
        meaning="Jain's index of the clients' computed service, divided by their weights",
        shown=(Shown(Display.COMPARISON, 5, dropped=2), Shown(Display.REPEATS, 6),
            Shown(Display.SEEDS, 3), Shown(Display.LIVE, 7)),
        compute=lambda run: jain(run.fair_shares.actual / run.facts.client_weights)),
    Metric("jain_index_maxmin", "Jain index of a max-min allocation", form=Form.INDEX, most=1.0,
        undefined=NO_DEMAND, presence=ALWAYS, shown=(Shown(Display.REPEATS, 7),),
        meaning="the value that `jain_index` would have after a perfect max-min division; compare "
        "`jain_index` with this value, not with 1",
        compute=lambda run: jain(run.fair_shares.entitlement / run.facts.client_weights)),
    Metric("jain_index_entitlement", "Jain index of service over fair share", better=MORE,
        form=Form.INDEX, most=1.0, undefined=NO_DEMAND, presence=ALWAYS,
        shown=(Shown(Display.REPEATS, 8),),
        meaning="Jain's index of the clients' service, divided by their max-min fair shares",
        compute=lambda run: run.noted_share(jain(run.fair_shares.entitled_ratios))),
    Metric("min_entitlement_ratio", "minimum fair share of own total", better=MORE,
        form=Form.PERCENT, most=1.0, undefined=NO_DEMAND, presence=ALWAYS,
        meaning="*minimum fair share of own total* (`min_share` in commands): the lowest part that "
        "any client received of its max-min fair share of the run's service",
        shown=(
            Shown(Display.HEADLINES, 1, heading="minimum fair share",
                note="of own total: the least that a client got of its max-min fair share"),
            Shown(Display.REPEATS, 9), Shown(Display.SEEDS, 1, heading="min. fair share of own"),
            Shown(Display.LIVE, 8)),
        compute=lambda run: run.noted_share(least(run.fair_shares.entitled_ratios))),
    Metric("max_service_gap", "largest service gap", unit="tokens", better=LESS,
        form=Form.WHOLE, undefined="no two clients were backlogged together",
        needs=frozenset({Needs.ADMISSION, Needs.CACHED}), presence=ALWAYS,
        meaning="*service gap*: largest difference in computed service, divided by weight, between "
        "two clients while both wait at every worker ([theory](../concepts/theory.md))",
        shown=(Shown(Display.CONTRAST, 6), Shown(Display.REPEATS, 10),
            Shown(Display.LIVE, 11)),
        compute=lambda run: run.service_gap),
    Metric("service_gap_bound", "bound on the gap", unit="tokens", form=Form.WHOLE,
        undefined=NO_BOUND, presence=ALWAYS, shown=(Shown(Display.REPEATS, 11),),
        meaning="proved upper bound of the service gap",
        compute=lambda run: run.gap_bound),
    Metric("service_gap_bound_s", "bound on the gap", unit="s", undefined=NO_BOUND,
        meaning="proved upper bound of the service gap, divided by the cluster's computed service "
        "per second",
        compute=lambda run: run.gap_bound_s),
    Metric("service_rate_paper_window_tok_s", "service while all clients were active",
        unit="tok/s", better=MORE, undefined=NOT_ALL_ACTIVE, shown=(Shown(Display.LIVE, 13),),
        meaning="service per second while all clients were active, as in the DLPM paper",
        compute=lambda run: ratio(
            float(run.all_active_service.sum()),
            run.all_active.end_s - run.all_active.start_s) if run.all_active else NAN),
    Metric("jain_index_paper_window", "Jain index while all clients were active", better=MORE,
        form=Form.INDEX, most=1.0, undefined=NOT_ALL_ACTIVE, shown=(Shown(Display.LIVE, 14),),
        meaning="Jain's index of the clients' service while all clients were active",
        compute=lambda run: Noted(
            jain(run.all_active_service / run.facts.client_weights), NO_SERVICE
        ) if run.all_active else NAN),
    Metric("paper_window_start_s", "start of the time in which all clients were active",
        unit="s", undefined=NOT_ALL_ACTIVE,
        compute=lambda run: run.all_active.start_s if run.all_active else NAN),
    Metric("paper_window_end_s", "end of the time in which all clients were active", unit="s",
        undefined=NOT_ALL_ACTIVE,
        compute=lambda run: run.all_active.end_s if run.all_active else NAN),
)  # fmt: skip


CLIENTS = (
    VICTIM_P50,
    *(
        replace(
            victim_latency(tail,
                Shown(Display.HEADLINES, 2, heading=f"well-behaved P{tail}", note="{latency}"),
                Shown(Display.COMPARISON, 7), Shown(Display.CONTRAST, 4),
                Shown(Display.REPEATS, 13), Shown(Display.SEEDS, 2), Shown(Display.LIVE, 10)),
            presence=ALWAYS if tail == P99 else OPTIONAL, tail=tail)
        for tail in TAILS
    ),
    Metric("victim_n", "fewest latencies of a well-behaved client", kind=COUNT,
        presence=IN_REPORTS,
        meaning="smallest number of latencies (`latency_n`) of any well-behaved client",
        compute=lambda run: run.well_behaved.least_n),
    CLIENT_P50,
    *(
        replace(client_latency(rank), tail=rank, presence=ALWAYS if rank != P95 else OPTIONAL)
        for rank in TAILS
    ),
    Metric("latency_n", "n", of=CLIENT, kind=COUNT,
        meaning="number of latencies in the client's percentiles",
        shown=(Shown(Display.CLIENTS, 7, dropped=2),),
        by_client=lambda run: [sample.n for sample in run.cohorts.samples]),
    Metric("latency_unfinished", "n unfinished", better=LESS, of=CLIENT, kind=COUNT,
        meaning="number of latencies that are lower bounds, because the program is unfinished",
        by_client=lambda run: [len(sample.more_than_s) for sample in run.cohorts.samples]),
    Metric("latency_refused", "n refused", better=LESS, of=CLIENT, kind=COUNT,
        meaning="number of latencies of refused programs",
        by_client=lambda run: [sample.refused for sample in run.cohorts.samples]),
    Metric("cache_hit_rate", "cache hit", column="cache\nhit", better=MORE, of=BOTH,
        form=Form.PERCENT, most=1.0, undefined="no request was admitted", needs=CACHED,
        presence=ALWAYS, meaning="part of the admitted input tokens that was cached",
        shown=(Shown(Display.CLIENTS, 8, dropped=4), Shown(Display.COMPARED_CLIENTS, 7),
            Shown(Display.REPEATS, 4), Shown(Display.REPEATED_CLIENTS, 6),
            Shown(Display.LIVE, 5), Shown(Display.CONTRAST, 7)),
        compute=lambda run: cache_hit_rate(run.requests, np.ones(len(run.requests), np.bool_)),
        by_client=lambda run: run.hit_rates),
    Metric("weight", "weight", of=CLIENT, undefined="every client has the weight 1",
        shown=(Shown(Display.CLIENTS, -1, dropped=5),), meaning="weight of the client",
        when=lambda run: any(client.weight != 1 for client in run.facts.clients),
        by_client=lambda run: [client.weight for client in run.facts.clients]),
)  # fmt: skip


def _interactivity(statistic: str) -> Metric:
    """Return the metric for tokens per second and user, as InferenceX computes this rate."""
    return Metric(
        f"{statistic}_intvty", f"{statistic} interactivity", unit="tok/s per user", better=MORE,
        of=BOTH, undefined=LATENCIES["tpot"],
        meaning=f"interactivity: 1000 / {statistic} TPOT in ms, of completed requests of the whole "
        "run",
        compute=lambda run: ratio(1000.0, run.request_ms(statistic, "tpot")),
        by_client=lambda run: [ratio(1000.0, one) for one in run.client_tpot_ms(statistic)],
    )  # fmt: skip


COST = (
    *map(_interactivity, ("mean", "median", "p99")),
    Metric("gpu_s", "GPU time", column="GPU\ns", unit="s", of=BOTH, digits=1,
        undefined="the run was not simulated, or its records are older than this metric",
        meaning="busy time of all workers in the whole run, and each client's part "
        "([GPU time](#gpu-time))",
        shown=(Shown(Display.CLIENTS, 11, dropped=-1),),
        compute=lambda run: gpu_time(run.log),
        by_client=lambda run: gpu_time_of_clients(run.log, run.clients)),
    Metric("outside_fit_ratio", "busy time outside the timing profile's fit", form=Form.PERCENT,
        undefined="the run was not simulated, or the fitted range of its profile is unknown",
        meaning="part of the busy time in decode steps with a larger batch or context than the "
        "timing profile was fitted to; above 10%, a warning is printed",
        compute=lambda run: outside_fit_ratio(run.log, run.facts.fit)),
    Metric("lone_tpot_ratio", "time per output token over that of a lone request",
        undefined="the run was not simulated, or no request of the window made two tokens",
        meaning="median time per output token, divided by that of a request that runs alone "
        "([hidden backlogs](#hidden-backlogs))",
        compute=lambda run: lone_tpot_ratio(run.requests, run.cut)),
)  # fmt: skip


METRICS = (
    *(*TOTALS, *LATENCY, *SERVICE, *FAIRNESS, *CLIENTS, *COST, *GOODPUT, *SOMETIMES),
    *(*WINDOWS, *TREE, *STALLS, *MEMORY, *SESSIONS, *SIDES, *LIMIT, *LIVE, *COMPARISON),
)
"""All metrics, in the order of their keys in ``summary.json``."""
