"""Stored verdicts of earlier runs, for figures without stored per-seed values.

``claims.csv`` contains the earlier verdict on each part of a claim.
``seeds/fig7-configurations.csv`` has the outcome and the value for each pair of schedulers in each
configuration of figure 7, so that claims about pairs can be judged again. Each value in the file is
the ratio or the difference of two means over the seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbench_studies.dlpm.claims.places import KnownPairs, Place
from fairbench_studies.kit.outcomes import Outcome, Seen
from fairbench_studies.kit.parts import Claim, Part
from fairbench_studies.kit.rows import Row, read_rows
from fairbench_studies.kit.tally import Tally

PAIRS = "fig7-configurations.csv"
OF_PAIRS = frozenset({1, 2, 4, 5, 6, 40})
"""The claims that compare pairs of schedulers in the configurations of figure 7."""
# In a row with the joint outcome of all configurations, the workload has the name ``OVERALL``.
OVERALL = "all"


@dataclass(frozen=True, slots=True)
class Kept:
    """The stored verdicts of a figure.

    The stored verdicts are on parts of claims, and on pairs of schedulers under each interpretation
    of the paper.
    """

    parts: Mapping[int, Sequence[Part]]
    pairs: Mapping[str, KnownPairs]
    basis: str

    def judge(self, claim: Claim) -> Sequence[Part]:
        """Return the parts of a claim with their outcomes (holds, reversed, or undecided).

        Parts about pairs of schedulers are judged again, and all other parts keep their stored
        verdicts.

        Parts about means, and about numbers in a range, keep their stored outcomes. The reason is
        that the stored numbers were averaged seed by seed, and a ratio of two means differs a
        little.
        """
        earlier = self.parts.get(claim.number, ())
        if not self.pairs or claim.number not in OF_PAIRS:
            return earlier
        kept = {part.text: part for part in earlier if _is_number(part.text)}
        return [kept.get(part.text, part) for part in claim.judge(self.pairs[""])]


def _is_number(text: str) -> bool:
    """Return whether a part is about a number in a range, or about a mean of numbers."""
    return text.endswith(")") or text.endswith("on average")


def read_kept(folder: Path, setting: str, figure: str) -> Kept | None:
    """Return the stored verdicts of a figure at a setting, or None if there are none."""
    parts: dict[int, list[Part]] = {}
    basis = ""
    for row in read_rows(folder / "claims.csv"):
        if (row["setting"], row["figure"]) == (setting, figure):
            parts.setdefault(int(row["number"]), []).append(_part(row))
            basis = row["basis"]
    if not parts:
        return None
    path = folder / "seeds" / PAIRS
    known = _pairs(read_rows(path), setting) if figure == "fig7" and path.exists() else {}
    return Kept(parts, known, basis)


def _part(row: Row) -> Part:
    return Part(
        row["part"],
        Outcome(row["outcome"]),
        row["ours"],
        outcomes_in(row["beside"]),
        row["elsewhere"],
        outcomes_in(row["under"]),
        row["interval"],
    )


def outcomes_in(text: str) -> dict[str, Outcome]:
    """Parse a text such as ``output tok/s: holds; makespan: reversed`` into outcomes by name."""
    named = (one.rpartition(": ") for one in text.split("; ") if one)
    return {name: Outcome(made) for name, _, made in named}


def _pairs(rows: Iterable[Row], setting: str) -> dict[str, KnownPairs]:
    """Return the known pairs of schedulers at a setting, by interpretation of the paper."""
    seen: dict[str, dict[tuple[str, str, str, float], dict[Place, Seen]]] = {}
    overall: dict[tuple[str, str, str, float], Outcome] = {}
    for row in rows:
        if row["setting"] != setting:
            continue
        key = (row["metric"], row["above"], row["below"], float(row["flip"]))
        found = seen.setdefault(row["reading"], {}).setdefault(key, {})
        outcome = Outcome(row["outcome"])
        if row["workload"] == OVERALL:
            overall[key] = outcome
        else:
            place = Place(row["workload"], row["scenario"], int(row["dp"]))
            found[place] = Seen(outcome, float(row["value"]) if row["value"] else None)
    return {
        reading: KnownPairs(
            {
                key: Tally("", first | of.get(key, {}), overall.get(key))
                for key, first in seen[""].items()
            }
        )
        for reading, of in seen.items()
    }
