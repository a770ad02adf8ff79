"""The entries of the catalogue: each metric with its unit, direction, columns and function.

To add a metric, add an entry. The function of an entry gets the ``RunData`` of a run; quantities
that several metrics share are properties of ``RunData``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fairbench.metrics.arrays import ratio
from fairbench.metrics.contention import lone_tpot_ratio
from fairbench.metrics.fairness import jain, least
from fairbench.metrics.goodput import TICK_S, median, met_ratio
from fairbench.metrics.metric import (
    ALWAYS,
    BOTH,
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
    Of,
    Shown,
)
from fairbench.metrics.reasons import (
    ALL_FIT,
    EMPTY_WINDOW,
    LATENCIES,
    NAN,
    NO_BOUND,
    NO_COHORT,
    NO_DEMAND,
    NO_LIMIT,
    NO_SERVICE,
    NO_TENANTS,
    NO_TIME,
    NO_VICTIM,
    NONE_MET,
    NOT_ALL_ACTIVE,
    NOT_ALONE,
    NOT_ALONE_IN_MEMORY,
    NOT_SENT,
    TOO_FEW_CALLS,
    TOO_FEW_REQUESTS,
    Noted,
)
from fairbench.metrics.records import FINISHED, PLAIN, UNFINISHED
from fairbench.metrics.service import gpu_time, gpu_time_of_clients, outside_fit_ratio
from fairbench.metrics.sessions import SESSION_WINDOW_S
from fairbench.metrics.shown_percentiles import P95, P99, TAILS
from fairbench.metrics.totals import cache_hit_rate, statistic_of, time_to_finish
from fairbench.metrics.waiting import DEMAND_LIMITED_ABOVE

if TYPE_CHECKING:
    from fairbench.metrics.run_data import RunData

CACHED = frozenset({Needs.CACHED})
STATISTICS = ("mean", "median", "std", "p50", "p99")

TOTALS = (
    Metric("duration", "duration", unit="s", presence=ALWAYS,
        meaning="time from the first arrival to the end",
        compute=lambda run: run.facts.horizon_s),
    Metric("num_programs", "programs made", kind=COUNT, presence=ALWAYS,
        compute=lambda run: len(run.programs)),
    Metric("num_requests", "requests made", kind=COUNT, presence=ALWAYS,
        compute=lambda run: len(run.requests)),
    Metric("completed", "requests completed", kind=COUNT, better=MORE, presence=ALWAYS,
        meaning="completed requests; completed, failed, refused and unfinished requests add up to "
        "`num_requests`",
        compute=lambda run: run.count_status(FINISHED)),
    Metric("failed", "requests failed", kind=COUNT, better=LESS, presence=ALWAYS,
        meaning="requests that broke off (HTTP 5xx, timeout, disconnected); 0 in a simulation",
        compute=lambda run: run.facts.failed),
    Metric("refused", "requests refused", kind=COUNT, better=LESS, presence=ALWAYS,
        meaning="requests that were turned away (larger than the pool, over a limit, HTTP 4xx)",
        compute=lambda run: run.refused_requests),
    Metric("unfinished", "requests unfinished", kind=COUNT, better=LESS, presence=ALWAYS,
        meaning="requests in progress at the end",
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
        shown=(Shown(Display.CLIENTS, 0, dropped=3),), meaning="programs of the client",
        by_client=lambda run: run.rows_by_client(run.programs.client)),
    Metric("requests", "requests", of=CLIENT, kind=COUNT, meaning="requests of the client",
        by_client=lambda run: run.rows_by_client(run.requests.client)),
)  # fmt: skip


# The meaning of each latency of single requests, by the name of the latency.
OF_REQUESTS = {
    "ttft": "time to first token of completed requests of the whole run",
    "tpot": "mean time between tokens of completed requests of the whole run",
    "e2el": "time to the last token of completed requests of the whole run",
    "itl": "gap between two tokens of completed requests of the whole run",
}


def request_latency(statistic: str, latency: str) -> Metric:
    """Return the metric for a statistic, such as p90, of a latency of all completed requests."""
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
    """Return the metric for the time until ``percent`` of the programs had finished."""
    return Metric(
        f"time_to_{percent}pct_s", f"time to {percent}% completion", column=f"{percent}% done\ns",
        unit="s", better=LESS, shown=shown,
        undefined=f"fewer than {percent}% of the programs that arrived by the window's end "
        "finished",
        meaning="time until this part of the programs that arrived by the window's end had "
        "finished",
        compute=lambda run: time_to_finish(run.programs, run.facts.window, percent),
    )  # fmt: skip


def victim_latency(rank: int, *shown: Shown) -> Metric:
    """Return the metric for a percentile of latency, averaged over the well-behaved clients."""
    return Metric(
        f"victim_p{rank}_s", f"well-behaved P{rank}", column=f"P{rank}\ns", unit="s", better=LESS,
        form=Form.SECONDS, undefined=NO_VICTIM, shown=shown,
        meaning="mean of the well-behaved clients' percentiles of latency",
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
    """Return the entry of a percentile that a user may choose, or None for another key."""
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
        compute=lambda run: run.window.start_s),
    Metric("window_end_s", "end of the window", unit="s", presence=IN_REPORTS,
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
        meaning="service over max-min fair share; null if [not contended](#not-contended)",
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
        meaning="part of the window without a waiting request; an estimate if the server reports "
        "no admissions",
        compute=lambda run: run.queue_empty_share),
    Metric("demand_limited", "queues empty for more than 5% of the time", kind=Kind.FLAG,
        undefined="the run is old, and the server did not report admissions",
        presence=IN_REPORTS,
        meaning="whether `queue_empty_share` is above 5%: rates then compare loads instead of "
        "schedulers",
        compute=lambda run: not run.queue_empty_share.value <= DEMAND_LIMITED_ABOVE),
)  # fmt: skip


FAIRNESS = (
    Metric("jain_index", "Jain index", better=MORE, form=Form.INDEX, most=1.0, verdict=False,
        undefined=NO_SERVICE, presence=ALWAYS,
        meaning="Jain's index of service over all clients; with weights, of service over weight",
        shown=(Shown(Display.HEADLINES, 3,
                note="of service; the best for this demand may be below 1"),
            Shown(Display.CONTRAST, 8), Shown(Display.REPEATS, 5), Shown(Display.LIVE, 6)),
        compute=lambda run: jain(run.fair_shares.service / run.facts.client_weights)),
    Metric("jain_index_actual", "Jain index, computed service", column="Jain,\ncomputed",
        better=MORE, form=Form.INDEX, most=1.0, undefined=NO_SERVICE, verdict=False,
        needs=CACHED, presence=ALWAYS,
        meaning="Jain's index of computed service over all clients; with weights, of computed "
        "service over weight",
        shown=(Shown(Display.COMPARISON, 5, dropped=2), Shown(Display.REPEATS, 6),
            Shown(Display.SEEDS, 3), Shown(Display.LIVE, 7)),
        compute=lambda run: jain(run.fair_shares.actual / run.facts.client_weights)),
    Metric("jain_index_maxmin", "Jain index of a max-min allocation", form=Form.INDEX, most=1.0,
        undefined=NO_DEMAND, presence=ALWAYS, shown=(Shown(Display.REPEATS, 7),),
        meaning="the index of a perfect max-min division; compare `jain_index` with this value, "
        "not with 1",
        compute=lambda run: jain(run.fair_shares.entitlement / run.facts.client_weights)),
    Metric("jain_index_entitlement", "Jain index of service over fair share", better=MORE,
        form=Form.INDEX, most=1.0, undefined=NO_DEMAND, presence=ALWAYS,
        shown=(Shown(Display.REPEATS, 8),),
        meaning="Jain's index of service over max-min fair share",
        compute=lambda run: run.noted_share(jain(run.fair_shares.entitled_ratios))),
    Metric("min_entitlement_ratio", "minimum fair share of own total", better=MORE,
        form=Form.PERCENT, most=1.0, undefined=NO_DEMAND, presence=ALWAYS,
        meaning="*minimum fair share of own total* (`min_share` in commands): lowest service over "
        "max-min fair share of any client",
        shown=(
            Shown(Display.HEADLINES, 1, heading="minimum fair share",
                note="of own total: the least that a client got of its max-min fair share"),
            Shown(Display.REPEATS, 9), Shown(Display.SEEDS, 1, heading="min. fair share of own"),
            Shown(Display.LIVE, 8)),
        compute=lambda run: run.noted_share(least(run.fair_shares.entitled_ratios))),
    Metric("max_service_gap", "largest service gap", unit="tokens", better=LESS,
        form=Form.WHOLE, undefined="no two clients were backlogged together",
        needs=frozenset({Needs.ADMISSION, Needs.CACHED}), presence=ALWAYS,
        meaning="*service gap*: largest difference in computed service over weight between two "
        "clients while both wait at every worker ([theory](../concepts/theory.md))",
        shown=(Shown(Display.CONTRAST, 6), Shown(Display.REPEATS, 10),
            Shown(Display.LIVE, 11)),
        compute=lambda run: run.service_gap),
    Metric("service_gap_bound", "bound on the gap", unit="tokens", form=Form.WHOLE,
        undefined=NO_BOUND, presence=ALWAYS, shown=(Shown(Display.REPEATS, 11),),
        meaning="proved bound of the service gap",
        compute=lambda run: run.gap_bound),
    Metric("service_gap_bound_s", "bound on the gap", unit="s", undefined=NO_BOUND,
        meaning="proved bound of the service gap, in seconds of the cluster's computed service",
        compute=lambda run: run.gap_bound_s),
    Metric("service_rate_paper_window_tok_s", "service while all clients were active",
        unit="tok/s", better=MORE, undefined=NOT_ALL_ACTIVE, shown=(Shown(Display.LIVE, 13),),
        meaning="service while all clients were active, as in the DLPM paper",
        compute=lambda run: ratio(
            float(run.all_active_service.sum()),
            run.all_active.end_s - run.all_active.start_s) if run.all_active else NAN),
    Metric("jain_index_paper_window", "Jain index while all clients were active", better=MORE,
        form=Form.INDEX, most=1.0, undefined=NOT_ALL_ACTIVE, shown=(Shown(Display.LIVE, 14),),
        meaning="Jain's index of the service while all clients were active",
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
        presence=IN_REPORTS, compute=lambda run: run.well_behaved.least_n),
    CLIENT_P50,
    *(
        replace(client_latency(rank), tail=rank, presence=ALWAYS if rank != P95 else OPTIONAL)
        for rank in TAILS
    ),
    Metric("latency_n", "n", of=CLIENT, kind=COUNT, meaning="number of the client's latencies",
        shown=(Shown(Display.CLIENTS, 7, dropped=2),),
        by_client=lambda run: [sample.n for sample in run.cohorts.samples]),
    Metric("latency_unfinished", "n unfinished", better=LESS, of=CLIENT, kind=COUNT,
        meaning="number of latencies of unfinished programs",
        by_client=lambda run: [len(sample.more_than_s) for sample in run.cohorts.samples]),
    Metric("latency_refused", "n refused", better=LESS, of=CLIENT, kind=COUNT,
        meaning="number of latencies of refused programs",
        by_client=lambda run: [sample.refused for sample in run.cohorts.samples]),
    Metric("cache_hit_rate", "cache hit", column="cache\nhit", better=MORE, of=BOTH,
        form=Form.PERCENT, most=1.0, undefined="no request was admitted", needs=CACHED,
        presence=ALWAYS, meaning="cached part of the admitted input tokens",
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
        meaning="seconds of computation in the whole run, and each client's part "
        "([GPU time](#gpu-time))",
        shown=(Shown(Display.CLIENTS, 11, dropped=-1),),
        compute=lambda run: gpu_time(run.log),
        by_client=lambda run: gpu_time_of_clients(run.log, run.clients)),
    Metric("outside_fit_ratio", "busy time outside the timing profile's fit", form=Form.PERCENT,
        undefined="the run was not simulated, or the fitted range of its profile is unknown",
        meaning="part of the busy time in decode steps beyond the batch size or context that the "
        "profile was fitted to; above 10% a warning is printed",
        compute=lambda run: outside_fit_ratio(run.log, run.facts.fit)),
    Metric("lone_tpot_ratio", "time per output token over that of a lone request",
        undefined="the run was not simulated, or no request of the window made two tokens",
        meaning="median time per output token, relative to a request that runs alone "
        "([hidden backlogs](#hidden-backlogs))",
        compute=lambda run: lone_tpot_ratio(run.requests, run.cut)),
)  # fmt: skip


def _goodput(metric: Metric) -> Metric:
    """Return a metric of goodput, for runs in which a client has latency targets."""
    page = "[goodput](../guide/goodput.md#how-it-is-judged)"
    return replace(metric, when=lambda run: run.has_targets, page=page)


GOODPUT = tuple(map(_goodput, (
    Metric("goodput_req_s", "requests within their targets", unit="1/s", better=MORE, of=BOTH,
        digits=2, undefined=EMPTY_WINDOW, shown=(Shown(Display.REPEATS, 15),),
        compute=lambda run: run.goodput.requests_per_s(run.goodput.counts),
        by_client=lambda run: run.goodput.by_client(run.goodput.requests_per_s)),
    Metric("goodput_tok_s", "goodput", column="goodput\ntok/s", unit="tok/s", better=MORE,
        of=BOTH, undefined=EMPTY_WINDOW,
        shown=(Shown(Display.CLIENTS, 10, dropped=0), Shown(Display.COMPARISON, 11, dropped=0),
            Shown(Display.REPEATS, 16)),
        compute=lambda run: run.goodput.tokens_per_s(run.goodput.counts),
        by_client=lambda run: run.goodput.by_client(run.goodput.tokens_per_s)),
    Metric("goodput_ratio", "requests within their targets", column="on\ntime",
        better=MORE, of=BOTH, form=Form.PERCENT, most=1.0, undefined=NO_COHORT,
        shown=(Shown(Display.HEADLINES, 5, heading="on time", note="of the requests asked for"),
            Shown(Display.CLIENTS, 9), Shown(Display.COMPARISON, 9), Shown(Display.CONTRAST, 0),
            Shown(Display.COMPARED_CLIENTS, 8), Shown(Display.REPEATS, 17, heading="on time")),
        compute=lambda run: met_ratio(run.goodput.counts),
        by_client=lambda run: run.goodput.by_client(met_ratio)),
    Metric("goodput_min_ratio", "on time, worst client", column="worst\non time", better=MORE,
        form=Form.PERCENT, most=1.0, undefined=NO_COHORT,
        shown=(Shown(Display.COMPARISON, 10), Shown(Display.REPEATS, 18)),
        compute=lambda run: min(
            (met_ratio([one]) for one in run.goodput.counts if one.asked), default=NAN)),
    Metric("goodput_jain_index", "Jain index of goodput", better=MORE, form=Form.INDEX,
        most=1.0, undefined=NONE_MET, shown=(Shown(Display.REPEATS, 19),),
        compute=lambda run: jain(
            np.array([one.in_window_tokens for one in run.goodput.counts], np.float64)
            / run.goodput.weights)),
    Metric("goodput_worst_share", "minimum fair share of goodput", better=MORE,
        form=Form.PERCENT, most=1.0, undefined=NONE_MET, shown=(Shown(Display.REPEATS, 20),),
        compute=lambda run: least(run.goodput.client_shares)),
    Metric("goodput_slack_p50_s", "median time left of those within their targets", unit="s",
        better=MORE, undefined=NONE_MET,
        compute=lambda run: median(
            np.maximum(run.goodput.slack_s[run.goodput.slack_s >= -TICK_S], 0.0))),
    Metric("goodput_late_p50_s", "median time by which finished requests missed", unit="s",
        better=LESS, undefined="no request that finished missed its targets",
        compute=lambda run: median(-run.goodput.slack_s[~(run.goodput.slack_s >= -TICK_S)])),
    Metric("goodput_wasted_tokens", "tokens computed for requests that missed", unit="tokens",
        better=LESS, kind=COUNT, needs=CACHED,
        compute=lambda run: sum(one.wasted for one in run.goodput.counts)),
    Metric("goodput_wasted_ratio", "part of the tokens computed for requests that missed",
        better=LESS, form=Form.PERCENT, most=1.0, undefined="nothing was computed",
        needs=CACHED,
        compute=lambda run: ratio(
            sum(one.wasted for one in run.goodput.counts),
            sum(one.computed for one in run.goodput.counts))),
)))  # fmt: skip


def _in_windows(length_s: float, key: str, when: str) -> tuple[Metric, Metric]:
    """Return the metrics of shares in windows of a length, of the run and of its clients."""
    shown = (Shown(Display.CONTRAST, 2), Shown(Display.REPEATS, 14)) if length_s == 60 else ()
    common = Metric(
        key, f"of fair share {when}", better=MORE, of=CLIENT, form=Form.PERCENT, most=1.0,
        undefined=TOO_FEW_REQUESTS,
        meaning=f"the client's lowest share of its fair share {when}",
        by_client=lambda run: run.share_in_worst_window(length_s),
    )  # fmt: skip
    least_of_all = replace(
        common, key=f"min_{key}", heading=f"minimum fair share {when}", of=Of.RUN, shown=shown,
        meaning=f"lowest share of any client {when} ([fairness over time](#fairness-over-time))",
        compute=lambda run: run.least_share_in_windows(length_s), by_client=None,
    )  # fmt: skip
    return least_of_all, common


WINDOWS = tuple(
    metric
    for metrics in zip(
        _in_windows(60.0, "share_60s", "in the worst 60 s"),
        _in_windows(10.0, "share_10s", "in the worst 10 s"),
        _in_windows(0.0, "backlogged_share", "while backlogged"),
        strict=True,
    )
    for metric in metrics
)


def _tree(metric: Metric) -> Metric:
    """Return a metric of shares in a tree, for runs with tenants."""
    page = "[tenants](../guide/tenants.md#what-a-run-is-judged-by)"
    return replace(metric, when=lambda run: run.tenants, page=page)


TREE = tuple(map(_tree, (
    Metric("tree_jain_index", "Jain index of owners", better=MORE, form=Form.INDEX, most=1.0,
        undefined=NO_TENANTS, compute=lambda run: run.tree.even),
    Metric("tree_worst_share", "minimum fair share of a tenant or client among its siblings",
        better=MORE, form=Form.PERCENT, most=1.0, undefined=NO_TENANTS,
        compute=lambda run: run.noted_share(run.tree.worst)),
    Metric("tree_share", "of its share in the tree", column="of tree\nshare", better=MORE,
        of=CLIENT, form=Form.PERCENT, undefined=NO_TENANTS,
        shown=(Shown(Display.CLIENTS, 12, dropped=6),),
        by_client=lambda run: [run.noted_share(share) for share in run.tree.client_shares]),
)))  # fmt: skip

SOMETIMES = (
    Metric("demoted", "requests demoted by admission control", better=LESS, of=BOTH, kind=COUNT,
        meaning="requests that admission control put behind the others",
        when=lambda run: run.requests.demoted is not None,
        compute=lambda run: int(run.demoted.sum()),
        by_client=lambda run: run.rows_by_client(run.requests.client, run.demoted)),
    Metric("useful_service_tok_s", "useful service", column="useful\ntok/s", unit="tok/s",
        better=MORE, of=CLIENT, undefined=EMPTY_WINDOW,
        shown=(Shown(Display.CLIENTS, 2, dropped=1),),
        meaning="service without padding and lengthened answers "
        "([heavy clients](workloads.md#heavy-clients))",
        when=lambda run: any(client.padding != PLAIN for client in run.facts.clients),
        by_client=lambda run: run.window_rates(run.useful_service)),
)  # fmt: skip


NO_ANSWER = "no answer of the client has two tokens"


def _stall(metric: Metric) -> Metric:
    """Return a metric of stalls, for runs whose steps are known."""
    better = MORE if metric.better is MORE else LESS
    return replace(metric, better=better, when=lambda run: run.stalls is not None)


STALLS = tuple(map(_stall, (
    Metric("victim_stalled_s_per_min", "stalled by prompts, well-behaved client",
        unit="s per minute", undefined=NO_ANSWER,
        meaning="`stalled_s_per_min` of the well-behaved client with the largest value",
        compute=lambda run: run.victims_stalled),
    Metric("stalled_s", "seconds stalled by prompts of other clients", unit="s", of=CLIENT,
        meaning="time for which prompts of other clients held up the client's answers, summed over "
        "answers ([stalls](#stalls))",
        by_client=lambda run: run.known_stalls.by_others_s),
    Metric("stalled_s_per_min", "stalled by prompts of other clients", unit="s per minute",
        of=CLIENT, undefined=NO_ANSWER, meaning="`stalled_s` per minute of answer",
        by_client=lambda run: run.known_stalls.per_minute()),
    Metric("p99_gap_ms", "P99 gap between tokens", unit="ms", of=CLIENT, undefined=NO_ANSWER,
        meaning="P99 of the gaps between two tokens of an answer, at most 1% too large",
        by_client=lambda run: [1000 * gap_s for gap_s in run.known_stalls.gaps.percentile_s(99)]),
    Metric("max_gap_s", "largest gap between tokens", unit="s", of=CLIENT, undefined=NO_ANSWER,
        meaning="largest gap between two tokens of an answer",
        by_client=lambda run: run.known_stalls.gaps.largest_s),
    Metric("pace_beside_prompts_ratio", "pace beside prompts of other clients", of=CLIENT,
        better=MORE, form=Form.PERCENT,
        undefined="the client made no tokens beside prompts of other clients, or none without them",
        meaning="tokens per second of an answer in gaps in which prompts of other clients were "
        "computed, over tokens per second in other gaps",
        by_client=lambda run: run.known_stalls.gaps.pace_ratios()),
    Metric("stalls", "stalls", of=CLIENT,
        meaning="number of gaps between tokens above 0.5 s and above four decode steps of a lone "
        "request", by_client=lambda run: run.known_stalls.gaps.above),
)))  # fmt: skip


def _memory(metric: Metric) -> Metric:
    """Return a metric of KV memory, for runs that record the holders of KV memory."""
    return replace(metric, of=CLIENT, when=lambda run: run.tables.memory is not None)


MEMORY = tuple(map(_memory, (
    Metric("residency_tokens", "KV memory held on average", unit="tokens",
        undefined=EMPTY_WINDOW,
        meaning="average KV memory that the client held in the window, running or cached; a token "
        "shared by k clients counts 1/k for each",
        by_client=lambda run: [
            ratio(held, run.memory_window.length_s) for held in run.held_token_s.tolist()]),
    Metric("residency_ratio", "KV memory held, relative to its share", column="of memory\nshare",
        form=Form.PERCENT, undefined="no client held KV memory in the window",
        shown=(Shown(Display.CLIENTS, 13, dropped=5),),
        meaning="the client's part of all held memory, over its part of all weights",
        by_client=lambda run: [
            ratio(held, float(run.held_token_s.sum() * part))
            for held, part in zip(run.held_token_s.tolist(), run.weight_parts, strict=True)]),
    Metric("evicted_tokens", "tokens lost to evictions", unit="tokens", better=LESS,
        meaning="tokens that the client lost to evictions",
        by_client=lambda run: [float(lost.sum()) for lost in run.evicted_tokens]),
    Metric("evicted_by_others_tokens", "tokens lost to evictions for other clients",
        unit="tokens", better=LESS,
        meaning="tokens that the client lost to evictions for other clients' requests",
        by_client=lambda run: [
            float(lost.sum() - lost[own]) for own, lost in enumerate(run.evicted_tokens)]),
    Metric("evicted_of_others_tokens",
        "tokens that other clients lost to evictions for this client", unit="tokens",
        better=LESS, meaning="tokens that other clients lost to evictions for its requests",
        by_client=lambda run: [
            float(lost.sum() - lost[own]) for own, lost in enumerate(run.evicted_tokens.T)]),
    Metric("cache_hit_rate_alone", "cache hit rate alone on its share of the pool",
        form=Form.PERCENT, most=1.0, undefined=NOT_ALONE_IN_MEMORY,
        meaning="hit rate of the client alone on its part of every pool, under LRU",
        by_client=lambda run: run.hit_rates_alone),
    Metric("cache_sharing_incentive", "cache hit rate relative to the client alone", better=MORE,
        form=Form.PERCENT, undefined=NOT_ALONE_IN_MEMORY,
        meaning="hit rate divided by `cache_hit_rate_alone`; below 1 a private cache would be "
        "better",
        by_client=lambda run: list(map(ratio, run.hit_rates, run.hit_rates_alone))),
)))  # fmt: skip


def _session(name: str, heading: str, percent: int, meaning: str) -> Metric:
    """Return the metric for a percentile of a latency of each client's recorded sessions."""
    return Metric(
        f"{name}_p{percent}_s", f"P{percent} of {heading}", unit="s", better=LESS, of=CLIENT,
        undefined=NO_COHORT, meaning=meaning, when=lambda run: run.facts.sessions,
        by_client=lambda run: run.session_latency(name, percent),
    )  # fmt: skip


