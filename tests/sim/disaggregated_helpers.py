"""Small experiments with prefill and decode workers, and their invariants (INV-24 to 27)."""

from dataclasses import replace
from itertools import count, pairwise

import numpy as np

from fairbench.config.resolve import resolve
from fairbench.core import PS_PER_S
from fairbench.engine.sequence import FINISHED
from fairbench.engine.sglang_variants import SGLangPrefillOnly
from fairbench.hardware.catalogue import load_profile
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.registry import local_class
from fairbench.sim.run import Simulation
from tests.invariants import (
    TOLERANCE_S,
    Records,
    check_causality,
    check_durations,
    check_gpu_time,
    check_no_overlap,
    check_program_conservation,
    check_request_conservation,
    check_service_totals,
    plain,
)
from tests.worker_invariants import check_kv_conservation, check_locks, check_tree, holders_of

PREFILLS_EVERY = 8  # number of events between checks, because walking over their trees takes long
POOLS = {"tot": 9_000, "judge": 9_000, "chat": 2_500}


def small(workload="tot", scheduler="d2lpm", *, prefill=2, decode=2, engine=None, **more):
    """Return a spec that runs in a fraction of a second and lacks memory on both sides."""
    flags = {"scheduler": scheduler, "workload": workload, "prefill": prefill, "decode": decode}
    flags |= {"num_programs": 2, "request_rate": 4.0, "seed": 0}
    pool = POOLS[workload]
    settings = {"disaggregation.reserved_decode_tokens": 16}
    if engine == "vllm":
        flags["engine"] = engine
        settings |= {"vllm.num_gpu_blocks_override": pool // 16 + 1}
    else:
        settings |= {"engine.max_total_tokens": pool, "engine.chunked_prefill_size": 1024}
    for key, value in more.items():
        (flags if "__" not in key else settings)[key.replace("__", ".")] = value
    return resolve(flags, settings)


def run_checked(spec):
    """Simulate, with the workers checked after every event and the records at the end."""
    simulation = Simulation(spec, spec.client_plans(), None)
    workers = simulation.cluster.workers
    prefills, decodes = workers[: spec.prefill], workers[spec.prefill :]
    step = simulation.clock.step

    events = count()

    def checked() -> None:
        step()
        if not next(events) % PREFILLS_EVERY:
            for worker in prefills:
                check_prefill(worker)
        for worker in decodes:
            check_decode(worker, prefills)

    simulation.clock.step = checked
    simulation.run()
    if not simulation.cluster.running:
        for worker in decodes:
            assert worker.cache.free == worker.cache.capacity
            assert (worker.assigned, worker.members, len(worker.cap)) == (0, 0, 0)
    result = simulation.result(True, None)
    check(spec, result)
    return result


def check_prefill(replica) -> None:
    """Check INV-3 to 5 of a prefill worker, in which unsent prompts hold memory, too."""
    engine = replica.engine
    if isinstance(engine, SGLangPrefillOnly):
        unsent = [copy for copy in replica._copies.values() if copy and copy.status == FINISHED]
        holders = [*holders_of(engine), *unsent]
        check_kv_conservation(engine, holders)
        check_locks(engine, holders)
        check_tree(engine.cache)


def check_decode(worker, prefills) -> None:
    """INV-27: a decode worker's requests hold its memory, within its limits."""
    batch, cache = worker.batch, worker.cache
    on_their_way = [one for replica in prefills for one in replica._copies]
    mine = [one for one in on_their_way if one.decode_worker == worker.index and one.private]
    members = [*mine, *batch.sequences, *worker._received]
    members += [prefill.sequence for prefill in getattr(worker, "_again", [])]
    decoded = sum(batch.private(sequence) for sequence in batch.sequences)
    assert cache.free >= 0
    assert cache.capacity - cache.free == decoded + sum(one.private for one in members)
    assert worker.members == len(members) == len(set(members))
    assert worker.members <= worker.limits.most_members
    assert batch.size <= worker.limits.most_running
    if worker.cap.most_tokens < float("inf"):
        assert len(worker.cap) == len(members)
        assert len(members) <= 1 or worker.cap.tokens <= worker.cap.most_tokens


def check(spec, result) -> None:
    """Check INV-1, 2, 6 to 9 and 22 of the records, and INV-24 to 26."""
    profile = load_profile(spec.gpu)
    tables = map(plain, (result.requests, result.programs, result.service))
    limited = local_class(spec.local).accepts is not LocalScheduler.accepts
    records = Records(*tables, profile, result.summary["pool_tokens"], limited)
    check_program_conservation(records)
    check_causality(records)
    check_service_totals(replace(records, requests=with_first_tokens(records.requests, spec)))
    check_no_overlap(records)
    check_gpu_time(records)
    if spec.engine is None:
        check_request_conservation(records)
        check_durations(records)
    check_stages(records.requests, spec)
    check_sides(records, spec)
    check_transfers(records.requests, spec, profile)


def with_first_tokens(requests: dict, spec) -> dict:
    """Return the requests with SGLang's first tokens in transit, which only the log has."""
    if spec.engine is not None:
        return requests
    computed = ~np.isnan(requests["computed_s"]) & np.isnan(requests["first_token_s"])
    return requests | {"output_tokens": requests["output_tokens"] + computed}


def check_stages(requests: dict, spec) -> None:
    """INV-24: memory is reserved, the prompt is computed and sent, and then the first token comes.

    vLLM reserves after the prompt, SGLang at its arrival or admission.
    """
    names = {
        "vllm": ("admitted_s", "computed_s", "reserved_s", "sent_s"),
        "arrival": ("reserved_s", "admitted_s", "computed_s", "sent_s"),
        "admission": ("admitted_s", "reserved_s", "computed_s", "sent_s"),
    }[spec.engine or spec.settings["disaggregation.reserve"]]
    chain = [requests[n] for n in ("arrival_s", *names, "received_s", "first_token_s", "finish_s")]
    for earlier, later in pairwise(chain):
        known = ~np.isnan(later)
        assert (earlier[known] <= later[known]).all()
    if spec.settings["disaggregation.reserve"] == "admission":
        known = ~np.isnan(requests["admitted_s"])
        assert (requests["reserved_s"] == requests["admitted_s"])[known].all()


def check_sides(records: Records, spec) -> None:
    """INV-25: prefill workers compute prompts, and decode workers generate the tokens.

    SGLang's first token is the prefill worker's. Decode workers compute only what they retracted.
    """
    r, s = records.requests, records.service
    done = r["status"] == FINISHED
    assert ((r["worker"] >= 0) & (r["worker"] < spec.prefill)).all()
    chosen = r["decode_worker"][done]
    assert ((chosen >= spec.prefill) & (chosen < spec.dp)).all()
    prompts = s["worker"] < spec.prefill
    assert not s["context_tokens"][prompts].any()
    assert not s["extend_tokens"][~prompts].any()
    assert not s["recompute_tokens"][prompts].any()
    if spec.engine is None:
        assert s["output_tokens"][prompts].sum() >= done.sum()
        assert not s["recompute_tokens"].any()
    else:
        assert not s["output_tokens"][prompts].any()


def check_transfers(requests: dict, spec, profile) -> None:
    """INV-26: a transfer takes the time of its bytes and the latency.

    Apart from the latency, a worker has one transfer at a time, and no transfer waits while both
    its workers are free.
    """
    rate = spec.settings["disaggregation.bandwidth_gb_s"] * 1e9
    latency_s = spec.settings["disaggregation.latency_ms"] / 1e3
    got = ~np.isnan(requests["received_s"])
    start, end = requests["sent_s"][got], requests["received_s"][got] - latency_s
    bytes_ = requests["input_tokens"][got] * profile.pool.kv_bytes_per_token
    assert np.abs(end - start - bytes_ / rate).max(initial=0) < TOLERANCE_S
    for name in ("worker", "decode_worker"):
        for worker in np.unique(requests[name][got]):
            here = requests[name][got] == worker
            order = np.argsort(start[here], kind="stable")
            assert (end[here][order][:-1] <= start[here][order][1:] + TOLERANCE_S).all()
    ready = np.fmax(requests["computed_s"], requests["reserved_s"])[got]
    ends = np.stack([requests[name][got] for name in ("worker", "decode_worker")])
    for number in np.flatnonzero(start > ready + TOLERANCE_S):
        shared = np.flatnonzero((ends == ends[:, [number]]).any(axis=0))
        busy_until = ready[number]
        for other in shared[np.argsort(start[shared], kind="stable")]:
            if start[other] <= busy_until + TOLERANCE_S:
                busy_until = max(busy_until, end[other])
        assert busy_until >= start[number] - TOLERANCE_S


def us(time_ps: int) -> float:
    """Return picoseconds in microseconds."""
    return time_ps * 10**6 / PS_PER_S
