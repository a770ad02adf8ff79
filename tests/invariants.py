"""Numbered invariants of every simulation. Call ``check_all`` after every simulator test.

``run_checked`` also checks the workers after every event. INV-3 to 5, 12 and 13 are in
worker_invariants.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fairbench.engine.sequence import FINISHED, REFUSED, UNFINISHED
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import Frontend, TimingProfile
from fairbench.metrics.limit import TimeSpent, least_work
from fairbench.metrics.records import Programs, Requests
from fairbench.metrics.tables import RunResult
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.registry import local_class, router_class
from fairbench.sim.run import Simulation
from fairbench_studies.limit.call_limit import least_makespan_by_calls
from tests.worker_invariants import check_rest, check_worker, watch

TOLERANCE_S = 1e-9
TIME_SPENT = [name.removesuffix("_s") for name in TimeSpent._fields]


@dataclass(frozen=True)
class Records:
    """The three tables as numpy columns, and the facts needed to judge them.

    ``profile`` is None if the timing profile is not known exactly. ``limited`` means that a rate
    limit may refuse requests. ``conserving`` means that neither scheduler nor router leaves room
    unused on purpose. ``mixed`` means that an iteration may both compute prompts and decode.
    """

    requests: dict
    programs: dict
    service: dict
    profile: TimingProfile | None
    pool_tokens: int
    limited: bool = False
    conserving: bool = True
    mixed: bool = False


def check_all(result, profile=None, *, mixed=False) -> None:
    """Check every invariant of a ``RunResult``. Give its timing ``profile`` if it was perturbed.

    ``mixed`` tells whether the run has mixed chunks.
    """
    summary = result.summary
    if profile is None and not summary["timing_error_pct"]:
        profile = load_profile(summary["timing_profile"])
    tables = map(plain, (result.requests, result.programs, result.service))
    local, router = local_class(summary["local"]), router_class(summary["router"])
    held = "gateway" in summary or "admission" in summary
    held = held or summary.get("routers_form") == "ledger"
    limited = local.accepts is not LocalScheduler.accepts or held
    conserving = local.work_conserving and not (router.holds or held)
    check_records(Records(*tables, profile, summary["pool_tokens"], limited, conserving, mixed))
    check_limit(summary)


def check_limit(summary) -> None:
    """INV-29: no run is faster than its limit, and its GPU time is split without a remainder."""
    if summary["limit_ratio"] is None:
        return
    assert 0 < summary["limit_ratio"] <= 1 + TOLERANCE_S
    if summary["limit_memory_ratio"] is not None:
        assert summary["limit_ratio"] <= summary["limit_memory_ratio"] <= 1 + TOLERANCE_S
    parts = {key: summary[f"time_{key}_ratio"] for key in TIME_SPENT}
    assert min(parts.values()) >= -TOLERANCE_S, parts
    assert abs(sum(parts.values()) - 1) <= TOLERANCE_S, parts


def check_limit_by_calls(result, facts) -> None:
    """INV-29, call by call: no run is faster, and the bound is at least the bound by programs."""
    summary = result.summary
    if summary["limit_ratio"] is None:
        return
    requests = Requests.from_columns(plain(result.requests))
    programs = Programs.from_columns(plain(result.programs))
    work = least_work(requests, facts.prices)
    least_s = least_makespan_by_calls(requests, programs, facts, work)
    ended_s = summary["least_makespan_s"] / summary["limit_ratio"]
    assert summary["least_makespan_s"] - TOLERANCE_S <= least_s <= ended_s + TOLERANCE_S


def run_checked(spec) -> RunResult:
    """Simulate ``spec``. Check workers after every event, and the rest at the end."""
    source = spec.source()
    simulation = Simulation(spec, spec.client_plans(), source)
    watch(simulation.clock, simulation.cluster.workers)
    simulation.run()
    for worker in simulation.cluster.workers:
        check_worker(worker)
        check_rest(worker)
    facts = simulation.facts()
    result = simulation.result(True, source)
    mixed = bool(spec.settings.get("engine.enable_mixed_chunk"))
    check_all(result, simulation.profile, mixed=mixed)
    check_limit_by_calls(result, facts)
    return result


def plain(table) -> dict:
    """Return columns without dictionary encoding, because the checks use the codes."""
    return {
        name: np.asarray(column.indices) if hasattr(column, "indices") else np.asarray(column)
        for name, column in table.items()
    }


def check_records(records: Records) -> None:
    """Check INV-1, 2, 6 to 10 and 22."""
    check_request_conservation(records)
    check_program_conservation(records)
    check_causality(records)
    check_service_totals(records)
    check_no_overlap(records)
    check_gpu_time(records)
    if records.profile is not None:
        check_durations(records)
    check_work_conservation(records)


# tables


def check_request_conservation(records: Records) -> None:
    """INV-1: every request has one row and a final state, with the tokens that its state allows."""
    r = records.requests
    assert sorted(r["request_id"]) == list(range(len(r["request_id"])))
    assert np.isin(r["status"], (FINISHED, REFUSED, UNFINISHED)).all()
    finished, refused = r["status"] == FINISHED, r["status"] == REFUSED
    assert not np.isnan(r["finish_s"][finished]).any()
    assert np.isnan(r["finish_s"][~finished]).all()
    assert np.isnan(r["admitted_s"][refused]).all()
    too_big = r["input_tokens"] + r["max_new_tokens"] + 1 >= records.pool_tokens
    assert refused[too_big].all()
    assert records.limited or not refused[~too_big].any()
    admitted = ~np.isnan(r["admitted_s"])
    covered = r["cached_tokens"] + r["extend_tokens"]
    assert (covered[admitted] == r["input_tokens"][admitted]).all()
    assert (r["extend_tokens"][admitted] >= 1).all()
    assert (covered[~admitted] == 0).all()
    assert (r["output_tokens"][finished] >= 1).all()
    assert (r["output_tokens"] <= r["max_new_tokens"]).all()
    assert (r["output_tokens"][np.isnan(r["first_token_s"])] == 0).all()


def check_program_conservation(records: Records) -> None:
    """INV-2: every program has one row and its own requests, all of them if it finished."""
    p, r = records.programs, records.requests
    made = Counter(r["program_id"].tolist())
    ids = p["program_id"].tolist()
    assert len(set(ids)) == len(ids)
    assert set(made) <= set(ids)
    assert [made[i] for i in ids] == p["requests"].tolist()
    finished = p["status"] == FINISHED
    demand = p["demand_requests"]
    assert (p["requests"][finished] == demand[finished]).all()
    assert (p["requests"] <= demand).all()
    states = {i: set() for i in ids}
    for program, status in zip(r["program_id"].tolist(), r["status"].tolist(), strict=True):
        states[program].add(status)
    for program, status in zip(ids, p["status"].tolist(), strict=True):
        if status == FINISHED:
            assert states[program] == {FINISHED}
        if status == REFUSED:
            assert REFUSED in states[program]


def check_causality(records: Records) -> None:
    """INV-6: arrival <= admission <= first token <= finish, and retraction before readmission.

    A request of depth d arrives after d others of its program have finished.
    """
    r, p = records.requests, records.programs
    chain = [r[name] for name in ("arrival_s", "admitted_s", "first_token_s", "finish_s")]
    for earlier, later in pairwise(chain):
        known = ~np.isnan(later)
        assert (earlier[known] <= later[known]).all()
    back = ~np.isnan(r["readmitted_s"])
    assert (r["retracted_s"][back] <= r["readmitted_s"][back]).all()
    assert ((r["retractions"] > 0) == ~np.isnan(r["retracted_s"])).all()
    started = dict(zip(p["program_id"].tolist(), p["arrival_s"].tolist(), strict=True))
    ended = dict(zip(p["program_id"].tolist(), p["finish_s"].tolist(), strict=True))
    finishes = {program: [] for program in started}
    rows = list(zip(*(r[n].tolist() for n in ("program_id", "depth", *_TIMES)), strict=True))
    for program, _, _, finish in rows:
        finishes[program].append(finish)
    for program, depth, arrival, finish in rows:
        assert arrival >= started[program]
        assert not finish > ended[program]
        assert sum(other <= arrival for other in finishes[program]) >= depth


_TIMES = ("arrival_s", "finish_s")


def check_service_totals(records: Records) -> None:
    """INV-7: each client's service in the log adds up to the tokens of its requests.

    A chunked prompt or a recomputation may lack tokens if the run was cut off.
    """
    r, s = records.requests, records.service
    begun, prefilled = ~np.isnan(r["admitted_s"]), ~np.isnan(r["first_token_s"])
    finished = r["status"] == FINISHED
    sums = {
        "input_tokens": ("input_tokens", begun, begun),
        "extend_charged_tokens": ("extend_tokens", begun, begun),
        "extend_tokens": ("extend_tokens", prefilled, begun),
        "recompute_tokens": ("recompute_tokens", finished, begun),
        "output_tokens": ("output_tokens", begun, begun),
    }
    for client in np.unique(np.concatenate([r["client"], s["client"]])):
        mine, rows = r["client"] == client, s["client"] == client
        for logged, (of_request, surely, perhaps) in sums.items():
            total = s[logged][rows].sum()
            assert r[of_request][mine & surely].sum() <= total, logged
            assert r[of_request][mine & perhaps].sum() >= total, logged


def _stretches(service: dict):
    """Group the rows of the log by (worker, start), as lists of row numbers, in order."""
    groups = {}
    keys = zip(service["worker"].tolist(), service["start_s"].tolist(), strict=True)
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return groups


def check_no_overlap(records: Records) -> None:
    """INV-8: rows of a worker cover the same stretch (one row per client) or do not overlap."""
    s, free_from = records.service, {}
    for (worker, start), rows in sorted(_stretches(s).items()):
        for name in ("end_s", "steps", "batch_size", "context_tokens", "step_growth_s"):
            assert len(set(s[name][rows].tolist())) == 1, name
        assert len(set(s["client"][rows].tolist())) == len(rows)
        assert start >= free_from.get(worker, 0.0)
        free_from[worker] = s["end_s"][rows[0]]
        assert free_from[worker] > start


def check_gpu_time(records: Records) -> None:
    """INV-22: the clients' parts of a stretch add up to its time.

    Parts are exact to the picosecond, the precision of a float, so that all parts add up to the
    workers' busy time.
    """
    s = records.service
    keys = np.stack([s["worker"], s["start_s"]])
    stretches, row = np.unique(keys, axis=1, return_inverse=True)
    lasted, count = np.zeros(stretches.shape[1]), stretches.shape[1]
    lasted[row.ravel()] = s["end_s"] - s["start_s"]
    parts = np.bincount(row.ravel(), weights=s["gpu_s"], minlength=count)
    assert np.abs(parts - lasted).max(initial=0) < TOLERANCE_S
    assert (s["gpu_s"] > 0).all()


def check_durations(records: Records) -> None:
    """INV-9: the profile gives a decode row's duration and output exactly.

    A prefill row's duration lies between those with the longest possible prefix and without one. A
    row of a mixed chunk, which also decodes, takes the time of its context, too.
    """
    s, profile = records.service, records.profile
    for (_, start), rows in _stretches(s).items():
        first = rows[0]
        lasted = s["end_s"][first] - start
        batch, context = int(s["batch_size"][first]), int(s["context_tokens"][first])
        new = int((s["extend_tokens"][rows] + s["recompute_tokens"][rows]).sum())
        if records.mixed and new and context:
            assert batch > 1
            assert s["steps"][first] == 1
            c, most = profile.coefficients_ms, records.pool_tokens
            crossed = max(c["c_A"] * new * most, c["c_K"] * most, c["c_npf"]) * batch / 1e3
            decoding_s = profile.context_ps * context / 1e12
            alone = profile.prefill_ps([(0, new)]) / 1e12 - c["c_A"] * new * new / 1e3
            whole = profile.step_ps([(0, new)], batch, context) / 1e12
            assert alone + decoding_s - TOLERANCE_S <= lasted <= whole + crossed + TOLERANCE_S
            assert s["output_tokens"][rows].sum() <= batch
        elif context:
            steps = int(s["steps"][first])
            growth = profile.context_ps * batch
            first_ps = profile.decode_ps(batch, context)
            expected_ps = steps * first_ps + growth * (steps * (steps - 1) // 2)
            assert abs(s["step_growth_s"][first] - growth / 1e12) < 1e-15
            assert abs(lasted - expected_ps / 1e12) < TOLERANCE_S
            assert s["output_tokens"][rows].sum() == steps * batch
            assert (s["output_tokens"][rows] % steps == 0).all()
            for name in ("input_tokens", "extend_charged_tokens", "extend_tokens"):
                assert not s[name][rows].any()
        else:
            assert 1 <= batch <= new
            c, npf = profile.coefficients_ms, profile.coefficients_ms["c_npf"] * (batch - 1)
            alone = profile.prefill_ps([(0, new)]) / 1e12 + npf / 1e3
            crossed = max(c["c_A"] * new * records.pool_tokens, c["c_K"] * records.pool_tokens)
            assert alone - c["c_A"] * new * new / 1e3 - TOLERANCE_S <= lasted
            assert lasted <= alone + batch * crossed / 1e3 + TOLERANCE_S
            assert s["output_tokens"][rows].sum() <= batch
            assert s["steps"][first] == 1


def check_work_conservation(records: Records) -> None:
    """INV-10: no worker is idle while a request waits at it.

    Exceptions: its scheduler holds requests back, or KV is copied between GPU and host memory.
    """
    if not records.conserving:
        return
    r, s = records.requests, records.service
    last_s = np.nanmax(s["end_s"], initial=0.0)
    for worker in np.unique(s["worker"]):
        placed = r["worker"] == worker
        here = placed & (r["status"] != REFUSED)
        waits = [
            (heard_s(r, placed, records.profile)[here], r["admitted_s"][here]),
            (r["retracted_s"][here], r["readmitted_s"][here]),
        ]
        rows = s["worker"] == worker
        spans = np.unique(np.stack([s["start_s"][rows], s["end_s"][rows]], axis=1), axis=0)
        ends = np.concatenate([[0.0], spans[:, 1]])
        copies_s = TOLERANCE_S + _copies_s(records, placed)
        for idle_from, idle_to in zip(ends[:-1], spans[:, 0], strict=True):
            if idle_to - idle_from < TOLERANCE_S:
                continue
            longest_s = 0.0
            for begin, end in waits:
                until = np.minimum(np.where(np.isnan(end), last_s, end), idle_to)
                overlap = until - np.maximum(begin, idle_from)
                longest_s = max(longest_s, overlap.max(initial=0.0))
            copies_s -= longest_s if longest_s > TOLERANCE_S else 0.0
            assert copies_s >= 0


def _copies_s(records: Records, placed: np.ndarray) -> float:
    """Return the copy time of the ``placed`` requests, which only schedulers that swap have."""
    if "swapped_tokens" not in records.requests or records.profile is None:
        return 0.0
    tokens = int(records.requests["swapped_tokens"][placed].sum())
    return tokens * records.profile.pool.host_token_ps / 1e12


def heard_s(requests: dict, placed: np.ndarray, profile: TimingProfile | None) -> np.ndarray:
    """Return when the engine can first know of each request: after HTTP and tokenization."""
    heard = requests["arrival_s"].astype(float).copy()
    if profile is None or profile.frontend == Frontend():
        return heard
    costs, free_s = profile.frontend, 0.0
    rows = np.flatnonzero(placed)
    for row in rows[np.argsort(heard[rows], kind="stable")]:
        turn_ms = costs.request_ms + costs.token_ms * requests["input_tokens"][row]
        free_s = max(heard[row], free_s) + turn_ms / 1e3
        heard[row] = free_s + costs.delay_ms / 1e3
    return heard


def assert_same_records(one: RunResult, other: RunResult) -> None:
    """INV-11: the same seed gives the same records, to the last bit."""
    for name in ("requests", "programs", "service"):
        mine, theirs = plain(getattr(one, name)), plain(getattr(other, name))
        assert list(mine) == list(theirs)
        for column in mine:
            assert mine[column].tobytes() == theirs[column].tobytes(), f"{name}.{column}"