def _victim_session(name: str, heading: str, percent: int, meaning: str) -> Metric:
    """Return the metric for the mean percentile of the well-behaved clients' sessions."""
    return Metric(
        f"victim_{name}_p{percent}_s", f"P{percent} of well-behaved {heading}", unit="s",
        better=LESS, undefined=NO_VICTIM, when=lambda run: run.facts.sessions,
        meaning=f"mean of the well-behaved clients' percentiles of {meaning}",
        compute=lambda run: run.victim_session_latency(name, percent),
    )  # fmt: skip


def _has_gateway(run: RunData) -> bool:
    """Return whether a run has sessions whose calls a gateway may queue."""
    return run.facts.sessions and run.requests.routed_s is not None


def _of_sessions(metric: Metric) -> Metric:
    """Return a metric of sessions, for runs whose programs are sessions."""
    page = "[sessions](#sessions)"
    return replace(metric, page=page, when=lambda run: run.facts.sessions)


def _slowdown(percent: int) -> tuple[Metric, Metric]:
    """Return a slowdown percentile's metrics: of the well-behaved clients, and of each client."""
    key, heading = f"session_slowdown_p{percent}", f"P{percent} of the slowdown of sessions"
    common = Metric(key, heading, better=LESS, undefined=NO_COHORT, of=CLIENT, digits=2,
        meaning="time in which a call of the session was in progress, over this time with each "
        "call alone",
        by_client=lambda run: run.session_latency("slowdown", percent))  # fmt: skip
    return (
        replace(
            common, key=f"victim_{key}", heading=f"P{percent} of the slowdown of well-behaved "
            "sessions", of=Of.RUN, undefined=NO_VICTIM, by_client=None,
            shown=(Shown(Display.REPEATS, 23),) if percent == 95 else (),
            meaning=f"mean of the well-behaved clients' `{key}`",
            compute=lambda run: run.victim_session_latency("slowdown", percent)),
        common,
    )  # fmt: skip


