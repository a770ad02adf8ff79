"""Lower bounds on a run's GPU time and duration, and the run's GPU time by purpose.

Each least time is a lower bound that no scheduler can beat with the same engine and timing profile
(docs/reference/metrics.md).
"""

from __future__ import annotations

from math import nan
from typing import Any, NamedTuple

import numpy as np

from fairbench.metrics.fairness import Shares, max_min
from fairbench.metrics.records import FINISHED, Facts, Floats, Ints, Programs, Requests, WorkPrices
from fairbench.metrics.service import one_per_stretch
from fairbench.metrics.tables import Tables
from fairbench.metrics.waiting import merged, waits

WORK, ARRIVALS, PROGRAM = "work", "arrivals", "longest program"
"""The possible causes of a run's least makespan: total work, late arrivals, or one long program."""
NO_PROMPTS = "unknown, because the records do not say which prompts share a prefix"
NO_PRICES = "unknown, because no timing profile describes the replicas"


def why_no_limit(tables: Tables, facts: Facts) -> str:
    """Return why lower bounds on a run's times are unknown, or "" if they are known."""
    if tables.requests.compulsory_tokens is None:
        return NO_PROMPTS
    return NO_PRICES if facts.prices is None else ""


def limit_values(tables: Tables, facts: Facts, got: Shares) -> dict[str, Any]:
    """Return lower bounds on a run's time and work, and GPU time by purpose; {} if unknown."""
    if facts.prices is None or tables.requests.compulsory_tokens is None:
        return {}
    work = least_work(tables.requests, facts.prices)
    alone_s = alone_times(tables.requests, tables.programs, facts.prices)
    least = least_makespan(tables, facts, work, alone_s)
    served = tables.requests.status == FINISHED
    ended_s = float(tables.requests.finish_s[served].max(initial=0.0)) or nan
    run: dict[str, Any] = {
        "least_gpu_s": float(work.in_all_s.sum()),
        "least_makespan_s": least.least_s,
        "limit_ratio": least.least_s / ended_s,
        **{
            f"limit_{name}service_tok_s": most_service(tables, facts, got, work, share)
            for name, share in (("", 0.0), ("fair_", 1.0))
        },
        "victim_least_p95_s": _victims_alone_s(tables, facts, alone_s),
    }
    if facts.lone is not None:  # ``facts.lone`` is None for real servers.
        found = with_memory(tables.requests, facts, work)
        run["limit_hit_rate"] = found.hit_rate
        run["limit_memory_ratio"] = float(np.maximum(least.least_s, found.least_s)) / ended_s
        spent = time_spent(tables, facts, work)
        run |= {
            f"time_{name.removesuffix('_s')}_ratio": max(0.0, part_s / (spent.whole_s or nan))
            for name, part_s in spent._asdict().items()
        }
    return {**run, "limit_cause": least.cause}


# The cause of the least makespan is ``WORK`` if the total work takes at least 90% of the least
# makespan.
NEARLY = 0.9


class LeastWork(NamedTuple):
    """The least GPU time (s) that each request needs; 0 for an unfinished request.

    ``prefill_s`` and ``decode_s`` have the shape (n_requests,).
    """

    prefill_s: Floats
    decode_s: Floats

    @property
    def in_all_s(self) -> Floats:
        """The least GPU time that each request needs for its prompt and its answer."""
        return self.prefill_s + self.decode_s


def least_work(requests: Requests, prices: WorkPrices) -> LeastWork:
    """Return each request's minimum GPU time: its time in full batches with an ideal cache.

    Raises ValueError if the compulsory tokens, which no cache can save, are unknown.
    """
    if requests.compulsory_tokens is None:
        raise ValueError("compulsory_tokens (prompt tokens that no cache saves) must not be None")
    served = requests.status == FINISHED
    prefill_s = prices.prompt_s(requests.input_tokens, requests.compulsory_tokens)
    decode_s = prices.answer_s(requests.input_tokens, requests.output_tokens)
    return LeastWork(np.where(served, prefill_s, 0.0), np.where(served, decode_s, 0.0))


class Makespan(NamedTuple):
    """A lower bound on a run's makespan in seconds, and its cause: WORK, ARRIVALS or PROGRAM."""

    least_s: float
    cause: str


