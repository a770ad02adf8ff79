"""The files in the directory of a search for attacks.

- ``experiment.toml``: the experiment in which the attacker is honest.
- ``search.json``: settings of the search.
- ``honest.json``: measurements of the experiment in which the attacker is honest, by seed.
- ``trials.json``: all attacks that were tried, in order.
- ``cpu.json``: number and processor time of the simulations so far.
- ``worst/N.toml``: the worst attacks as workload files; N = 1 is the worst.
- ``attack.json``: results of the worst attacks on the confirmation seeds.
- ``attack.svg``: the figure, if matplotlib and seaborn are installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fairbench.config import ExperimentSpec, to_toml
from fairbench.config.resolve import read_spec
from fairbench.errors import DataError, unknown_name
from fairbench.files.formats import dumps, is_path
from fairbench.results.new_directories import check_writable, fresh_directory
from fairbench.results.store import read_json, write_json
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.spec import load_workload, workload_names
from fairbench_attacks.behaviour import KNOWN, NO_MORE, Behaviour, checked
from fairbench_attacks.flags import Objective, Optimiser
from fairbench_attacks.measure import AttackHarm, Seen
from fairbench_attacks.workload import Stakes, attack_workload

EXPERIMENT, SEARCH, HONEST, TRIALS = "experiment.toml", "search.json", "honest.json", "trials.json"
CPU, RESULT, WORST = "cpu.json", "attack.json", "worst"

AtLeast1 = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The settings of a search for attacks.

    - ``budget`` limits the attacker's weighted tokens (input + 2 x output) per hour.
    - ``gpu_budget`` limits the GPU seconds per hour of the attacker's requests.
    - ``seeds`` is the number of seeds for each trial.
    - ``confirm`` is the number of further seeds with which the ``keep`` worst trials are repeated.

    A budget of None means no limit. The search ends after ``trials`` trials or after ``cpu_hours``
    of processor time, whichever comes first.
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
    """The number of a search's simulations so far, and their processor time in seconds."""

    __pydantic_config__ = NO_MORE

    simulations: Count = 0
    cpu_s: Annotated[float, Field(ge=0)] = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """An attack that was tried: its results for each seed, or why it cannot be simulated."""

    __pydantic_config__ = NO_MORE

    number: Annotated[int, Field(ge=0, alias="trial")]
    behaviour: Behaviour
    harms: tuple[AttackHarm, ...] = ()
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the attack and its results as a JSON object for the file ``trials.json``."""
        data: dict[str, Any] = {"trial": self.number, "behaviour": self.behaviour.changed()}
        if self.error:
            return data | {"error": self.error}
        return data | {"harms": [harm._asdict() for harm in self.harms]}


@dataclass(frozen=True, slots=True)
class SearchStore:
    """The directory with the files of a search for attacks."""

    path: Path

    @classmethod
    def create(cls, parent: Path, spec: ExperimentSpec, plan: SearchPlan) -> SearchStore:
        """Create a directory in ``parent`` for a new search for attacks.

        Raises UsageError if the directory cannot be created.
        """
        check_writable(parent)
        name = f"attack-{spec.scheduler}-{spec.workload.name}-seed{spec.seed}"
        store = cls(fresh_directory(parent, name.replace("/", "_")))
        (store.path / EXPERIMENT).write_text(to_toml(spec), encoding="utf-8")
        write_json(store.path / SEARCH, asdict(plan))
        return store

    def spec(self) -> ExperimentSpec:
        """Return the experiment with the honest client, which does not attack.

        Raises DataError if the directory does not hold a search.
        """
        return read_spec(self.path / EXPERIMENT)

    def plan(self) -> SearchPlan:
        """Return the settings of the search for attacks.

        Raises DataError if the file is invalid.
        """
        return checked(SearchPlan, read_json(self.path / SEARCH), str(self.path / SEARCH))

    def go_on_for(self, trials: int | None, cpu_hours: float | None) -> None:
        """Replace the search's limits on trials and processor hours."""
        plan = replace(self.plan(), trials=trials, cpu_hours=cpu_hours)
        write_json(self.path / SEARCH, asdict(plan))

    def honest(self) -> dict[int, Seen]:
        """Return the stored measurements of the honest experiment by seed. Raises DataError."""
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
        """Return the number and processor time of the search's simulations so far.

        Raises DataError if the file is invalid.
        """
        file = self.path / CPU
        return checked(Spent, read_json(file), str(file)) if file.exists() else Spent()

    def save_spent(self, spent: Spent) -> None:
        """Store the number and processor time of the simulations that the search has run."""
        write_json(self.path / CPU, asdict(spent))

    def trials(self) -> list[Trial]:
        """Return the stored trials in the order of their numbers.

        If a trial is invalid, raises DataError, which names the trial.
        """
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
        """Write all trials to the file ``trials.json``."""
        write_json(self.path / TRIALS, {"trials": [trial.to_json() for trial in trials]})

    def save_worst(self, workloads: Iterable[WorkloadSpec]) -> None:
        """Write each of the worst attacks to a workload file."""
        folder = self.path / WORST
        folder.mkdir(exist_ok=True)
        for rank, workload in enumerate(workloads, start=1):
            (folder / f"{rank}.toml").write_text(attack_file(workload), encoding="utf-8")


def attack_file(workload: WorkloadSpec) -> str:
    """Return the workload of an attack as the text of a workload file."""
    return dumps(workload.model_dump(mode="json", exclude_defaults=True))


HEADER = """#:schema ../schema.json
# An attack and its honest twin: fairbench attack workloads/attacks/{name}.toml --scheduler vtc
# Written from bench/fairbench_attacks/behaviour.py; see docs/guide/attack.md.

"""


def named_workload(name: str) -> WorkloadSpec:
    """Return the workload of a known attack, of a bundled workload or of a workload file."""
    if name in KNOWN:
        return known_workload(name)
    if not is_path(name) and name not in workload_names():
        raise unknown_name("attack", name, KNOWN)
    return load_workload(name)


def known_workload(name: str) -> WorkloadSpec:
    """Return a workload with a known attack, in which all clients run programs of ``judge``.

    Three victims are attacked, and the attacker sends four times a victim's load.
    """
    title = f"attack-{name}"
    return attack_workload(load_workload("judge"), "none", KNOWN[name], Stakes(), name=title)


def known_file(name: str) -> str:
    """Return the text of the workload file ``workloads/attacks/NAME.toml``."""
    return HEADER.format(name=name) + attack_file(known_workload(name))