def _session_share(length_s: float, key: str, when: str, *shown: Shown) -> tuple[Metric, Metric]:
    """Return the metrics for the lowest share of a session, in the run and of each client."""
    common = Metric(
        key, f"lowest share of a session {when}", better=MORE, of=CLIENT, form=Form.PERCENT,
        most=1.0, undefined=TOO_FEW_CALLS,
        meaning="lowest share of any session of the client of its max-min fair share among "
        f"sessions, {when}",
        by_client=lambda run: [
            Noted(share, run.why_no_session_share)
            for share in run.own_sessions.least_by_client(run.session_shares[length_s])],
    )  # fmt: skip
    return (
        replace(common, key=f"min_{key}", of=Of.RUN, shown=shown, by_client=None,
            heading=f"minimum fair share of a session {when}",
            meaning=f"lowest share of any session of its max-min fair share among sessions, {when}",
            compute=lambda run: Noted(
                least(run.session_shares[length_s]), run.why_no_session_share)),
        common,
    )  # fmt: skip


WAITS = (
    ("turn_wait", "waits of calls", "wait of a call from its arrival to its admission"),
    ("gate_wait", "waits of calls in the gateway", "wait of a call in the gateway"),
)
OF_SESSIONS = tuple(map(_of_sessions, (
    Metric("max_turn_wait_s", "longest wait of a call", unit="s", better=LESS,
        undefined=NO_COHORT, shown=(Shown(Display.CONTRAST, 9), Shown(Display.REPEATS, 22)),
        meaning="longest `longest_turn_wait_s` of any client",
        compute=lambda run: run.longest_wait()),
    Metric("longest_turn_wait_s", "longest wait of a call", unit="s", better=LESS, of=CLIENT,
        undefined=NO_COHORT, meaning="longest wait of a call of the client's sessions from its "
        "arrival to its admission",
        by_client=lambda run: run.session_latency("turn_wait", 100)),
    *(metric for percent in (50, 95) for metric in _slowdown(percent)),
    Metric("turns_per_min", "calls finished per minute of an active session", unit="1/min",
        better=MORE, of=CLIENT, undefined=NO_COHORT,
        meaning="finished calls of the client's sessions, over the minutes from the first call of "
        "each session to its end",
        by_client=lambda run: run.own_sessions.turns_per_min()),
    *_session_share(0.0, "session_share", "over the window"),
    *_session_share(SESSION_WINDOW_S, "session_share_60s", "in the worst 60 s",
        Shown(Display.CONTRAST, 10), Shown(Display.REPEATS, 24)),
)))  # fmt: skip

