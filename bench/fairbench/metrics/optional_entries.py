"""The entries of metrics that only some runs have, such as runs with targets or with sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fairbench.metrics.arrays import ratio
from fairbench.metrics.fairness import jain, least
from fairbench.metrics.goodput import TICK_S, median, met_ratio
from fairbench.metrics.metric import (
    BOTH,
    CACHED,
    CLIENT,
    COUNT,
    LESS,
    MORE,
    Display,
    Form,
    Metric,
    Of,
    Shown,
)
from fairbench.metrics.reasons import (
    ALL_FIT,
    EMPTY_WINDOW,
    NAN,
    NO_COHORT,
    NO_DEMAND,
    NO_LIMIT,
    NO_TENANTS,
    NO_TIME,
    NO_VICTIM,
    NONE_MET,
    NOT_ALONE,
    NOT_ALONE_IN_MEMORY,
    NOT_SENT,
    TOO_FEW_CALLS,
    TOO_FEW_REQUESTS,
    Noted,
)
from fairbench.metrics.records import PLAIN
from fairbench.metrics.sessions import SESSION_WINDOW_S
from fairbench.metrics.shown_percentiles import TAILS
from fairbench.metrics.totals import statistic_of

if TYPE_CHECKING:
    from fairbench.metrics.run_data import RunData


def _goodput(metric: Metric) -> Metric:
    page = "[goodput](../guide/goodput.md#how-it-is-judged)"
    return replace(metric, when=lambda run: run.has_targets, page=page)


GOODPUT = tuple(map(_goodput, (
    Metric("goodput_req_s", "requests within their targets", unit="1/s", better=MORE, of=BOTH,
        digits=2, undefined=EMPTY_WINDOW, shown=(Shown(Display.REPEATS, 15),),
        meaning="requests per second that finished in the window within their latency targets",
        compute=lambda run: run.goodput.requests_per_s(run.goodput.counts),
        by_client=lambda run: run.goodput.by_client(run.goodput.requests_per_s)),
    Metric("goodput_tok_s", "goodput", column="goodput\ntok/s", unit="tok/s", better=MORE,
        of=BOTH, undefined=EMPTY_WINDOW,
        shown=(Shown(Display.CLIENTS, 10, dropped=0), Shown(Display.COMPARISON, 11, dropped=0),
            Shown(Display.REPEATS, 16)),
        meaning="service per second of the requests that finished in the window within their "
        "latency targets",
        compute=lambda run: run.goodput.tokens_per_s(run.goodput.counts),
        by_client=lambda run: run.goodput.by_client(run.goodput.tokens_per_s)),
    Metric("goodput_ratio", "requests within their targets", column="on\ntime",
        better=MORE, of=BOTH, form=Form.PERCENT, most=1.0, undefined=NO_COHORT,
        shown=(Shown(Display.HEADLINES, 5, heading="on time", note="of the requests asked for"),
            Shown(Display.CLIENTS, 9), Shown(Display.COMPARISON, 9), Shown(Display.CONTRAST, 0),
            Shown(Display.COMPARED_CLIENTS, 8), Shown(Display.REPEATS, 17, heading="on time")),
        meaning="part of the requests of the window's programs that finished within their latency "
        "targets",
        compute=lambda run: met_ratio(run.goodput.counts),
        by_client=lambda run: run.goodput.by_client(met_ratio)),
    Metric("goodput_min_ratio", "on time, worst client", column="worst\non time", better=MORE,
        form=Form.PERCENT, most=1.0, undefined=NO_COHORT,
        shown=(Shown(Display.COMPARISON, 10), Shown(Display.REPEATS, 18)),
        meaning="lowest `goodput_ratio` of any client",
        compute=lambda run: min(
            (met_ratio([one]) for one in run.goodput.counts if one.asked), default=NAN)),
    Metric("goodput_jain_index", "Jain index of goodput", better=MORE, form=Form.INDEX,
        most=1.0, undefined=NONE_MET, shown=(Shown(Display.REPEATS, 19),),
        meaning="Jain's index of the clients' `goodput_tok_s`, divided by their weights",
        compute=lambda run: jain(
            np.array([one.in_window_tokens for one in run.goodput.counts], np.float64)
            / run.goodput.weights)),
    Metric("goodput_worst_share", "minimum fair share of goodput", better=MORE,
        form=Form.PERCENT, most=1.0, undefined=NONE_MET, shown=(Shown(Display.REPEATS, 20),),
        meaning="lowest part that any client received of its max-min fair share of the service "
        "within latency targets",
        compute=lambda run: least(run.goodput.client_shares)),
    Metric("goodput_slack_p50_s", "median time left of those within their targets", unit="s",
        better=MORE, undefined=NONE_MET,
        meaning="median time left before the tightest target, of requests that kept their targets",
        compute=lambda run: median(
            np.maximum(run.goodput.slack_s[run.goodput.slack_s >= -TICK_S], 0.0))),
    Metric("goodput_late_p50_s", "median time by which finished requests missed", unit="s",
        better=LESS, undefined="no request that finished missed its targets",
        meaning="median time beyond the missed target, of finished requests that missed a target",
        compute=lambda run: median(-run.goodput.slack_s[~(run.goodput.slack_s >= -TICK_S)])),
    Metric("goodput_wasted_tokens", "tokens computed for requests that missed", unit="tokens",
        better=LESS, kind=COUNT, needs=CACHED,
        meaning="tokens that were computed for requests that missed a target",
        compute=lambda run: sum(one.wasted for one in run.goodput.counts)),
    Metric("goodput_wasted_ratio", "part of the tokens computed for requests that missed",
        better=LESS, form=Form.PERCENT, most=1.0, undefined="nothing was computed",
        needs=CACHED,
        meaning="`goodput_wasted_tokens`, divided by all tokens that were computed for the "
        "window's programs",
        compute=lambda run: ratio(
            sum(one.wasted for one in run.goodput.counts),
            sum(one.computed for one in run.goodput.counts))),
)))  # fmt: skip


def _in_windows(length_s: float, key: str, when: str) -> tuple[Metric, Metric]:
    """Return two metrics: the lowest fair share in any window, over all clients and by client."""
    shown = (Shown(Display.CONTRAST, 2), Shown(Display.REPEATS, 14)) if length_s == 60 else ()
    common = Metric(
        key, f"of fair share {when}", better=MORE, of=CLIENT, form=Form.PERCENT, most=1.0,
        undefined=TOO_FEW_REQUESTS,
        meaning=f"part that the client received of its max-min fair share {when}",
        by_client=lambda run: run.share_in_worst_window(length_s),
    )  # fmt: skip
    least_of_all = replace(
        common, key=f"min_{key}", heading=f"minimum fair share {when}", of=Of.RUN, shown=shown,
        meaning=f"lowest part that any client received of its max-min fair share {when} "
        "([fairness over time](#fairness-over-time))",
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
    page = "[tenants](../guide/tenants.md#what-a-run-is-judged-by)"
    return replace(metric, when=lambda run: run.tenants, page=page)


TREE = tuple(map(_tree, (
    Metric("tree_jain_index", "Jain index of owners", better=MORE, form=Form.INDEX, most=1.0,
        undefined=NO_TENANTS,
        meaning="Jain's index of the service of the outermost tenants, divided by their weights",
        compute=lambda run: run.tree.even),
    Metric("tree_worst_share", "minimum fair share of a tenant or client among its siblings",
        better=MORE, form=Form.PERCENT, most=1.0, undefined=NO_TENANTS,
        meaning="lowest part that any tenant or client received of its fair share among its "
        "siblings",
        compute=lambda run: run.noted_share(run.tree.worst)),
    Metric("tree_share", "of its share in the tree", column="of tree\nshare", better=MORE,
        of=CLIENT, form=Form.PERCENT, undefined=NO_TENANTS,
        shown=(Shown(Display.CLIENTS, 12, dropped=6),),
        meaning="the client's service, divided by its fair share in the tree of tenants",
        by_client=lambda run: [run.noted_share(share) for share in run.tree.client_shares]),
)))  # fmt: skip

SOMETIMES = (
    Metric("demoted", "requests demoted by admission control", better=LESS, of=BOTH, kind=COUNT,
        meaning="number of requests that admission control put behind the other requests",
        when=lambda run: run.requests.demoted is not None,
        compute=lambda run: int(run.demoted.sum()),
        by_client=lambda run: run.rows_by_client(run.requests.client, run.demoted)),
    Metric("useful_service_tok_s", "useful service", column="useful\ntok/s", unit="tok/s",
        better=MORE, of=CLIENT, undefined=EMPTY_WINDOW,
        shown=(Shown(Display.CLIENTS, 2, dropped=1),),
        meaning="the client's service without its padded prompts and lengthened answers "
        "([heavy clients](workloads.md#heavy-clients))",
        when=lambda run: any(client.padding != PLAIN for client in run.facts.clients),
        by_client=lambda run: run.window_rates(run.useful_service)),
)  # fmt: skip


NO_ANSWER = "no answer of the client has two tokens"


def _stall(metric: Metric) -> Metric:
    better = MORE if metric.better is MORE else LESS
    return replace(metric, better=better, when=lambda run: run.stalls is not None)


STALLS = tuple(map(_stall, (
    Metric("victim_stalled_s_per_min", "stalled by prompts, well-behaved client",
        unit="s per minute", undefined=NO_ANSWER,
        meaning="largest `stalled_s_per_min` of any well-behaved client",
        compute=lambda run: run.victims_stalled),
    Metric("stalled_s", "seconds stalled by prompts of other clients", unit="s", of=CLIENT,
        meaning="time for which prompts of other clients held up the client's answers, summed over "
        "answers ([stalls](#stalls))",
        by_client=lambda run: run.known_stalls.by_others_s),
    Metric("stalled_s_per_min", "stalled by prompts of other clients", unit="s per minute",
        of=CLIENT, undefined=NO_ANSWER,
        meaning="`stalled_s` per minute in which an answer was in progress",
        by_client=lambda run: run.known_stalls.per_minute()),
    Metric("p99_gap_ms", "P99 gap between tokens", unit="ms", of=CLIENT, undefined=NO_ANSWER,
        meaning="P99 of the gaps between two tokens of an answer; at most 1% above the exact value",
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
        meaning="number of gaps between two tokens that are longer than 0.5 s and than four decode "
        "steps of a lone request", by_client=lambda run: run.known_stalls.gaps.above),
)))  # fmt: skip


def _memory(metric: Metric) -> Metric:
    return replace(metric, of=CLIENT, when=lambda run: run.tables.memory is not None)


MEMORY = tuple(map(_memory, (
    Metric("residency_tokens", "KV memory held on average", unit="tokens",
        undefined=EMPTY_WINDOW,
        meaning="average KV memory that the client's running requests and cached prefixes held in "
        "the window; a token that k clients share counts 1/k for each client",
        by_client=lambda run: [
            ratio(held, run.memory_window.length_s) for held in run.held_token_s.tolist()]),
    Metric("residency_ratio", "KV memory held, relative to its share", column="of memory\nshare",
        form=Form.PERCENT, undefined="no client held KV memory in the window",
        shown=(Shown(Display.CLIENTS, 13, dropped=5),),
        meaning="the client's part of all held KV memory, divided by its part of all weights",
        by_client=lambda run: [
            ratio(held, float(run.held_token_s.sum() * part))
            for held, part in zip(run.held_token_s.tolist(), run.weight_parts, strict=True)]),
    Metric("evicted_tokens", "tokens lost to evictions", unit="tokens", better=LESS,
        meaning="cached tokens of the client that were evicted",
        by_client=lambda run: [float(lost.sum()) for lost in run.evicted_tokens]),
    Metric("evicted_by_others_tokens", "tokens lost to evictions for other clients",
        unit="tokens", better=LESS,
        meaning="cached tokens of the client that were evicted for requests of other clients",
        by_client=lambda run: [
            float(lost.sum() - lost[own]) for own, lost in enumerate(run.evicted_tokens)]),
    Metric("evicted_of_others_tokens",
        "tokens that other clients lost to evictions for this client", unit="tokens",
        better=LESS,
        meaning="cached tokens of other clients that were evicted for the client's requests",
        by_client=lambda run: [
            float(lost.sum() - lost[own]) for own, lost in enumerate(run.evicted_tokens.T)]),
    Metric("cache_hit_rate_alone", "cache hit rate alone on its share of the pool",
        form=Form.PERCENT, most=1.0, undefined=NOT_ALONE_IN_MEMORY,
        meaning="cache hit rate of the client alone on its part of each KV pool, with LRU eviction",
        by_client=lambda run: run.hit_rates_alone),
    Metric("cache_sharing_incentive", "cache hit rate relative to the client alone", better=MORE,
        form=Form.PERCENT, undefined=NOT_ALONE_IN_MEMORY,
        meaning="`cache_hit_rate`, divided by `cache_hit_rate_alone`; below 1, a private cache "
        "would be better for the client",
        by_client=lambda run: list(map(ratio, run.hit_rates, run.hit_rates_alone))),
)))  # fmt: skip


def _session(name: str, heading: str, percent: int, meaning: str) -> Metric:
    """Return the metric for a percentile of the latency of each client's recorded sessions."""
    return Metric(
        f"{name}_p{percent}_s", f"P{percent} of {heading}", unit="s", better=LESS, of=CLIENT,
        undefined=NO_COHORT, meaning=meaning, when=lambda run: run.facts.sessions,
        by_client=lambda run: run.session_latency(name, percent),
    )  # fmt: skip


