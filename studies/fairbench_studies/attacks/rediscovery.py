"""A study of whether the search for harmful client behaviour finds the known attacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from fairbench.results.new_directories import run_folder
from fairbench_attacks.behaviour import KNOWN, Behaviour
from fairbench_attacks.measure import AttackHarm
from fairbench_attacks.search import Search
from fairbench_attacks.store import Trial

# An attack counts as found if the search does at least ``PART`` of the known attack's harm.
PART = 0.9


@dataclass(frozen=True, slots=True)
class Sought:
    """A known attack that a search should find: its name, its scheduler, and its key parameter."""

    attack: str
    scheduler: str
    choice: str


# Known attacks on the same scheduler are listed together: one search looks for all of them.
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
    """Yield each scheduler with the known attacks on it."""
    for scheduler, group in groupby(SOUGHT, key=lambda one: one.scheduler):
        yield scheduler, list(group)


def loss(harms: Iterable[AttackHarm]) -> float:
    """Return the fraction of their service that the victims lost, averaged over seeds."""
    return 1 - fmean(one.kept for one in harms)


def is_of_its_kind(behaviour: Behaviour, sought: Sought) -> bool:
    """Return whether ``sought.choice`` is the only choice in ``MAKES`` that the behaviour makes."""
    return MAKES & behaviour.changed().keys() == {sought.choice}


def rediscover(search: Search, sought: list[Sought]) -> list[Mapping[str, Any]]:
    """Search until all known attacks are found or no trials are left. Return a row per attack.

    A known attack counts as found if a behaviour with the attack's defining choice does at least
    nine tenths of the attack's harm. Raises Interrupted after a signal, or the error of a
    simulation that failed.
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