def least_makespan(tables: Tables, facts: Facts, work: LeastWork, alone_s: Floats) -> Makespan:
    """Return the time before which no scheduler could have finished the run's requests.

    The returned time is the largest of three lower bounds on the run's end. ``WORK`` is the time
    that all replicas need for all work. ``ARRIVALS`` is the largest sum of an arrival time and the
    time that all replicas need for the work that arrives from then on. ``PROGRAM`` is the time at
    which the last program would finish if each program ran alone. A program that waits for an
    earlier program of its client is assumed to arrive when the run starts. ``alone_s`` holds the
    ``alone_times`` of the programs.
    """
    arrival_s = program_arrivals(tables.programs, facts)
    ends_s = arrival_s + alone_s
    found = {
        WORK: float(on_all_replicas_s(facts, work.prefill_s.sum(), work.decode_s.sum())),
        ARRIVALS: _with_arrivals(tables, facts, work, arrival_s),
        PROGRAM: float(ends_s.max(initial=0.0)),
    }
    cause = max(found, key=lambda one: found[one])
    least_s = found[cause]
    return Makespan(least_s, WORK if found[WORK] >= NEARLY * least_s else cause)


class InMemory(NamedTuple):
    """The highest cache hit rate that the KV memory allows, and the least run time at this rate."""

    hit_rate: float
    least_s: float


def with_memory(requests: Requests, facts: Facts, work: LeastWork) -> InMemory:
    """Return the highest hit rate of any eviction policy, and the least run time at this rate.

    Prompts are assumed to be computed in the same order as in the run. Tokens that are computed
    again because memory is small are assumed to need no attention time. The hit rate and the run
    time are NaN if all prefixes fit in memory.
    Precondition: ``facts.prices`` and ``requests.compulsory_tokens`` are known.
    """
    if facts.least_computed is None:
        return InMemory(nan, nan)
    assert facts.prices is not None
    assert requests.compulsory_tokens is not None
    served = requests.status == FINISHED
    compulsory = int(requests.compulsory_tokens[served].sum())
    computed = max(facts.least_computed, compulsory)
    again_s = facts.prices.token_s * (computed - compulsory)
    least_s = on_all_replicas_s(facts, work.prefill_s.sum() + again_s, work.decode_s.sum())
    return InMemory(1 - computed / int(requests.input_tokens[served].sum()), float(least_s))


def alone_times(requests: Requests, programs: Programs, prices: WorkPrices) -> Floats:
    """Return a lower bound on the duration of each program, run alone on an idle cluster.

    The lower bound assumes that all but the last token of each prompt are cached, and that parallel
    calls do not delay each other. A call is assumed to wait only for the shortest call of its
    program at each smaller depth.

    Returns:
        The lower bounds in seconds, shape (n_programs,). An unfinished call counts as 0 s of its
        program's time.
    """
    program = program_rows(requests, programs)
    served = np.flatnonzero((requests.status == FINISHED) & (program >= 0))
    calls_s = prices.alone_s(requests.input_tokens[served], requests.output_tokens[served])
    program, depth = program[served], requests.depth[served]
    order = np.lexsort((calls_s, depth, program))
    program, depth, calls_s = program[order], depth[order], calls_s[order]
    first = np.ones(len(order), np.bool_)  # marks the shortest call at each depth of a program
    first[1:] = (program[1:] != program[:-1]) | (depth[1:] != depth[:-1])
    shortest_s = np.cumsum(np.where(first, calls_s, 0.0))
    level = np.cumsum(first) - 1
    of_level_s = calls_s[first]
    before_s = (shortest_s[first] - of_level_s)[level]
    begins = np.flatnonzero(np.diff(program, prepend=-1))
    start_s = np.repeat(before_s[begins], np.diff(begins, append=len(program)))
    alone_s = np.zeros(len(programs))
    np.maximum.at(alone_s, program, before_s - start_s + calls_s)
    return alone_s


def most_service(tables: Tables, facts: Facts, got: Shares, work: LeastWork, share: float) -> float:
    """Return the highest service rate (tok/s) if every client gets ``share`` of its fair share.

    Every client receives at least ``share`` of its max-min fair share, and at most its demand. GPU
    time beyond the clients' minimum shares goes to the clients that need the least GPU time per
    token. A client's service is assumed to be a uniform mix of all its requests. The result is NaN
    for a disaggregated cluster, and for an empty window.
    """
    clients, requests = len(facts.clients), tables.requests
    if facts.prefill_workers is not None or not got.window.length_s:
        return nan
    cost_s = np.bincount(requests.client, weights=work.in_all_s, minlength=clients)
    weights, served = facts.weights, requests.status == FINISHED
    tokens = weights.extend * requests.input_tokens + weights.output * requests.output_tokens
    service = np.bincount(requests.client, weights=np.where(served, tokens, 0), minlength=clients)
    known = service > 0
    price = cost_s[known] / service[known]
    time_s = facts.workers * got.window.length_s
    most = most_at(price, got.demand[known], facts.client_weights[known], share, time_s)
    return most / got.window.length_s