def _victim_session(name: str, heading: str, percent: int, meaning: str) -> Metric:
    return Metric(
        f"victim_{name}_p{percent}_s", f"P{percent} of well-behaved {heading}", unit="s",
        better=LESS, undefined=NO_VICTIM, when=lambda run: run.facts.sessions,
        meaning=f"mean, over the well-behaved clients, of a percentile of the {meaning}",
        compute=lambda run: run.victim_session_latency(name, percent),
    )  # fmt: skip


def _has_gateway(run: RunData) -> bool:
    return run.facts.sessions and run.requests.routed_s is not None


def _of_sessions(metric: Metric) -> Metric:
    page = "[sessions](#sessions)"
    return replace(metric, page=page, when=lambda run: run.facts.sessions)


def _slowdown(percent: int) -> tuple[Metric, Metric]:
    """Return a percentile of session slowdown as two metrics: a mean and a value per client."""
    key, heading = f"session_slowdown_p{percent}", f"P{percent} of the slowdown of sessions"
    common = Metric(key, heading, better=LESS, undefined=NO_COHORT, of=CLIENT, digits=2,
        meaning="time in which a call of the session was in progress, divided by this time if each "
        "call ran alone",
        by_client=lambda run: run.session_latency("slowdown", percent))  # fmt: skip
    return (
        replace(
            common, key=f"victim_{key}", heading=f"P{percent} of the slowdown of well-behaved "
            "sessions", of=Of.RUN, undefined=NO_VICTIM, by_client=None,
            shown=(Shown(Display.REPEATS, 23),) if percent == 95 else (),
            meaning=f"mean of `{key}` over the well-behaved clients",
            compute=lambda run: run.victim_session_latency("slowdown", percent)),
        common,
    )  # fmt: skip


