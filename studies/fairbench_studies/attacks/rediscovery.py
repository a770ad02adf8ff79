"""Rediscovery: whether a search finds the known attacks without hints.

The results under other schedulers count only if the search finds the known attacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from fairbench.results.new_directories import run_folder
from fairbench_attacks.behaviour import Behaviour
from fairbench_attacks.known import KNOWN
from fairbench_attacks.measure import Harm
from fairbench_attacks.search import Search
from fairbench_attacks.store import Trial

PART = 0.9  # fraction of the known attack's harm


@dataclass(frozen=True, slots=True)
class Sought:
    """A known attack, the scheduler that it harms, and the choice that defines it."""

    attack: str
    scheduler: str
    choice: str


# In the order of their schedulers; each scheduler is searched once.
SOUGHT = (
    Sought("sybil", "vtc", "identities"),
    Sought("padding-3k", "lpm", "padding_tokens"),
    Sought("padding-20k", "lpm", "padding_tokens"),
    Sought("small-requests", "lpm", "split"),
    Sought("bursts", "fcfs", "on_share"),
    Sought("long-answers", "fcfs", "output_multiple"),
)
MAKES = frozenset(one.choice for one in SOUGHT)


def by_scheduler() -> Iterator[tuple[str, list[Sought]]]:
    """Yield each scheduler with the attacks sought under it."""
    for scheduler, group in groupby(SOUGHT, key=lambda one: one.scheduler):
        yield scheduler, list(group)


def loss(harms: Iterable[Harm]) -> float:
    """Return the fraction of service that the victims lost, averaged over seeds."""
    return 1 - fmean(one.kept for one in harms)


def is_of_its_kind(behaviour: Behaviour, sought: Sought) -> bool:
    """Return whether a behaviour makes a known attack's choice and no other attack's choice."""
    return MAKES & behaviour.changed().keys() == {sought.choice}


def rediscover(search: Search, sought: list[Sought]) -> list[Mapping[str, Any]]:
    """Search until all attacks are found or trials run out; return a row for each.

    A known attack is found by a behaviour of its kind that does at least nine tenths of its harm at
    the same seeds. Raises Interrupted, and the error of a failed simulation.
    """
    with run_folder(search.store.path, "search"):
        told = search.try_all([KNOWN[one.attack] for one in sought], 0)
        known = dict(zip(sought, told, strict=True))
        trials = search.store.trials()
        while True:
            rows: list[Mapping[str, Any]] = [_row(one, known[one], trials) for one in sought]
            if all(row["found"] for row in rows) or not (batch := search.next_batch(trials)):
                return rows
            trials += search.try_all(batch, len(trials))
            search.keep(trials)


def _row(sought: Sought, known: Trial, trials: list[Trial]) -> dict[str, Any]:
    known_loss = loss(known.harms)
    kind = [one for one in trials if not one.error and is_of_its_kind(one.behaviour, sought)]
    best = max(kind, key=lambda one: loss(one.harms), default=None)
    best_loss = None if best is None else loss(best.harms)
    return {
        "attack": sought.attack,
        "scheduler": sought.scheduler,
        "loss": known_loss,
        "found": best_loss is not None and best_loss >= PART * known_loss > 0,
        "by": None if best is None else best.behaviour.changed(),
        "about": "" if best is None else str(best.behaviour),
        "its_loss": best_loss,
        "trial": None if best is None else best.number,
        "trials": len(trials),
    }