def most_at(price: Floats, demand: Floats, weight: Floats, share: float, time_s: float) -> float:
    """Return the most tokens that can be served in ``time_s`` seconds, found by bisection."""
    low, high = 0.0, float(demand.sum())
    if not high or cheapest(price, demand, share * max_min(high, demand, weight), high) <= time_s:
        return high
    for _ in range(60):
        total = (low + high) / 2
        least = share * max_min(total, demand, weight)
        fits = cheapest(price, demand, least, total) <= time_s
        low, high = (total, high) if fits else (low, total)
    return low


def cheapest(price: Floats, most: Floats, least: Floats, total: float) -> float:
    """Return the lowest GPU time (s) of ``total`` tokens, ``least`` to ``most`` per client."""
    order = np.argsort(price, kind="stable")
    room = np.cumsum((most - least)[order])
    more = np.diff(np.minimum(room, max(0.0, total - float(least.sum()))), prepend=0.0)
    return float(price @ least + price[order] @ more)


def _victims_alone_s(tables: Tables, facts: Facts, program_s: Floats) -> float:
    """Return the mean P95 latency (s) of well-behaved clients for programs that run alone."""
    requests, programs, prices = tables.requests, tables.programs, facts.prices
    assert prices is not None
    if facts.latency == "ttft":
        alone_s = prices.alone_s(requests.input_tokens, np.ones(len(requests), np.int64))
        client, arrived = requests.client, facts.window.holds(requests.arrival_s)
    else:
        alone_s = program_s
        client, arrived = programs.client, facts.window.holds(programs.arrival_s)
    victims = [at for at, one in enumerate(facts.clients) if not one.misbehaving]
    samples = [alone_s[arrived & (client == at)] for at in victims]
    found = [float(np.percentile(one, 95)) for one in samples if len(one)]
    return sum(found) / len(found) if found else nan


class TimeSpent(NamedTuple):
    """The GPU time of all replicas by purpose, in seconds; the fields add up to the total."""

    prefill_s: float  # time of full prefill passes for prompt tokens that no cache could save
    decode_s: float  # time for output tokens if all decode batches had been full
    recomputed_s: float  # time for computing prefixes that had been computed before
    retracted_s: float  # time for computing tokens again after a retraction
    unfinished_s: float  # time for requests that did not finish
    small_prefill_s: float  # time for fixed costs of prefill passes that were not full
    small_decode_s: float  # time for fixed costs of decode batches that were not full
    idle_waiting_s: float  # GPU time in which nothing ran although a request waited
    idle_s: float  # GPU time in which no request waited and nothing ran

    @property
    def whole_s(self) -> float:
        return sum(self)


def time_spent(tables: Tables, facts: Facts, work: LeastWork) -> TimeSpent:
    """Split the GPU time of all replicas during the run by purpose."""
    prices = facts.prices
    assert prices is not None
    requests = tables.requests
    steps = _steps(tables, facts, prices)
    served = requests.status == FINISHED
    assert requests.compulsory_tokens is not None
    computed_s = prices.prompt_s(requests.input_tokens, requests.extend_tokens)
    # ``recomputed_s`` is computed only as a sum over all requests, because a shared prefix may be
    # charged to a request that did not compute the prefix.
    recomputed_s = float(computed_s[served].sum() - work.prefill_s.sum())
    begun = ~served & ~np.isnan(requests.admitted_s)
    answers_s = prices.answer_s(requests.input_tokens, requests.output_tokens)
    unfinished_s = float((computed_s + answers_s)[begun].sum())
    again = requests.recompute_tokens
    retracted_s = float(prices.prompt_s(again, again)[again > 0].sum())
    needed = float(work.prefill_s.sum()), float(work.decode_s.sum())
    small_prefill_s = steps.busy_s - steps.small_decode_s - sum(needed)
    small_prefill_s -= recomputed_s + retracted_s + unfinished_s
    idle_s = facts.workers * facts.horizon_s - steps.busy_s
    return TimeSpent(
        *needed, recomputed_s, retracted_s, unfinished_s, small_prefill_s, steps.small_decode_s,
        idle_waiting_s=steps.idle_waiting_s, idle_s=idle_s - steps.idle_waiting_s,
    )  # fmt: skip


class _Steps(NamedTuple):
    busy_s: float
    small_decode_s: float
    idle_waiting_s: float