SESSIONS = (
    *(
        _victim_session(name, heading, percent, meaning)
        for name, heading, meaning in (
            ("session", "sessions without think time", "session latency"),
            ("ttft", "calls' time to first token", "the time to first token of a call"))
        for percent in (50, 95)
    ),
    *(
        _session(name, heading, percent, meaning)
        for name, heading, meaning in (
            ("session", "sessions without think time",
                "latency of a session without think time: the time in which a call of the session "
                "was under way"),
            ("turn", "turns", "time of a call, from its arrival to its last token"),
            ("ttft", "calls' time to first token", "time to first token of a call"))
        for percent in (50, 95)
    ),
    Metric("session_cache_hit_rate", "median cache hit rate of sessions", better=MORE,
        of=CLIENT, form=Form.PERCENT, most=1.0, undefined=NO_COHORT,
        meaning="median over sessions of cached input over all input",
        when=lambda run: run.facts.sessions, by_client=lambda run: run.session_hit_rates),
    *(
        replace(metric, when=_has_gateway) if name == "gate_wait" else metric
        for name, heading, meaning in WAITS
        for percent in (50, 95)
        for metric in (
            _victim_session(name, heading, percent, meaning),
            _session(name, heading, percent, meaning))
    ),
    *OF_SESSIONS,
)  # fmt: skip


