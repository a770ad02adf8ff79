"""The expected load that a workload puts on a cluster, for ``fairbench workload check``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.core import PS_PER_S, Prompt, Segment
from fairbench.engine.contract import CONTRACTS
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.hardware.timing import TimingProfile
from fairbench.metrics.fairness import max_min
from fairbench.workloads.plan import ClientPlan, expected_programs, nth_program, program_stream
from fairbench.workloads.programs.base import Job
from fairbench.workloads.traffic.arrivals import ClosedArrivals

SAMPLE = 600
# At most ``MOST_CALLS`` requests are sampled from all groups of clients together.
MOST_CALLS = 3000


class MeanCall(NamedTuple):
    """The token counts of a request: input, cached input, output, and output limit."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    max_new_tokens: int


class EndlessCache:
    """A prefix cache that never evicts; prompts and answers are cached as whole segments."""

    def __init__(self) -> None:
        self._root: dict[Segment, Any] = {}

    def hit(self, prompt: Prompt) -> int:
        """Return the number of cached tokens at the beginning of a prompt."""
        node, tokens = self._root, 0
        for segment in prompt:
            if segment not in node:
                break
            node, tokens = node[segment], tokens + segment.length
        return tokens

    def add(self, prompt: Prompt) -> None:
        node = self._root
        for segment in prompt:
            node = node.setdefault(segment, {})


def calls_of(program: Job, cache: EndlessCache) -> list[MeanCall]:
    """Return a program's calls in order, and add their prompts and answers to the prefix cache."""
    llm = _DryLLM(program, cache)
    try:
        program.run(llm).send(None)
    except StopIteration:
        return llm.calls
    raise AssertionError("a program awaits something other than an LLM call")


class _DryLLM:
    """A replacement for the model (``core.LLM``) that records calls and answers immediately."""

    def __init__(self, program: Job, cache: EndlessCache) -> None:
        self.calls: list[MeanCall] = []
        self._program_id, self._cache = program.program_id, cache

    async def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Segment:
        output = min(output_tokens, max_new_tokens)
        tokens = sum(segment.length for segment in prompt)
        self.calls.append(MeanCall(tokens, self._cache.hit(prompt), output, max_new_tokens))
        answer = Segment(f"{self._program_id}/{name}", output)
        self._cache.add((*prompt, answer))
        return answer

    async def sleep(self, seconds: float) -> None:
        """Return at once, because no time passes in a dry run."""

    async def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        return [await branch for branch in branches]


class LoadGroup(NamedTuple):
    """Clients with equal programs, equal parameters and equal behaviour."""

    plans: tuple[ClientPlan, ...]

    @property
    def kind(self) -> str:
        return self.plans[0].kind

    @property
    def clients(self) -> str:
        """The names of the clients as text, such as ``client-3..9``; a long list is shortened."""
        # Each entry of ``words`` is a range of consecutive names: the first and the last name.
        words: list[tuple[str, str]] = []
        expected = ""
        for plan in self.plans:
            if plan.client == expected:
                words[-1] = (words[-1][0], plan.client)
            else:
                words.append((plan.client, plan.client))
            generated = plan.client == f"client-{plan.index}"
            expected = f"client-{plan.index + 1}" if generated else ""
        shown = [
            first if first == last else f"{first}..{last.rpartition('-')[2]}"
            for first, last in words
        ]
        return ", ".join(shown[:3]) + (", ..." if shown[3:] else "")


def groups_of(plans: Sequence[ClientPlan]) -> list[LoadGroup]:
    """Group clients with equal programs, parameters and behaviour, in the order of ``plans``."""
    found: dict[object, list[ClientPlan]] = {}
    for plan in plans:
        arrivals = (type(plan.arrivals).__name__, getattr(plan.arrivals, "phases", None))
        what = (plan.kind, repr(plan.params), plan.misbehaving, arrivals, repr(plan.presence))
        found.setdefault(what, []).append(plan)
    return [LoadGroup(tuple(members)) for members in found.values()]


class AskedLoad(NamedTuple):
    """A sampled program: its client, its requests, and how many programs it represents."""

    client: str
    weight: float
    calls: list[MeanCall]


