"""The execution of a plan: searches in parallel, with runs in a sweep's directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbench.capacity.answer import Judged, answer_json, judge
from fairbench.capacity.question import Choice, Clusters, Question
from fairbench.capacity.search import Found, Search, bisected, each
from fairbench.config import ExperimentSpec, identity
from fairbench.config.sweep import Sweep, grid_of, make_sweep
from fairbench.errors import DataError, RunFailed
from fairbench.execute.context import RunContext
from fairbench.execute.simulations import jobs_left, run_jobs
from fairbench.results.comparison import compare
from fairbench.results.new_directories import run_folder
from fairbench.results.store import Summary, read_json, write_json
from fairbench.results.sweep_store import SweepStore

QUESTION, ANSWER = "plan.json", "answer.json"


class _Walk:
    """The search for one choice, and the next size to try, until the answer is ``found``."""

    def __init__(self, choice: Choice, search: Search) -> None:
        self.choice = choice
        self.found: Found | None = None
        self._search = search
        self.wanted = next(search)

    def tell(self, enough: Mapping[int, bool]) -> None:
        try:
            self.wanted = self._search.send(enough)
        except StopIteration as end:
            self.found, self.wanted = end.value, []


def begin(question: Question, parent: Path) -> SweepStore:
    """Create a directory for a plan. Raises UsageError if the question cannot be planned."""
    clusters = Clusters(question)
    specs = clusters.seeds(question.choices[0], question.high)
    store = SweepStore.create(parent, _sweep(specs), specs)
    write_json(store.path / QUESTION, question.as_json())
    return store


def asked(store: SweepStore) -> Question:
    """Return the stored settings of a plan. Raises DataError if the directory has none."""
    path = store.path / QUESTION
    try:
        return Question(**read_json(path))
    except TypeError:
        raise DataError(
            f"{path}: must be the stored settings of a plan, as `fairbench plan` writes them"
        ) from None


def carry_out(
    store: SweepStore, context: RunContext, recorded: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run the missing simulations of a stored plan; return and store the answer.

    ``recorded`` compares the waits of a trace with its replay (``diagnose.likeness``).

    Raises RunFailed if a run failed, Interrupted after an interruption, and UsageError while
    another process carries out the plan.
    """
    question = asked(store)
    clusters = Clusters(question)
    search = each if question.every else bisected
    walks = [_Walk(one, search(question.low, question.high)) for one in question.choices]
    runs = _Runs(clusters, store, context)
    with run_folder(store.path, "alone"):
        store.discard_partial()
        while wanted := [(walk, dp) for walk in walks for dp in walk.wanted]:
            runs.run([(walk.choice, dp) for walk, dp in wanted])
            for walk in dict.fromkeys(walk for walk, _ in wanted):
                walk.tell({dp: runs.is_enough(walk.choice, dp) for dp in walk.wanted})
        found = {walk.choice: walk.found for walk in walks if walk.found is not None}
        if question.sharing:
            answers = [
                (one, dp) for one in question.planned if (dp := found[one].smallest) is not None
            ]
            runs.run(answers, with_alone=True)
        answer = answer_json(clusters, found, runs.judged, runs.summaries)
        answer |= {"recorded": recorded} if recorded else {}
        write_json(store.path / ANSWER, answer)
    return answer


class _Runs:
    """The completed runs of a plan: summaries per choice and number of replicas, by seed."""

    def __init__(self, clusters: Clusters, store: SweepStore, context: RunContext) -> None:
        self._clusters, self._store, self._context = clusters, store, context
        self._specs: dict[str, ExperimentSpec] = {}
        self._of: dict[tuple[Choice, int], list[str]] = {}
        self._found: dict[str, Summary] = {}

    def run(self, points: Iterable[tuple[Choice, int]], *, with_alone: bool = False) -> None:
        """Run the unfinished points; common runs of several choices run once."""
        new: dict[str, ExperimentSpec] = {}
        for choice, dp in points:
            seeds = {identity(spec): spec for spec in self._clusters.seeds(choice, dp)}
            self._of[choice, dp] = list(seeds)
            new |= seeds
        if not new:
            return
        self._specs |= new
        swept = list(self._specs.values())
        self._store.extend(_sweep(swept), swept)
        with_alone = with_alone or any(one.of_sharing for one in self._clusters.targets)
        jobs = jobs_left(self._store, list(new.values()), with_alone=with_alone)
        failures = run_jobs(self._store, jobs, self._context)
        if self._context.interrupted():
            raise self._context.interrupted.ended(
                f"interrupted; continue with: fairbench plan --resume {self._store.path}"
            )
        if failures:
            raise RunFailed(f"{failures[0].name}: {failures[0].error}")
        cells = compare(self._store.finished().values(), self._store.alone())
        self._found = {
            one.run.manifest["spec_identity"]: one.summary for cell in cells for one in cell.runs
        }

    def summaries(self, choice: Choice, dp: int) -> list[Summary]:
        return [self._found[one] for one in self._of[choice, dp]]

    def judged(self, choice: Choice, dp: int) -> list[Judged]:
        return [judge(slo, self.summaries(choice, dp)) for slo in self._clusters.targets]

    def is_enough(self, choice: Choice, dp: int) -> bool:
        """Return whether the cluster meets all targets, at 95% confidence if requested."""
        certain = self._clusters.question.certain
        return all(one.certain if certain else one.met for one in self.judged(choice, dp))


def _sweep(specs: Sequence[ExperimentSpec]) -> Sweep:
    """Return the runs so far as a sweep, which can be reported and read as usual."""
    grid = [grid_of(spec) | {"seed": [spec.seed]} for spec in specs]
    return make_sweep({"name": "plan", "grid": grid})
