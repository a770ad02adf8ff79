"""The clients of a run by what they do, and what programs of each group ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from fairbench.execute.expected.dry_run import Call, EndlessCache, calls_of
from fairbench.workloads.plan import ClientPlan, nth_program, program_stream
from fairbench.workloads.programs import Job

SAMPLE = 600  # programs of a group
MOST_CALLS = 3000  # of them together


class Group(NamedTuple):
    """Clients that run the same programs with the same parameters, and behave alike."""

    plans: tuple[ClientPlan, ...]

    @property
    def kind(self) -> str:
        return self.plans[0].kind

    @property
    def clients(self) -> str:
        """Their names, as ``client-3..9`` where numbers follow one another, at most a few."""
        words: list[tuple[str, str]] = []  # the first name of each run, and the last
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
    """The groups in the order of their first clients."""
    found: dict[object, list[ClientPlan]] = {}
    for plan in plans:
        arrivals = (type(plan.arrivals).__name__, getattr(plan.arrivals, "phases", None))
        what = (plan.kind, repr(plan.params), plan.misbehaving, arrivals, repr(plan.presence))
        found.setdefault(what, []).append(plan)
    return [Group(tuple(members)) for members in found.values()]


def sampled(group: Group, seed: int) -> Iterator[Job]:
    """Some programs of a group: the first that its clients send, one client after the other."""
    each = -(-SAMPLE // len(group.plans))
    some = group.plans[:SAMPLE]
    sent = [job for plan in some for _, job in islice(program_stream(plan, seed=seed), each)]
    yield from sent[:SAMPLE] or [nth_program(group.plans[0], seed, 0, None)]


def calls_of_groups(groups: Sequence[Group], seed: int) -> list[list[list[Call]]]:
    """For each group the calls of some of its programs, all of them with one endless cache.

    The first half warms it up, so that what all programs share is not counted as missed.
    """
    cache = EndlessCache()
    found = []
    for group in groups:
        calls: list[list[Call]] = []
        for program in sampled(group, seed):
            calls.append(calls_of(program, cache))
            if sum(map(len, calls)) >= MOST_CALLS:
                break
        found.append(calls[len(calls) // 2 :])
    return found