def sampled(group: LoadGroup, seed: int) -> Iterator[tuple[str, Job]]:
    """Yield a sample of a group's programs, each with its client.

    A client's number of sampled programs is proportional to its total number of programs, so that a
    heavy client has the right weight. In a replayed trace, the first programs of each client are
    sampled.
    """
    sizes = {plan.client: expected_programs(plan) for plan in group.plans}
    largest = sorted(group.plans, key=lambda plan: -sizes[plan.client])[:SAMPLE]
    total = sum(sizes.values()) or 1.0
    left = [
        islice(program_stream(plan, seed=seed), 2 + round(SAMPLE * sizes[plan.client] / total))
        for plan in largest
    ]
    found = False
    while left:
        going = []
        for stream in left:
            for _, job in islice(stream, 1):
                found = True
                going.append(stream)
                yield job.client, job
        left = going
    if not found:
        yield group.plans[0].client, nth_program(group.plans[0], seed, 0, None)


def calls_of_groups(groups: Sequence[LoadGroup], seed: int) -> list[list[AskedLoad]]:
    """Return sampled programs of each group of equal clients, which share one unlimited cache.

    The first half of a client's programs only fills the cache, and is not returned, so that tokens
    shared by all programs do not count as misses.
    """
    cache = EndlessCache()
    found = []
    for group in groups:
        calls: dict[str, list[list[MeanCall]]] = {}
        count = 0
        for client, program in sampled(group, seed):
            made = calls_of(program, cache)
            calls.setdefault(client, []).append(made)
            count += len(made)
            if count >= MOST_CALLS:
                break
        found.append(_weighted(group, calls))
    return found


