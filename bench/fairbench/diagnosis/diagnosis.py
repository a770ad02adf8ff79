"""The diagnosis: floods, harm, the result of each scheduler, and replicas for a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fairbench.capacity.carry_out import begin, carry_out
from fairbench.capacity.question import Clusters, Question
from fairbench.config.defaults import DEFAULTS
from fairbench.diagnosis import FAIR, FCFS, SESSION_SLO, USUAL_SLO
from fairbench.diagnosis.access_log import FIRST_TOKEN, AccessLog, part_to_replay, traffic_of_table
from fairbench.diagnosis.replay import Replay, Replayed, prepared, replayed, usual_replicas
from fairbench.errors import DataError
from fairbench.execute.context import RunContext
from fairbench.execute.interruption import Interrupted
from fairbench.metrics.floods import Flood, Harm, floods, harm_of, requests_of, windows
from fairbench.metrics.records import Flags
from fairbench.metrics.traffic import Traffic

# highest number of replicas that a plan tries, unless the next constant gives a higher one
LEAST_HIGH = 8
TIMES_USUAL = 4  # multiple of the replayed number that a plan tries
AGREES = 2.0  # highest ratio of a replayed and a recorded P95 that agree
NOTICED_S = 0.5  # highest difference of a replayed and a recorded P95 that agree


@dataclass(frozen=True)
class Asked:
    """The input of a diagnosis: flags of ``run``, replicas (None: default), and targets.

    Without ``slos``, the target is the time to first token of the well-behaved clients.
    """

    flags: Mapping[str, Any]
    dp: int | None = None
    schedulers: tuple[str, ...] = (FCFS, *FAIR)
    slos: tuple[str, ...] = ()
    plan: bool = True


@dataclass(frozen=True)
class Diagnosis:
    """The findings of a diagnosis; ``waits`` are the recorded ones, or those of the first replay.

    ``harm`` is computed from these waits. The replayed requests came from ``part_s[0]`` to
    ``part_s[1]``; ``dp_given`` means that the user named the replicas. ``plan`` is the answer of a
    capacity plan. ``present`` is the scheduler to compare with. ``missing`` names what an
    interruption prevented, such as the replays that are not in ``replays``.
    """

    log: AccessLog
    floods: tuple[Flood, ...]
    waits: Traffic
    harm: Harm | None
    replays: tuple[Replayed, ...]
    part_s: tuple[float, float]
    dp: int
    dp_given: bool
    plan: Mapping[str, Any] | None
    present: str
    missing: tuple[str, ...]

    @property
    def first(self) -> Replayed | None:
        """The replay under the present scheduler; None if it was interrupted."""
        return next((one for one in self.replays if one.scheduler == self.present), None)

    @property
    def heavy(self) -> tuple[str, ...]:
        """The heavy clients by name, the largest flood first."""
        return heavy_of(self.log.traffic, self.floods)

    @property
    def judged_s(self) -> list[tuple[float, float]]:
        """The times over which schedulers are compared: the replayed floods, or else all."""
        start_s, end_s = self.part_s
        replayed = [
            (max(one[0], start_s), min(one[1], end_s))
            for one in windows(self.floods)
            if one[0] <= end_s and one[1] >= start_s
        ]
        return replayed or [self.part_s]


def heavy_of(traffic: Traffic, found: Sequence[Flood]) -> tuple[str, ...]:
    """Return the heavy clients by name, each once."""
    return tuple(dict.fromkeys(traffic.clients[one.client] for one in found))


def diagnose(log: AccessLog, asked: Asked, context: RunContext) -> Diagnosis:
    """Find floods, replay the log under each scheduler, and plan replicas.

    After a signal the diagnosis has the finished parts, and names the missing ones. Raises
    UsageError for flags that do not fit, DataError for a log without clients.
    """
    if log.nameless:
        raise DataError(f"{log.file}: {log.nameless}")
    found = tuple(floods(log.traffic))
    if not log.counted:
        return _unreplayed(log, found, asked)
    part, start_s = part_to_replay(log, found)
    with TemporaryDirectory(prefix="fairbench-") as name:
        folder = Path(name)
        heavy, clock = heavy_of(log.traffic, found), log.traffic.clock
        replay = prepared(folder, part, start_s, heavy, asked.flags, clock, log.file)
        if asked.slos:  # impossible targets are refused before anything is replayed
            Clusters(_question(replay, asked.slos, asked.schedulers[:1], 1))
        again = traffic_of_table(part, part.end_s)
        again = again._replace(arrival_s=again.arrival_s + start_s)
        usual = np.flatnonzero(~_of_floods(again, renamed(found, log.traffic, again)))
        dp = asked.dp or usual_replicas(replay, part, usual)
        order = {scheduler: number for number, scheduler in enumerate(asked.schedulers)}
        runs = list(replayed(replay, asked.schedulers, dp, context))
        runs.sort(key=lambda one: order[one.scheduler])
        lost = [one for one in asked.schedulers if one not in {run.scheduler for run in runs}]
        first = None if asked.schedulers[0] in lost else runs[0]
        waits = log.traffic if log.measured or first is None else first.traffic
        harm = harm_of(waits, renamed(found, log.traffic, waits)) if waits.knows_waits else None
        part_s = (start_s, start_s + part.span_s)
        made = Diagnosis(
            *(log, found, waits, harm, tuple(runs), part_s, dp, asked.dp is not None, None),
            present=asked.schedulers[0],
            missing=tuple(f"the replay under {one}" for one in lost),
        )
        if not asked.plan:
            return made
        plan = None if lost else _plan(replay, asked, made, folder, context)
    missing = (*made.missing, *([] if plan else ["the number of replicas"]))
    return replace(made, plan=plan, missing=missing)


def _unreplayed(log: AccessLog, found: tuple[Flood, ...], asked: Asked) -> Diagnosis:
    """Return what a log without token counts shows, since it cannot be replayed."""
    traffic = log.traffic
    harm = harm_of(traffic, list(found)) if traffic.knows_waits else None
    part_s = (float(traffic.arrival_s[0]), float(traffic.arrival_s[-1]))
    made = Diagnosis(
        *(log, found, traffic, harm, (), part_s, asked.dp or 1, asked.dp is not None, None),
        present=asked.schedulers[0],
        missing=(),
    )
    return made


def others_waits(traffic: Traffic, found: Diagnosis) -> dict[str, float | None]:
    """Return percentiles of the waits in a log or a replay, within the judged times.

    ``others_p50_s`` and ``others_p95_s`` cover all requests of the other clients together,
    ``heavy_p50_s`` those of the heavy clients; a value is None without requests.
    """
    inside = np.zeros(len(traffic.client), dtype=np.bool_)
    for start_s, end_s in found.judged_s:
        inside |= (traffic.arrival_s >= start_s) & (traffic.arrival_s <= end_s)
    heavy = np.isin(traffic.client, [traffic.clients.index(name) for name in found.heavy])

    def rank(rows: Flags, percent: int) -> float | None:
        waits_s = traffic.wait_s[rows & ~np.isnan(traffic.wait_s)]
        return float(np.percentile(waits_s, percent)) if len(waits_s) else None

    return {
        "others_p50_s": rank(inside & ~heavy, 50),
        "others_p95_s": rank(inside & ~heavy, 95),
        "heavy_p50_s": rank(inside & heavy, 50),
    }


def recorded_waits(found: Diagnosis) -> dict[str, float | None] | None:
    """Return ``others_waits`` of the log's answered requests; None without times to first token."""
    if found.log.measured != FIRST_TOKEN:
        return None
    waits_s = found.waits.wait_s
    answered = np.where(np.isfinite(waits_s), waits_s, np.nan)
    return others_waits(found.waits._replace(wait_s=answered), found)


