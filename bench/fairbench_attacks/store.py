"""The directory of a search: its settings, every trial in order, and the worst.

experiment.toml  the honest experiment
search.json      how it is searched
honest.json      what the honest twin shows, by seed
trials.json      the trials in order
cpu.json         what the simulations took so far
worst/N.toml     the worst behaviours, worst first, as workload files
attack.json      those, on seeds of their own
attack.svg       the figure, if matplotlib is there
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fairbench.config import ExperimentSpec, to_toml
from fairbench.config.resolve import read_spec
from fairbench.errors import DataError
from fairbench.files.toml_text import dumps
from fairbench.results.new_directories import check_writable, fresh_directory
from fairbench.results.store import read_json, write_json
from fairbench.workloads.model import WorkloadSpec
from fairbench_attacks.behaviour import NO_MORE, Behaviour, checked
from fairbench_attacks.flags import Objective, Optimiser
from fairbench_attacks.measure import Harm, Seen

EXPERIMENT, SEARCH, HONEST, TRIALS = "experiment.toml", "search.json", "honest.json", "trials.json"
CPU, RESULT, WORST = "cpu.json", "attack.json", "worst"

AtLeast1 = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a search.

    - ``budget`` is in weighted tokens (input + 2 x output) per hour. None means no limit.
    - ``gpu_budget`` is in GPU seconds per hour (``attack.budget``).
    - ``seeds`` is the number of seeds per trial.
    - ``confirm`` is the number of further seeds on which the ``keep`` worst trials are confirmed.

    The search ends after ``trials`` trials or ``cpu_hours`` of processor time, whichever comes
    first.
    """

    __pydantic_config__ = NO_MORE

    objective: Objective
    optimiser: Optimiser
    trials: AtLeast1 | None
    seeds: AtLeast1
    confirm: Count
    keep: Count
    victims: AtLeast1
    multiple: Above0
    budget: Above0 | None
    scenario: str
    gpu_budget: Above0 | None = None
    cpu_hours: Above0 | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """The number of simulations so far, and their processor time."""

    __pydantic_config__ = NO_MORE

    simulations: Count = 0
    cpu_s: Annotated[float, Field(ge=0)] = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """An attack and its harm by seed, or the reason why it is impossible."""

    __pydantic_config__ = NO_MORE

    number: Annotated[int, Field(ge=0, alias="trial")]
    behaviour: Behaviour
    harms: tuple[Harm, ...] = ()
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the trial as stored."""
        data: dict[str, Any] = {"trial": self.number, "behaviour": self.behaviour.changed()}
        if self.error:
            return data | {"error": self.error}
        return data | {"harms": [harm._asdict() for harm in self.harms]}


@dataclass(frozen=True, slots=True)
class SearchStore:
    """The directory of one search. Only ``create`` makes the directory."""

    path: Path

    @classmethod
    def create(cls, parent: Path, spec: ExperimentSpec, plan: Plan) -> SearchStore:
        """Create a new directory in ``parent``. Raises UsageError if that fails."""
        check_writable(parent)
        name = f"attack-{spec.scheduler}-{spec.workload.name}-seed{spec.seed}"
        store = cls(fresh_directory(parent, name.replace("/", "_")))
        (store.path / EXPERIMENT).write_text(to_toml(spec), encoding="utf-8")
        write_json(store.path / SEARCH, asdict(plan))
        return store

    def spec(self) -> ExperimentSpec:
        """Return the honest experiment. Raises DataError if the directory is not a search's."""
        return read_spec(self.path / EXPERIMENT)

    def plan(self) -> Plan:
        """Return the search's settings. Raises DataError."""
        return checked(Plan, read_json(self.path / SEARCH), str(self.path / SEARCH))

    def go_on_for(self, trials: int | None, cpu_hours: float | None) -> None:
        """Continue the search until this many trials, or hours, in total."""
        plan = replace(self.plan(), trials=trials, cpu_hours=cpu_hours)
        write_json(self.path / SEARCH, asdict(plan))

    def honest(self) -> dict[int, Seen]:
        """Return the stored measurements of the honest twin, by seed. Raises DataError."""
        file = self.path / HONEST
        found = {}
        for seed, data in (read_json(file) if file.exists() else {}).items():
            if not seed.isdecimal():
                raise DataError(f"{file}: {seed!r} is not a seed: a seed must be a whole number")
            found[int(seed)] = checked(Seen, data, f"{file}: {seed}")
        return found

    def save_honest(self, seen: Mapping[int, Seen]) -> None:
        data = {str(seed): one._asdict() for seed, one in sorted(seen.items())}
        write_json(self.path / HONEST, data)

    def spent(self) -> Spent:
        """Return the processor time of the simulations so far. Raises DataError."""
        file = self.path / CPU
        return checked(Spent, read_json(file), str(file)) if file.exists() else Spent()

    def save_spent(self, spent: Spent) -> None:
        """Store the time that the search has spent."""
        write_json(self.path / CPU, asdict(spent))

    def trials(self) -> list[Trial]:
        """Return the trials that were run, in order. Raises DataError naming the trial."""
        file = self.path / TRIALS
        if not file.exists():
            return []
        rows = read_json(file).get("trials")
        if not isinstance(rows, list):
            raise DataError(f"{file}: trials: must be a list")
        found = []
        for number, data in enumerate(rows):
            trial = checked(Trial, data, f"{file}: trials[{number}]")
            if not trial.harms and not trial.error:
                raise DataError(
                    f"{file}: trials[{number}] must have the field harms or the field error"
                )
            found.append(replace(trial, number=number))
        return found

    def save_trials(self, trials: Iterable[Trial]) -> None:
        """Store all trials."""
        write_json(self.path / TRIALS, {"trials": [trial.to_json() for trial in trials]})

    def save_worst(self, workloads: Iterable[WorkloadSpec]) -> None:
        """Write the worst behaviours as workload files."""
        folder = self.path / WORST
        folder.mkdir(exist_ok=True)
        for rank, workload in enumerate(workloads, start=1):
            (folder / f"{rank}.toml").write_text(attack_file(workload), encoding="utf-8")


def attack_file(workload: WorkloadSpec) -> str:
    """Return the workload of an attack as the text of a file."""
    return dumps(workload.model_dump(mode="json", exclude_defaults=True))
