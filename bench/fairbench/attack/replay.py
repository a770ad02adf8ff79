"""Known attacks: the harm of each, compared with its honest twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairbench.attack.budget import programs_multiple
from fairbench.attack.measure import Seen, combined, harm, measure
from fairbench.attack.simulate import seeded, simulate_all, task_of
from fairbench.config import ExperimentSpec
from fairbench.execute.context import RunContext


def replay(
    pairs: Sequence[tuple[ExperimentSpec, ExperimentSpec]], seeds: int, context: RunContext
) -> list[dict[str, Any]]:
    """Return each attack's harm relative to its honest twin (``measure.pair``), over the seeds.

    A twin shared by several attacks is simulated once.
    """
    specs: list[ExperimentSpec] = []
    for number in range(seeds):
        for one in (seeded(spec, spec.seed + number) for both in pairs for spec in both):
            if one not in specs:
                specs.append(one)
    seen = simulate_all([task_of(measure, spec) for spec in specs], context, "Nothing is kept.")

    def shown(spec: ExperimentSpec, number: int) -> Seen:
        found: Seen = seen[specs.index(seeded(spec, spec.seed + number))]
        return found

    return [
        combined([harm(shown(attack, n), shown(honest, n)) for n in range(seeds)])
        | {"programs": programs_multiple(honest, attack)}
        for honest, attack in pairs
    ]