class Waits(NamedTuple):
    """TTFT P95 of the other clients (s) in a log and in its replay."""

    logged_s: float
    replayed_s: float


def unlike_replay(found: Diagnosis) -> Waits | None:
    """Return both waits if the log's and the first replay's differ too much, else None."""
    waits = compared_waits(found)
    return None if waits is None or is_alike(waits) else waits


def is_alike(waits: Waits) -> bool:
    """Return whether a replay agrees with the log."""
    if abs(waits.logged_s - waits.replayed_s) <= NOTICED_S:
        return True
    return max(waits) <= AGREES * min(waits)


def compared_waits(found: Diagnosis) -> Waits | None:
    """Return the waits in the log and in the first replay; None without recorded first tokens."""
    first, recorded = found.first, recorded_waits(found)
    if first is None or recorded is None:
        return None
    logged_s = recorded["others_p95_s"]
    replayed_s = others_waits(first.traffic, found)["others_p95_s"]
    if logged_s is None or replayed_s is None:
        return None
    return Waits(logged_s, replayed_s)


def best_fair(found: Diagnosis) -> Replayed | None:
    """Return the fair replay with the lowest P95 of the other clients, or None."""
    fair = [one for one in found.replays if one.scheduler != FCFS]
    return min(
        fair, key=lambda one: others_waits(one.traffic, found)["others_p95_s"] or 0.0, default=None
    )


def renamed(found: Sequence[Flood], of: Traffic, to: Traffic) -> list[Flood]:
    """Return the floods with client numbers of another table.

    Floods of clients that are not in ``to`` are left out.
    """
    number = {name: place for place, name in enumerate(to.clients)}
    names = [of.clients[one.client] for one in found]
    return [
        one._replace(client=number[name])
        for one, name in zip(found, names, strict=True)
        if name in number
    ]


def _of_floods(traffic: Traffic, found: Sequence[Flood]) -> Flags:
    inside: Flags = np.zeros(len(traffic.client), dtype=np.bool_)
    for one in found:
        inside |= requests_of(traffic, one)
    return inside


def _question(
    replay: Replay, slos: Sequence[str], schedulers: Sequence[str], high: int
) -> Question:
    """Return the question of how many replicas, up to ``high``, meet the targets."""
    flags = {key: value for key, value in replay.all_flags().items() if value is not None}
    gpu = flags.pop("gpu", DEFAULTS["gpu"])
    # a replay contains no randomness: all seeds give the same result
    return Question(slos, schedulers, 1, high, flags, {}, gpus=(gpu,), num_runs=1, sharing=False)


def _plan(
    replay: Replay, asked: Asked, found: Diagnosis, folder: Path, context: RunContext
) -> Mapping[str, Any] | None:
    """Return the smallest sufficient clusters of the best fair scheduler and of FCFS.

    The result is None after a signal.
    """
    best = best_fair(found)
    schedulers = dict.fromkeys((*([best.scheduler] if best else []), asked.schedulers[0]))
    usual = SESSION_SLO if found.replays[0].summary["latency"] == "program" else USUAL_SLO
    high = max(LEAST_HIGH, TIMES_USUAL * found.dp)
    question = _question(replay, asked.slos or (usual,), tuple(schedulers), high)
    try:
        return carry_out(begin(question, folder / "plan"), context)
    except Interrupted:
        return None
