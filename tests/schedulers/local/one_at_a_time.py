"""A machine that serves one request at a time, a token per second, and all its schedules."""

from __future__ import annotations

from functools import cache

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Setup
from tests.schedulers.local.local_server import Server

Job = tuple[int, int, int]  # arrival, number of tokens, deadline


class TokenASecond:
    """Costs of that machine: a prefill yields a token and takes a second, like a step."""

    def prefill_s(self, cached_tokens, new_tokens):
        return 1.0

    def decode_step_s(self, requests, context_tokens):
        return 1.0


def request(number: int, job: Job) -> Request:
    """Return a request that must end by its deadline."""
    arrival, tokens, due = job
    prompt = (Segment(f"p{number}", 1),)
    return Request(number, "a", number, 0, prompt, 1, tokens, float(arrival), float(due))


def served(scheduler, jobs: list[Job], slots: int = 1) -> int:
    """Return the number of requests that a scheduler completes by their deadlines."""
    scheduler.prepare(Setup(costs=TokenASecond()))
    home, kept = Server(scheduler, slots=slots), 0
    for now in range(max(arrival for arrival, *_ in jobs) + sum(job[1] for job in jobs) + 1):
        if now:
            home.step()
        done, home.finished = home.finished, []
        kept += sum(now <= one.deadline_s for one in done)
        home.arrive(*(request(i, job) for i, job in enumerate(jobs) if job[0] == now))
        home.run_pass()
    assert not home.queue
    assert not home.produced
    return kept


def best(jobs: list[Job], *, preempt: bool = True) -> int:
    """Return the most requests that can be in time, by trying every choice at every second."""
    arrivals, _, dues = zip(*jobs, strict=True)
    total = max(arrivals) + sum(job[1] for job in jobs)

    @cache
    def most(now: int, left: tuple[int, ...], running: int | None) -> int:
        if now > total or not any(left):
            return 0
        if running is not None and left[running] and not preempt:
            choices = [running]
        else:
            choices = [i for i, work in enumerate(left) if work and arrivals[i] <= now]
        if not choices:
            return most(now + 1, left, None)
        results = []
        for i in choices:
            after = (*left[:i], left[i] - 1, *left[i + 1 :])
            in_time = not after[i] and now + 1 <= dues[i]
            results.append(in_time + most(now + 1, after, i))
        return max(results)

    return most(0, tuple(job[1] for job in jobs), None)