def _of_side(number: int, side: str) -> tuple[Metric, Metric]:
    """Return the metrics of one side's workers in a disaggregated run."""
    return (
        Metric(f"{side}_busy_ratio", f"busy time of {side} workers over the run",
            form=Form.PERCENT, most=1.0, undefined="nothing was simulated",
            meaning="busy time of the workers of one side, over all their time",
            compute=lambda run: run.busy_ratio(number)),
        Metric(f"{side}_gpu_s", f"busy time of {side} workers", unit="s", digits=1,
            meaning="busy time of the workers of one side, over the whole run",
            compute=lambda run: float(run.both_sides.busy_s[number])),
    )  # fmt: skip


def _side(metric: Metric) -> Metric:
    """Return a metric of disaggregated runs."""
    return replace(metric, when=lambda run: run.sides)


SIDES = tuple(map(_side, (
    *(metric for pair in zip(_of_side(0, "prefill"), _of_side(1, "decode"), strict=True)
        for metric in pair),
    Metric("mean_transfer_ms", "mean time of a KV transfer", unit="ms", better=LESS,
        undefined="no KV cache was transferred",
        meaning="time from a prompt's first byte on the link to its arrival",
        compute=lambda run: 1e3 * statistic_of("mean", run.both_sides.transfer_s)),
)))  # fmt: skip