def _weighted(group: LoadGroup, calls: Mapping[str, Sequence[list[MeanCall]]]) -> list[AskedLoad]:
    """Return the second half of each client's programs, weighted to stand for all its programs."""
    sizes = {plan.client: expected_programs(plan) for plan in group.plans}
    late = {client: made[len(made) // 2 :] for client, made in calls.items()}
    there = sum(sizes[client] for client in late)
    scale = sum(sizes.values()) / there if there else 0.0
    return [
        AskedLoad(client, (sizes[client] * scale if there else 1.0) / len(made), one)
        for client, made in late.items()
        for one in made
    ]


BATCHED_TOKENS = 2048  # number of prompt tokens in a prefill batch of several short prompts
MOST_TOGETHER = 8
# The peak load is the highest load in any minute. In a run of less than ten minutes, it is the
# highest load in any tenth of the run.
PEAK_S, PEAK_PARTS = 60.0, 10


class LoadedMachine(NamedTuple):
    """A replica: its iteration times, KV memory in tokens, and limit on running requests."""

    profile: TimingProfile
    pool_tokens: int
    limit: int


def gpu_s(calls: Sequence[MeanCall], machine: LoadedMachine, *, cached: bool) -> float:
    """Return the GPU time (s) that requests take on a replica.

    If ``cached`` is True, the prefix cache is unlimited; otherwise, there is no prefix cache.
    """
    return sum(_prefill_s(call, machine, cached) + _decode_s(call, machine) for call in calls)


def _prefill_s(call: MeanCall, machine: LoadedMachine, cached: bool) -> float:
    hit = min(call.cached_tokens, call.input_tokens - 1) if cached else 0
    new = call.input_tokens - hit
    together = max(1, min(MOST_TOGETHER, BATCHED_TOKENS // new))
    return machine.profile.prefill_ps([(hit, new)] * together) / together / PS_PER_S


def _decode_s(call: MeanCall, machine: LoadedMachine) -> float:
    """Return the GPU time (s) to decode a request in a full batch of similar requests."""
    context = call.input_tokens + call.output_tokens // 2
    # Engines reserve only slightly more KV memory than a request's prompt and answer fill.
    held = max(1, call.input_tokens + call.output_tokens)
    batch = max(1, min(machine.limit, machine.pool_tokens // held))
    step_s = machine.profile.decode_ps(batch, batch * context) / PS_PER_S
    return call.output_tokens * step_s / batch


def busiest_minute(
    groups: Sequence[LoadGroup],
    samples: Sequence[list[AskedLoad]],
    machine: LoadedMachine,
    duration_s: float,
    dp: int,
) -> dict[str, float | None]:
    """Return the peak load in GPU seconds per second, its time, and its ratio to the mean load.

    GPU times are computed as if no tokens were cached. If no client sends requests, ``peak`` is
    None.
    """
    parts = max(PEAK_PARTS, round(duration_s / PEAK_S))
    edges = np.linspace(0.0, duration_s, parts + 1)
    asked_s = np.zeros(parts)
    for group, sample in zip(groups, samples, strict=True):
        found: dict[str, list[float]] = {}
        for one in sample:
            found.setdefault(one.client, []).append(gpu_s(one.calls, machine, cached=False))
        costs = {client: sum(times) / len(times) for client, times in found.items()}
        usual = sum(costs.values()) / len(costs)
        for plan in group.plans:
            begun = [expected_programs(plan, before_s=float(edge)) for edge in edges]
            asked_s += costs.get(plan.client, usual) * np.diff(begun)
    load = asked_s / np.diff(edges) / dp
    at = int(np.argmax(load))
    return {
        "peak": float(load[at] / load.mean()) if load.mean() > 0 else None,
        "peak_load": float(load[at]),
        "peak_s": float(edges[at] + edges[at + 1]) / 2,
    }


FEW = 20  # If a client has fewer than 20 programs, its percentiles are unreliable.
# If the load is below the fraction ``IDLE`` of the cluster's capacity, hardly any request waits. If
# the load is above the fraction ``FLOODED`` of the capacity, queues grow until the end of the run.
IDLE, FLOODED = 0.7, 2.0


def check_facts(spec: ExperimentSpec) -> dict[str, Any]:
    """Return facts about an experiment's workload as JSON types; the experiment is not run.

    ``load`` is the requested GPU time divided by the available GPU time, if the cache is unlimited.
    ``load_uncached`` is the load without a cache. ``peak_load`` is the load of the busiest minute
    without a cache. ``peak`` is ``peak_load`` divided by the mean load without a cache. Rates are
    expected values per second, summed over the clients of a group.
    """
    plans = spec.client_plans()
    groups = groups_of(plans)
    length_s = spec.duration_s or spec.workload.duration_s
    samples = calls_of_groups(groups, spec.seed)
    machine = machine_of(spec)
    rows = [_group_row(*one, machine, spec.dp) for one in zip(groups, samples, strict=True)]
    timed = spec.duration_s is not None
    for row in rows if timed else ():
        row["programs_per_s"] = row["programs"] / length_s
        row |= {key: row[key] / length_s for key in ("load", "load_uncached")}
    facts: dict[str, Any] = {
        "workload": spec.workload.name,
        "scenario": spec.scenario,
        "dp": spec.dp,
        "gpu": spec.gpu,
        "duration_s": spec.duration_s,
        "clients": len(plans),
        "misbehaving": sum(plan.misbehaving for plan in plans),
        "programs": sum(row["programs"] for row in rows),
        "requests": sum(row["programs"] * row["requests_per_program"] for row in rows),
        **dict.fromkeys(("peak", "peak_load", "peak_s")),
        "load": float(sum(row["load"] for row in rows)) if timed else None,
        "load_uncached": float(sum(row["load_uncached"] for row in rows)) if timed else None,
        "groups": rows,
    }
    if spec.duration_s is not None:
        facts |= busiest_minute(groups, samples, machine, spec.duration_s, spec.dp)
    facts["surprises"] = list(_surprises(facts, plans, groups, samples, machine, spec.weights))
    return facts


def machine_of(spec: ExperimentSpec) -> LoadedMachine:
    """Return the iteration times, KV memory and request limit of a replica in the experiment."""
    profile = load_profile(spec.gpu)
    engine = CONTRACTS[spec.engine or DEFAULT_ENGINE](spec.settings, profile)
    return LoadedMachine(profile, engine.pool_tokens, engine.most_running)


def _group_row(
    group: LoadGroup, sample: list[AskedLoad], machine: LoadedMachine, dp: int
) -> dict[str, Any]:
    sizes = [expected_programs(plan) for plan in group.plans]
    weight = sum(one.weight for one in sample)

    def mean(of: Callable[[list[MeanCall]], float]) -> float:
        return sum(one.weight * of(one.calls) for one in sample) / weight

    def load(*, cached: bool) -> float:
        return sum(sizes) * mean(lambda calls: gpu_s(calls, machine, cached=cached)) / dp

    requests = mean(len)
    inputs = mean(lambda calls: sum(call.input_tokens for call in calls))
    hits = mean(lambda calls: sum(call.cached_tokens for call in calls))
    outputs = mean(lambda calls: sum(call.output_tokens for call in calls))
    return {
        "clients": group.clients,
        "count": len(group.plans),
        "program": group.kind,
        "misbehaving": group.plans[0].misbehaving,
        "closed": isinstance(group.plans[0].arrivals, ClosedArrivals),
        "programs": sum(sizes),
        "smallest_programs": min(sizes),
        "largest_programs": max(sizes),
        "programs_per_s": None,
        "requests_per_program": requests,
        "input_tokens": inputs / requests if requests else 0.0,
        "output_tokens": outputs / requests if requests else 0.0,
        "endless_hit_rate": hits / inputs if inputs else 0.0,
        "load": load(cached=True),
        "load_uncached": load(cached=False),
    }


def _surprises(
    facts: dict[str, Any],
    plans: Sequence[ClientPlan],
    groups: Sequence[LoadGroup],
    samples: Sequence[list[AskedLoad]],
    machine: LoadedMachine,
    weights: dict[str, float] | None,
) -> Iterator[str]:
    """Yield a sentence for the user about each surprising fact, such as a very low load."""
    load, worst, peak = facts["load"], facts["load_uncached"], facts["peak_load"]
    sizes = [expected_programs(plan) for plan in plans]
    if not any(sizes):
        yield "no client sends a request: no client is present while programs arrive"
        return
    if load is not None and max(worst, peak) < IDLE:
        yield "hardly any request waits, so all schedulers will give similar results"
    if load is not None and load > FLOODED:
        yield (
            "the load is far above the capacity of the cluster, so queues grow until the end "
            "of the run"
        )
    if load and load < 1 < peak:
        yield (
            f"the load is below the capacity of the cluster on average, but {peak:.0%} of "
            f"it in the busiest minute, around {facts['peak_s']:.0f} s; the scheduler "
            "decides which clients wait then"
        )
    if few := sum(size < FEW for size in sizes):
        absent = sum(size < 1 for size in sizes)
        more = f", and {absent:,} of them fewer than one" if absent else ""
        yield (
            f"{few:,} of {len(plans):,} clients send fewer than {FEW} programs on "
            f"average{more}, so their percentiles are not reliable"
        )
    for group, sample in zip(groups, samples, strict=True):
        weighed = [
            (one.weight, call.input_tokens + call.max_new_tokens)
            for one in sample
            for call in one.calls
        ]
        total = sum(weight for weight, _ in weighed)
        if large := sum(weight for weight, tokens in weighed if tokens > machine.pool_tokens):
            yield (
                f"{group.clients}: {large / total:.0%} of the requests will be refused, "
                f"because they do not fit a KV pool of {machine.pool_tokens:,} tokens"
            )
    if any(row["closed"] for row in facts["groups"]):
        yield (
            "the rates of users in closed loops are estimates, because they depend on the "
            "speed of the cluster"
        )
    if load and load > 1:
        yield from _short(facts, groups, weights or {})


def _short(
    facts: dict[str, Any], groups: Sequence[LoadGroup], weights: dict[str, float]
) -> Iterator[str]:
    demands, own, good = [], [], []
    for row, group in zip(facts["groups"], groups, strict=True):
        for plan in group.plans:
            part = expected_programs(plan) / row["programs"] if row["programs"] else 0.0
            demands.append(row["load"] * part)
            own.append(weights.get(plan.client, 1.0))
            good.append(not plan.misbehaving)
    given = max_min(1.0, demands, own)
    if short := int(np.sum((given < 0.999 * np.asarray(demands)) & np.asarray(good))):
        yield (
            f"{short:,} of {sum(good):,} well-behaved clients need more than a fair "
            "share, so they wait under a fair scheduler, too"
        )