def _steps(tables: Tables, facts: Facts, prices: WorkPrices) -> _Steps:
    queued = waits(tables.requests, facts.horizon_s)
    union = merged(queued.start, np.minimum(queued.end, facts.horizon_s))
    times = np.stack([union.start, union.end], axis=1).ravel()
    sofar = np.concatenate([[0.0], np.repeat(np.cumsum(union.end - union.start), 2)[:-1]])
    if not len(times):
        times, sofar = np.zeros(1), np.zeros(1)
    waiting_s = facts.workers * float(sofar[-1])
    busy_s = small_s = 0.0
    for part in tables.service.parts():
        log = one_per_stretch(part)
        took_s = log.end_s - log.start_s
        busy_s += float(took_s.sum())
        together = np.interp(log.end_s, times, sofar) - np.interp(log.start_s, times, sofar)
        waiting_s -= float(together.sum())
        decodes = log.step_growth_s > 0
        grown = log.batch_size * log.steps * (log.steps - 1) // 2
        full_s = prices.decoded_s(
            log.steps * log.batch_size, log.steps * log.context_tokens + grown
        )
        small_s += float((took_s - full_s)[decodes].sum())
    return _Steps(busy_s, small_s, max(0.0, waiting_s))


def program_rows(requests: Requests, programs: Programs) -> Ints:
    """Return the row of each request's program in ``programs``, or -1 for unrecorded programs."""
    order = np.argsort(programs.program_id, kind="stable")
    after = np.append(programs.program_id[order], -1)
    at = np.searchsorted(after[:-1], requests.program_id)
    return np.where(after[at] == requests.program_id, np.append(order, -1)[at], -1)


def program_arrivals(programs: Programs, facts: Facts) -> Floats:
    """Return the earliest possible arrival of each program under any scheduler, in seconds."""
    waits_for = np.isin(programs.client, list(facts.closed_loop))
    return np.where(waits_for, 0.0, programs.arrival_s)


def _with_arrivals(tables: Tables, facts: Facts, work: LeastWork, arrival_s: Floats) -> float:
    """Return a lower bound on the run's end (s): max over t of t + the time of work from t on."""
    requests, programs = tables.requests, tables.programs
    at = program_rows(requests, programs)
    # A request whose program was not recorded may have begun at any time.
    start_s = np.where(at >= 0, arrival_s[at] if len(programs) else 0.0, 0.0)
    known = np.flatnonzero(at >= 0)
    times_s, *parts = work_from(requests, facts, work, start_s, known)
    return float((times_s + on_all_replicas_s(facts, *parts)).max(initial=0.0))


class WorkFrom(NamedTuple):
    """The least GPU time, in seconds, for the work that cannot begin before each given time."""

    times_s: Floats
    prefill_s: Floats
    decode_s: Floats


def work_from(
    requests: Requests, facts: Facts, work: LeastWork, start_s: Floats, rows: Ints
) -> WorkFrom:
    """Return the least GPU time of work that cannot begin before each start time, latest first.

    The records charge a shared prefix to the request that finished first, but a different scheduler
    may compute the prefix for any request that contains it. Suppose that a request cannot begin
    before a time t. The request's whole prefill counts as work after t only if the request finished
    later than all requests that can begin before t. Otherwise, only one prompt token and the
    decoding of the request count as work after t.

    Args:
        requests: All requests of the run.
        facts: The facts of the run; ``facts.prices`` must be known.
        work: The least GPU time of each request.
        start_s: The earliest time at which each request can begin, shape (n_requests,).
        rows: The requests whose work is counted.
    """
    assert facts.prices is not None
    one_s = facts.prices.prompt_s(requests.input_tokens, np.ones(len(requests), np.int64))
    one_s = np.minimum(one_s, work.prefill_s)[rows]
    rest_s, nothing = work.prefill_s[rows] - one_s, np.zeros(len(rows))
    times_s = np.concatenate([start_s[rows], _charged_until(requests, start_s)[rows]])
    order = np.argsort(times_s, kind="stable")[::-1]
    prefill_s = np.concatenate([one_s, rest_s])[order].cumsum()
    decode_s = np.concatenate([work.decode_s[rows], nothing])[order].cumsum()
    return WorkFrom(times_s[order], prefill_s, decode_s)


def _charged_until(requests: Requests, start_s: Floats) -> Floats:
    """Return, for each request R, the earliest start of any request that ended with or after R."""
    ended_s = np.where(requests.status == FINISHED, requests.finish_s, np.inf)
    order = np.argsort(ended_s, kind="stable")
    earliest_s = np.minimum.accumulate(start_s[order][::-1])[::-1]
    found: Floats = earliest_s[np.searchsorted(ended_s[order], ended_s)]
    return found


def on_all_replicas_s(facts: Facts, prefill_s: Floats, decode_s: Floats) -> Floats:
    """Return the least time (s) that all replicas together need for each given amount of work."""
    if facts.prefill_workers is None:
        return (prefill_s + decode_s) / facts.workers
    others = facts.workers - facts.prefill_workers
    return np.maximum(prefill_s / facts.prefill_workers, decode_s / others)