def _limit(metric: Metric) -> Metric:
    """Return a metric of the limit, which ``RunData.limit_values`` has under the metric's key."""
    return replace(
        metric,
        when=lambda run: metric.key in run.limit_values,
        compute=lambda run: float(run.limit_values[metric.key]),
    )


LIMIT = tuple(map(_limit, (
    Metric("least_gpu_s", "least GPU time of the finished requests", unit="s", digits=1),
    Metric("least_makespan_s", "least makespan of the finished requests", unit="s", digits=1),
    Metric("limit_ratio", "share of the limit", column="of\nlimit", better=MORE,
        form=Form.PERCENT, most=1.0, undefined="no request finished",
        shown=(Shown(Display.COMPARISON, 12, form=Form.WHOLE_PERCENT, dropped=5),
            Shown(Display.CONTRAST, 12), Shown(Display.REPEATS, 21))),
    Metric("limit_memory_ratio", "share of the limit with this memory and order of requests",
        better=MORE, form=Form.PERCENT, most=1.0, undefined=ALL_FIT),
    Metric("limit_hit_rate", "most that any eviction policy could hit in this order",
        form=Form.PERCENT, most=1.0, undefined=ALL_FIT),
    Metric("limit_service_tok_s", "most service that any scheduler could give", unit="tok/s",
        undefined=NO_LIMIT),
    Metric("limit_fair_service_tok_s", "most service at max-min fair shares", unit="tok/s",
        undefined=NO_LIMIT),
    Metric("victim_least_p95_s", "P95 of well-behaved clients alone on an idle cluster", unit="s",
        undefined=NO_VICTIM),
    *(
        Metric(f"time_{key}_ratio", f"GPU time {text}", form=Form.PERCENT, better=better,
            most=1.0, undefined=NO_TIME)
        for key, text, better in (
            ("prefill", "that the prompts need at the least", MORE),
            ("decode", "that the answers need at the least", MORE),
            ("recomputed", "for prefixes that had been computed before", LESS),
            ("retracted", "for tokens computed again after retractions", LESS),
            ("unfinished", "for requests that did not finish", LESS),
            ("small_prefill", "lost in prefill passes that were not full", LESS),
            ("small_decode", "lost in decode batches that were not full", LESS),
            ("idle_waiting", "idle while a request waited", LESS),
            ("idle", "idle while no request waited", LESS))
    ),
)))  # fmt: skip


