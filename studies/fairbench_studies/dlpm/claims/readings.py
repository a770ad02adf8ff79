"""Verdicts under other readings of the DLPM paper, for the claims table's column "holds under".

A reading is an interpretation of an unclear point of the paper, and changes one setting.
``seeds/readings.csv`` has runs of figure 7 on four replicas, with default and with changed
settings. The claims table shows a reading's verdict only if, with default settings, the runs in
``seeds/readings.csv`` give the same verdict as all configurations of figure 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.dlpm.claims.places import place_of
from fairbench_studies.dlpm.claims.throughput import SEVERAL
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import Claim, Part
from fairbench_studies.kit.seeds import read_seeds, value_at

OF_PAIRS = frozenset({1, 2, 4, 5, 6, 40})
"""The claims, by number, that compare pairs of schedulers in the configurations of figure 7."""


class Reading(NamedTuple):
    """An interpretation of the paper that sets ``key`` of an experiment to ``value``."""

    name: str
    key: str
    value: Any


AS_JUDGED = "as judged"
AT_RERUN = (
    Reading("without the mark", "settings.engine.batch_is_full", False),
    Reading("Poisson arrivals", "burstiness", 1.0),
    Reading("prefix as a mean", "workload.params.question_tokens", 51.0),
)
"""Interpretations of the paper that each change one setting in the rerun of figure 7."""
LONG_QA_QUANTUM = Reading("Q^w 400,000 in long-qa", "settings.d2lpm.worker_quantum", 400_000)
"""The interpretation that Q^w in long-qa is about 20 times the mean request size ([gaps] B3)."""
LONG_QA_POOL = Reading(
    "with long-qa in 305,000 tokens", "settings.engine.max_total_tokens", 305_000
)
"""The interpretation that the KV pool had space for all documents of the workload long-qa."""
LONG_QA = "long-qa"
RERUN_FILE, LONG_QA_FILE = "readings.csv", "readings-long-qa.csv"

Outcomes = Mapping[tuple[int, str], Outcome]
"""Verdicts on parts of claims, keyed by the number of the claim and the text of the part."""


class Tried(NamedTuple):
    """Verdicts with an interpretation of the paper (``outcomes``) and without it (``compared``).

    If ``compared`` is None, the claims table shows every verdict in ``outcomes``.
    """

    outcomes: Outcomes
    compared: Outcomes | None = None


def outcomes_of(claims: Sequence[Claim], cells: Sequence[SchedulerResults]) -> Outcomes:
    """Return the verdict on each part of each claim that compares two schedulers."""
    return {
        (claim.number, part.text): part.outcome
        for claim in claims
        if claim.number in OF_PAIRS
        for part in claim.judge(cells)
    }


def at_rerun(claims: Sequence[Claim], folder: Path) -> Mapping[str, Tried]:
    """Return the verdicts on ``claims`` under each interpretation of the paper in ``AT_RERUN``."""
    path = folder / RERUN_FILE
    if not path.exists():
        return {}
    cells = read_seeds(path)
    printed = [cell for cell in cells if not any(_shows(cell, one) for one in AT_RERUN)]
    found = {}
    for one in AT_RERUN:
        mine = [cell for cell in cells if _shows(cell, one)]
        places = set(map(place_of, mine))
        compared = [cell for cell in printed if place_of(cell) in places]
        if mine:
            found[one.name] = Tried(outcomes_of(claims, mine), outcomes_of(claims, compared))
    return found


def _shows(cell: SchedulerResults, reading: Reading) -> bool:
    return bool(value_at(cell.runs[0].experiment, reading.key) == reading.value)


def with_long_qa(claims: Sequence[Claim], cells: Sequence[SchedulerResults]) -> Mapping[str, Tried]:
    """Return the verdicts on claims if long-qa runs with a KV pool that holds all its documents.

    The workload long-qa was simulated with several KV pool sizes, so ``at_rerun`` leaves it out.
    """
    in_pools = [cell for cell in cells if cell.combined["workload"] == LONG_QA]
    held = [cell for cell in in_pools if _shows(cell, LONG_QA_POOL)]
    if not held or len(held) == len(in_pools):
        return {}
    return {LONG_QA_POOL.name: Tried(outcomes_of(claims, [*_without_long_qa(cells), *held]))}


def in_long_qa(
    claims: Sequence[Claim], cells: Sequence[SchedulerResults], folder: Path
) -> Mapping[str, Tried]:
    """Return the verdicts on claims if Q^w is changed only in the workload long-qa."""
    path = folder / LONG_QA_FILE
    if not path.exists():
        return {}
    other = [
        cell
        for cell in read_seeds(path)
        if cell.combined["scheduler"] != "d2lpm" or _shows(cell, LONG_QA_QUANTUM)
    ]
    return {LONG_QA_QUANTUM.name: Tried(outcomes_of(claims, [*_without_long_qa(cells), *other]))}


def _without_long_qa(cells: Sequence[SchedulerResults]) -> list[SchedulerResults]:
    return [cell for cell in cells if cell.combined["workload"] != LONG_QA]


def with_readings(number: int, parts: Sequence[Part], found: Mapping[str, Tried]) -> list[Part]:
    """Return a claim's parts, each with its verdicts under other interpretations of the paper."""
    done = []
    for part in parts:
        known = {}
        for name, one in found.items():
            outcome = _outcome(one.outcomes, number, part.text)
            compared = one.compared and _outcome(one.compared, number, part.text)
            if outcome is not None and (one.compared is None or compared is part.outcome):
                known[name] = outcome
        judged = {AS_JUDGED: part.outcome} if known and not part.under else {}
        done.append(replace(part, under={**judged, **part.under, **known}))
    return done


def _outcome(outcomes: Outcomes, number: int, text: str) -> Outcome | None:
    """Return a part's verdict, stored under ``text`` with or without the ending ``SEVERAL``."""
    return outcomes.get((number, text), outcomes.get((number, text.removesuffix(SEVERAL))))


RERUN_NAMES = frozenset(one.name for one in AT_RERUN)
