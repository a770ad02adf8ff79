"""The execution of a capacity plan: one search per scheduler and GPU, whose runs are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec, identity
from fairbench.config.sweep import Sweep, grid_of, make_sweep
from fairbench.errors import DataError, RunFailed
from fairbench.execute.simulations import jobs_left, run_jobs
from fairbench.execute.tasks import RunContext
from fairbench.results.comparison import compare
from fairbench.results.new_directories import run_folder
from fairbench.results.store import ANSWER, QUESTION, Summary, SweepStore, read_json, write_json
from fairbench_logs.planning.question import Clusters, PlanChoice, PlanQuestion
from fairbench_logs.planning.search import (
    JudgedTarget,
    Search,
    SmallestSize,
    answer_json,
    bisected,
    every_size,
    judge,
    largest,
)


class _Walk:
    """A search for the cluster size that one scheduler on one GPU type needs at one load.

    ``wanted`` lists the cluster sizes to simulate next; ``found`` is the result of the search, or
    None.
    """

    def __init__(self, choice: PlanChoice, search: Search) -> None:
        self.choice = choice
        self.found: SmallestSize | None = None
        self._search = search
        self.wanted = next(search)

    def continue_with(self, enough: Mapping[int, bool]) -> None:
        """Continue the search; ``enough`` tells which sizes in ``wanted`` meet the targets."""
        try:
            self.wanted = self._search.send(enough)
        except StopIteration as end:
            self.found, self.wanted = end.value, []


def begin_plan(question: PlanQuestion, parent: Path) -> SweepStore:
    """Create a directory in ``parent`` for the runs of a capacity plan.

    Raises UsageError if the inputs of ``question`` contradict each other.
    """
    clusters = Clusters(question)
    size = clusters.first_size if question.most else question.high
    specs = clusters.seeds(question.choices[0], size)
    store = SweepStore.create(parent, _sweep(specs), specs)
    write_json(store.path / QUESTION, vars(question))
    return store


def question_of(store: SweepStore) -> PlanQuestion:
    """Return the question that a stored plan answers.

    Raises DataError if the file ``plan.json`` does not contain the settings of a plan.
    """
    path = store.path / QUESTION
    try:
        return PlanQuestion(**read_json(path))
    except TypeError:
        raise DataError(
            f"{path}: must be the stored settings of a plan, as `fairbench plan` writes them"
        ) from None


def carry_out(
    store: SweepStore, context: RunContext, recorded: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run the missing simulations of a stored plan; store and return the answer.

    If ``recorded`` (the result of ``recorded_waits``) is given, the plan's answer contains it.

    Raises RunFailed if a run failed, Interrupted after a signal, and UsageError while another
    process carries out the plan.
    """
    question = question_of(store)
    clusters = Clusters(question)
    walks = [_Walk(one, _search(clusters, one)) for one in question.choices]
    runs = _Runs(clusters, store, context)
    with run_folder(store.path, "alone"):
        store.discard_partial()
        while wanted := [(walk, dp) for walk in walks for dp in walk.wanted]:
            runs.run_points([(walk.choice, dp) for walk, dp in wanted])
            for walk in dict.fromkeys(walk for walk, _ in wanted):
                walk.continue_with({dp: runs.is_enough(walk.choice, dp) for dp in walk.wanted})
        found = {walk.choice: walk.found for walk in walks if walk.found is not None}
        if question.sharing and not question.most:
            answers = [
                (one, dp) for one in question.planned if (dp := found[one].smallest) is not None
            ]
            runs.run_points(answers, with_alone=True)
        answer = answer_json(clusters, found, runs.verdicts, runs.summaries)
        answer |= {"recorded": recorded} if recorded else {}
        write_json(store.path / ANSWER, answer)
    return answer


def _search(clusters: Clusters, choice: PlanChoice) -> Search:
    question = clusters.question
    if question.most:
        possible = partial(clusters.is_possible, choice)
        return largest(clusters.first_size, clusters.last_size, possible)
    return (every_size if question.every else bisected)(question.low, question.high)


class _Runs:
    """The completed runs of a capacity plan, by choice (scheduler, GPU, load) and cluster size."""

    def __init__(self, clusters: Clusters, store: SweepStore, context: RunContext) -> None:
        self._clusters, self._store, self._context = clusters, store, context
        self._specs: dict[str, ExperimentSpec] = {}
        self._of: dict[tuple[PlanChoice, int], list[str]] = {}
        self._found: dict[str, Summary] = {}

    def run_points(
        self, points: Iterable[tuple[PlanChoice, int]], *, with_alone: bool = False
    ) -> None:
        """Run the simulations of the given points that have not been run yet.

        A point is a choice (scheduler, GPU, load) with a number of replicas. If several points need
        the same simulation, this simulation is run only once. If ``with_alone`` is True, clients
        are also simulated alone.
        """
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

    def summaries(self, choice: PlanChoice, dp: int) -> list[Summary]:
        return [self._found[one] for one in self._of[choice, dp]]

    def verdicts(self, choice: PlanChoice, dp: int) -> list[JudgedTarget]:
        return [judge(slo, self.summaries(choice, dp)) for slo in self._clusters.targets]

    def is_enough(self, choice: PlanChoice, dp: int) -> bool:
        """Return whether a cluster meets all targets, at 95% confidence if the user demands it."""
        certain = self._clusters.question.certain
        return all(one.certain if certain else one.met for one in self.verdicts(choice, dp))


def _sweep(specs: Sequence[ExperimentSpec]) -> Sweep:
    """Return the runs as a sweep, so that commands for sweeps can read a plan's directory."""
    grid = [grid_of(spec) | {"seed": [spec.seed]} for spec in specs]
    return make_sweep({"name": "plan", "grid": grid})
