"""The expected load of a cluster: sampled programs of similar clients, and their GPU time."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from fairbench.core import PS_PER_S, Prompt, Segment
from fairbench.hardware.timing import TimingProfile
from fairbench.workloads.plan import ClientPlan, expected_programs, nth_program, program_stream
from fairbench.workloads.programs.base import Job

SAMPLE = 600  # sampled programs per group
MOST_CALLS = 3000  # sampled programs of all groups together


class Call(NamedTuple):
    """A request's token counts: input, cached part of the input, output, and reserved output."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    max_new_tokens: int


class EndlessCache:
    """A cache that keeps all prompts and answers permanently, in whole segments."""

    def __init__(self) -> None:
        self._root: dict[Segment, Any] = {}

    def hit(self, prompt: Prompt) -> int:
        """Return the number of cached tokens at the prompt's beginning."""
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


def calls_of(program: Job, cache: EndlessCache) -> list[Call]:
    """Return a program's requests, concurrent ones in order; each is cached once answered."""
    llm = _DryLLM(program, cache)
    try:
        program.run(llm).send(None)
    except StopIteration:
        return llm.calls
    raise AssertionError("a program awaits something that is not a call")


class _DryLLM:
    """A ``core.LLM`` that answers at once."""

    def __init__(self, program: Job, cache: EndlessCache) -> None:
        self.calls: list[Call] = []
        self._program_id, self._cache = program.program_id, cache

    async def generate(
        self, prompt: Prompt, *, name: str, output_tokens: int, max_new_tokens: int, depth: int
    ) -> Segment:
        output = min(output_tokens, max_new_tokens)
        tokens = sum(segment.length for segment in prompt)
        self.calls.append(Call(tokens, self._cache.hit(prompt), output, max_new_tokens))
        answer = Segment(f"{self._program_id}/{name}", output)
        self._cache.add((*prompt, answer))
        return answer

    async def sleep(self, seconds: float) -> None:
        """Do nothing: no time passes."""

    async def gather(self, branches: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        return [await branch for branch in branches]


class Group(NamedTuple):
    """Clients that run the same programs with the same parameters, and behave alike."""

    plans: tuple[ClientPlan, ...]

    @property
    def kind(self) -> str:
        return self.plans[0].kind

    @property
    def clients(self) -> str:
        """The client names as text, ``client-3..9`` for consecutive numbers; a few at most."""
        # the first name of each run of consecutive numbers, and the last
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


def groups_of(plans: Sequence[ClientPlan]) -> list[Group]:
    """Return the groups in the order of their first clients."""
    found: dict[object, list[ClientPlan]] = {}
    for plan in plans:
        arrivals = (type(plan.arrivals).__name__, getattr(plan.arrivals, "phases", None))
        what = (plan.kind, repr(plan.params), plan.misbehaving, arrivals, repr(plan.presence))
        found.setdefault(what, []).append(plan)
    return [Group(tuple(members)) for members in found.values()]


class Asked(NamedTuple):
    """A sampled program: its client, its requests, and how many programs it represents."""

    client: str
    weight: float
    calls: list[Call]


def sampled(group: Group, seed: int) -> Iterator[tuple[str, Job]]:
    """Yield some programs of a group with their clients, one client after the other.

    A client gets samples in proportion to its programs, so that a heavy client's requests have
    their true weight. For a replayed trace, a client's first programs represent all its programs.
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


def calls_of_groups(groups: Sequence[Group], seed: int) -> list[list[Asked]]:
    """Return some programs of each group, which share one endless cache.

    The first half of a client's programs warms up the cache, so that tokens shared by all programs
    do not count as misses.
    """
    cache = EndlessCache()
    found = []
    for group in groups:
        calls: dict[str, list[list[Call]]] = {}
        count = 0
        for client, program in sampled(group, seed):
            made = calls_of(program, cache)
            calls.setdefault(client, []).append(made)
            count += len(made)
            if count >= MOST_CALLS:
                break
        found.append(_weighted(group, calls))
    return found


def _weighted(group: Group, calls: Mapping[str, Sequence[list[Call]]]) -> list[Asked]:
    """Weight the later half of each client's programs, to represent the whole group."""
    sizes = {plan.client: expected_programs(plan) for plan in group.plans}
    late = {client: made[len(made) // 2 :] for client, made in calls.items()}
    there = sum(sizes[client] for client in late)
    scale = sum(sizes.values()) / there if there else 0.0
    return [
        Asked(client, (sizes[client] * scale if there else 1.0) / len(made), one)
        for client, made in late.items()
        for one in made
    ]


BATCHED_TOKENS = 2048  # tokens of short prompts that are computed together
MOST_TOGETHER = 8
PEAK_S, PEAK_PARTS = 60.0, 10  # a minute, or a tenth of a run shorter than ten minutes


class Machine(NamedTuple):
    """A replica: its times, its KV pool in tokens, and its limit of concurrent requests."""

    profile: TimingProfile
    pool_tokens: int
    limit: int


def gpu_s(calls: Sequence[Call], machine: Machine, *, cached: bool) -> float:
    """Return the GPU seconds of one replica for some requests, with an endless cache or none."""
    return sum(_prefill_s(call, machine, cached) + _decode_s(call, machine) for call in calls)


def _prefill_s(call: Call, machine: Machine, cached: bool) -> float:
    hit = min(call.cached_tokens, call.input_tokens - 1) if cached else 0
    new = call.input_tokens - hit
    together = max(1, min(MOST_TOGETHER, BATCHED_TOKENS // new))
    return machine.profile.prefill_ps([(hit, new)] * together) / together / PS_PER_S


def _decode_s(call: Call, machine: Machine) -> float:
    """Return the request's share of the decode steps of a full batch of similar requests."""
    context = call.input_tokens + call.output_tokens // 2
    held = max(1, call.input_tokens + call.output_tokens)  # engines reserve little more than this
    batch = max(1, min(machine.limit, machine.pool_tokens // held))
    step_s = machine.profile.decode_ps(batch, batch * context) / PS_PER_S
    return call.output_tokens * step_s / batch


def busiest_minute(
    groups: Sequence[Group],
    samples: Sequence[list[Asked]],
    machine: Machine,
    duration_s: float,
    dp: int,
) -> dict[str, float | None]:
    """Return the load of the busiest minute, its ratio to the mean, and its start time.

    Every client's programs count with their own GPU time, assuming no cache. ``peak`` is None if no
    client sends anything.
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