def _lateness(statistic: str) -> Metric:
    """Return the metric for a statistic of how late a live run sent its requests."""
    return Metric(
        f"lateness_{statistic}_ms", f"{statistic} lateness of the load", unit="ms",
        undefined=NOT_SENT,
        meaning="live runs: delay between the planned and the real sending time; a P99 above 10 ms "
        "is flagged in `notes`",
        when=lambda run: run.measured.late_ms is not None,
        compute=lambda run: statistic_of(statistic, run.measured.late_ms),
    )  # fmt: skip


def _held(statistic: str) -> Metric:
    """Return the metric for a statistic of how long requests of a live run waited for a slot."""
    return Metric(
        f"held_{statistic}_s", f"{statistic} wait for a limit on concurrency", unit="s",
        undefined=NOT_SENT, meaning="live runs: wait of all requests for that slot",
        when=lambda run: run.measured.held,
        compute=lambda run: statistic_of(statistic, run.measured.held_s),
    )  # fmt: skip


LIVE = (
    *map(_lateness, ("p50", "p99", "max")),
    Metric("held", "requests queued by a limit on concurrency", kind=COUNT,
        meaning="live runs: requests that waited for a slot under `--max-concurrency`; their "
        "latency counts from the slot",
        when=lambda run: run.measured.held_s is not None,
        compute=lambda run: run.measured.held),
    *map(_held, ("p50", "p99", "max")),
    Metric("estimated", "answers with estimated token counts", kind=COUNT,
        meaning="live runs: completed requests for which the server did not report all token "
        "counts; an event with output then counts as one token, a word of the prompt as another",
        when=lambda run: run.measured.estimated, compute=lambda run: run.measured.estimated),
)  # fmt: skip