def _session_share(length_s: float, key: str, when: str, *shown: Shown) -> tuple[Metric, Metric]:
    """Return the metrics of the sessions' minimum fair share, for the run and for each client."""
    common = Metric(
        key, f"lowest share of a session {when}", better=MORE, of=CLIENT, form=Form.PERCENT,
        most=1.0, undefined=TOO_FEW_CALLS,
        meaning="lowest part that any session of the client received of the session's max-min fair "
        f"share among sessions, {when}",
        by_client=lambda run: [
            Noted(share, run.why_no_session_share)
            for share in run.own_sessions.least_by_client(run.session_shares[length_s])],
    )  # fmt: skip
    return (
        replace(common, key=f"min_{key}", of=Of.RUN, shown=shown, by_client=None,
            heading=f"minimum fair share of a session {when}",
            meaning="lowest part that any session received of its max-min fair share among "
            f"sessions, {when}",
            compute=lambda run: Noted(
                least(run.session_shares[length_s]), run.why_no_session_share)),
        common,
    )  # fmt: skip


WAITS = (
    ("turn_wait", "waits of calls", "wait of a call, from its arrival to its admission"),
    ("gate_wait", "waits of calls in the gateway", "wait of a call in the gateway's queue"),
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
        meaning="finished calls of the client's sessions, divided by the sessions' total minutes "
        "from first call to end",
        by_client=lambda run: run.own_sessions.turns_per_min()),
    *_session_share(0.0, "session_share", "over the window"),
    *_session_share(SESSION_WINDOW_S, "session_share_60s", "in the worst 60 s",
        Shown(Display.CONTRAST, 10), Shown(Display.REPEATS, 24)),
)))  # fmt: skip

SESSIONS = (
    *(
        _victim_session(name, heading, percent, meaning)
        for name, heading, meaning in (
            ("session", "sessions without think time", "latency of sessions without think time"),
            ("ttft", "calls' time to first token", "time to first token of calls"))
        for percent in (50, 95)
    ),
    *(
        _session(name, heading, percent, meaning)
        for name, heading, meaning in (
            ("session", "sessions without think time",
                "latency of a session without think time: the time in which a call of the session "
                "was in progress"),
            ("turn", "turns", "time of a call, from the call's arrival to its last token"),
            ("ttft", "calls' time to first token", "time to first token of a call"))
        for percent in (50, 95)
    ),
    Metric("session_cache_hit_rate", "median cache hit rate of sessions", better=MORE,
        of=CLIENT, form=Form.PERCENT, most=1.0, undefined=NO_COHORT,
        meaning="median of the sessions' cache hit rates: cached input, divided by all input",
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
    return (
        Metric(f"{side}_busy_ratio", f"busy time of {side} workers over the run",
            form=Form.PERCENT, most=1.0, undefined="nothing was simulated",
            meaning=f"busy time of the {side} workers, divided by the workers' total time",
            compute=lambda run: run.busy_ratio(number)),
        Metric(f"{side}_gpu_s", f"busy time of {side} workers", unit="s", digits=1,
            meaning=f"busy time of the {side} workers in the whole run",
            compute=lambda run: float(run.both_sides.busy_s[number])),
    )  # fmt: skip


def _side(metric: Metric) -> Metric:
    return replace(metric, when=lambda run: run.sides)


SIDES = tuple(map(_side, (
    *(metric for pair in zip(_of_side(0, "prefill"), _of_side(1, "decode"), strict=True)
        for metric in pair),
    Metric("mean_transfer_ms", "mean time of a KV transfer", unit="ms", better=LESS,
        undefined="no KV cache was transferred",
        meaning="mean time from the first byte of a prompt's KV cache on the link to the last",
        compute=lambda run: 1e3 * statistic_of("mean", run.both_sides.transfer_s)),
)))  # fmt: skip


def _limit(metric: Metric) -> Metric:
    """Return ``metric`` with a function that reads its value from ``RunData.limit_values``."""
    return replace(
        metric,
        when=lambda run: metric.key in run.limit_values,
        compute=lambda run: float(run.limit_values[metric.key]),
    )


LIMIT = tuple(map(_limit, (
    Metric("least_gpu_s", "least GPU time of the finished requests", unit="s", digits=1,
        meaning="least GPU time in which any scheduler could compute the finished requests "
        "([the limit](#the-limit))"),
    Metric("least_makespan_s", "least makespan of the finished requests", unit="s", digits=1,
        meaning="least time in which any scheduler could complete the finished requests, from the "
        "start of the run ([the limit](#the-limit))"),
    Metric("limit_ratio", "share of the limit", column="of\nlimit", better=MORE,
        form=Form.PERCENT, most=1.0, undefined="no request finished",
        meaning="`least_makespan_s`, divided by the time in which the run finished the requests",
        shown=(Shown(Display.COMPARISON, 12, form=Form.WHOLE_PERCENT, dropped=5),
            Shown(Display.CONTRAST, 12), Shown(Display.REPEATS, 21))),
    Metric("limit_memory_ratio", "share of the limit with this memory and order of requests",
        better=MORE, form=Form.PERCENT, most=1.0, undefined=ALL_FIT,
        meaning="`limit_ratio` if the best scheduler also had to recompute what does not fit into "
        "the run's KV memory, in the run's order of requests"),
    Metric("limit_hit_rate", "most that any eviction policy could hit in this order",
        form=Form.PERCENT, most=1.0, undefined=ALL_FIT,
        meaning="highest cache hit rate that any eviction policy could reach in the run's order of "
        "requests"),
    Metric("limit_service_tok_s", "most service that any scheduler could give", unit="tok/s",
        undefined=NO_LIMIT,
        meaning="highest service per second of the window that any scheduler could reach"),
    Metric("limit_fair_service_tok_s", "most service at max-min fair shares", unit="tok/s",
        undefined=NO_LIMIT,
        meaning="highest service per second at which every client could have its max-min fair "
        "share"),
    Metric("victim_least_p95_s", "P95 of well-behaved clients alone on an idle cluster", unit="s",
        undefined=NO_VICTIM,
        meaning="mean, over the well-behaved clients, of the P95 latency if each program ran alone "
        "on an idle cluster"),
    *(
        Metric(f"time_{key}_ratio", f"GPU time {text}", form=Form.PERCENT, better=better,
            most=1.0, undefined=NO_TIME, meaning=f"GPU time {text}, as part of the replicas' time")
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
    return Metric(
        f"lateness_{statistic}_ms", f"{statistic} lateness of the load", unit="ms",
        undefined=NOT_SENT,
        meaning="live runs: delay between the planned and the real sending time; a P99 above 10 ms "
        "is flagged in `notes`",
        when=lambda run: run.measured.late_ms is not None,
        compute=lambda run: statistic_of(statistic, run.measured.late_ms),
    )  # fmt: skip


def _held(statistic: str) -> Metric:
    """Return a metric of the time that requests waited for a slot (``--max-concurrency``)."""
    return Metric(
        f"held_{statistic}_s", f"{statistic} wait for a limit on concurrency", unit="s",
        undefined=NOT_SENT,
        meaning="live runs: time for which a request waited for a slot under `--max-concurrency`",
        when=lambda run: run.measured.held,
        compute=lambda run: statistic_of(statistic, run.measured.held_s),
    )  # fmt: skip


LIVE = (
    *map(_lateness, ("p50", "p99", "max")),
    Metric("held", "requests queued by a limit on concurrency", kind=COUNT,
        meaning="live runs: number of requests that waited for a slot under `--max-concurrency`; "
        "the latency of such a request counts from its slot",
        when=lambda run: run.measured.held_s is not None,
        compute=lambda run: run.measured.held),
    *map(_held, ("p50", "p99", "max")),
    Metric("estimated", "answers with estimated token counts", kind=COUNT,
        meaning="live runs: number of completed requests for which the server did not report all "
        "token counts; then, each event with output and each word of the prompt counts as a token",
        when=lambda run: run.measured.estimated, compute=lambda run: run.measured.estimated),
)  # fmt: skip


def _incentive(rank: int) -> Metric:
    """Return the metric of the sharing incentive at the latency percentile ``rank``."""
    return Metric(
        f"sharing_incentive_p{rank}", f"sharing incentive P{rank}", column=f"sharing\nP{rank}",
        better=LESS, of=BOTH, digits=2, undefined=NOT_ALONE, tail=rank if rank in TAILS else 0,
        meaning=f"P{rank} latency of a client, divided by its P{rank} latency when it runs alone "
        "on its part of the cluster; for the run, the value of the worst-off well-behaved client",
        shown=(
            Shown(Display.COMPARISON, 1 + (rank in TAILS), dropped=4 if rank == 50 else None),
            Shown(Display.COMPARED_CLIENTS, 5 + (rank in TAILS))),
        beside=lambda run: run.worst_incentive(rank),
        clients_beside=lambda run: run.incentives(rank),
    )  # fmt: skip


def _beside(metric: Metric) -> Metric:
    """Return the metric as a metric that only comparisons compute."""
    page = "[comparisons](../guide/sweep.md#columns-of-a-comparison)"
    return replace(metric, page=page, when=lambda run: False)


COMPARISON = tuple(map(_beside, (
    Metric("best_service_rate_tok_s", "highest service of any scheduler", unit="tok/s",
        meaning="highest `service_rate_tok_s` of any compared scheduler, for this configuration "
        "and seed",
        better=MORE, beside=lambda run: run.best_tok_s),
    Metric("min_entitlement_best_ratio", "minimum fair share of best total",
        column="min. fair\nshare of best", better=MORE, form=Form.WHOLE_PERCENT, most=1.0,
        undefined=NO_DEMAND,
        meaning="*minimum fair share of best total* (`min_share_of_best` in commands): the lowest "
        "part that any client received of its max-min fair share of `best_service_rate_tok_s`",
        shown=(Shown(Display.COMPARISON, 4), Shown(Display.CONTRAST, 1)),
        beside=lambda run: run.least_share),
    Metric("entitlement_best_tok_s", "fair share of the best total", unit="tok/s", of=CLIENT,
        meaning="the client's max-min fair share of `best_service_rate_tok_s`",
        clients_beside=lambda run: run.entitlement_tok_s),
    Metric("entitlement_best_ratio", "of fair share of the best total", better=MORE, of=CLIENT,
        form=Form.PERCENT, undefined="the client was entitled to no service",
        shown=(Shown(Display.COMPARED_CLIENTS, 2),),
        meaning="the client's service, divided by `entitlement_best_tok_s`",
        clients_beside=lambda run: run.best_shares),
    *map(_incentive, (50, *TAILS)),
)))  # fmt: skip