def _incentive(rank: int) -> Metric:
    """Return the metric for the sharing incentive by a percentile of latency."""
    return Metric(
        f"sharing_incentive_p{rank}", f"sharing incentive P{rank}", column=f"sharing\nP{rank}",
        better=LESS, of=BOTH, digits=2, undefined=NOT_ALONE, tail=rank if rank in TAILS else 0,
        shown=(
            Shown(Display.COMPARISON, 1 + (rank in TAILS), dropped=4 if rank == 50 else None),
            Shown(Display.COMPARED_CLIENTS, 5 + (rank in TAILS))),
        beside=lambda run: run.worst_incentive(rank),
        clients_beside=lambda run: run.incentives(rank),
    )  # fmt: skip


def _beside(metric: Metric) -> Metric:
    """Return a metric of a run beside other runs, which comparisons add to the run's summary."""
    page = "[comparisons](../guide/sweep.md#columns-of-a-comparison)"
    return replace(metric, page=page, when=lambda run: False)


COMPARISON = tuple(map(_beside, (
    Metric("best_service_rate_tok_s", "highest service of any scheduler", unit="tok/s",
        better=MORE, beside=lambda run: run.best_tok_s),
    Metric("min_entitlement_best_ratio", "minimum fair share of best total",
        column="min. fair\nshare of best", better=MORE, form=Form.WHOLE_PERCENT, most=1.0,
        undefined=NO_DEMAND,
        shown=(Shown(Display.COMPARISON, 4), Shown(Display.CONTRAST, 1)),
        beside=lambda run: run.least_share),
    Metric("entitlement_best_tok_s", "fair share of the best total", unit="tok/s", of=CLIENT,
        clients_beside=lambda run: run.entitlement_tok_s),
    Metric("entitlement_best_ratio", "of fair share of the best total", better=MORE, of=CLIENT,
        form=Form.PERCENT, undefined="the client was entitled to no service",
        shown=(Shown(Display.COMPARED_CLIENTS, 2),),
        clients_beside=lambda run: run.best_shares),
    *map(_incentive, (50, *TAILS)),
)))  # fmt: skip

METRICS = (
    *(*TOTALS, *LATENCY, *SERVICE, *FAIRNESS, *CLIENTS, *COST, *GOODPUT, *SOMETIMES),
    *(*WINDOWS, *TREE, *STALLS, *MEMORY, *SESSIONS, *SIDES, *LIMIT, *LIVE, *COMPARISON),
)
"""All entries, in the order of the keys of ``summary.json``."""
