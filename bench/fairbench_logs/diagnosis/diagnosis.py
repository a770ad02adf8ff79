"""The diagnosis of a log: floods, waiting clients, replays under several schedulers, replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fairbench.api.logs import FAIR, FCFS
from fairbench.config.defaults import DEFAULTS
from fairbench.config.flags import RUN
from fairbench.config.parse_flags import place_flags
from fairbench.config.resolve import trace_params
from fairbench.errors import DataError, Interrupted, UsageError
from fairbench.execute.tasks import RunContext
from fairbench.metrics.floods import Flood, Harm, flood_windows, floods, harm_of, requests_of
from fairbench.metrics.records import Flags
from fairbench.metrics.traffic import Traffic
from fairbench_logs.diagnosis import SESSION_SLO, USUAL_SLO, access_log
from fairbench_logs.diagnosis.replay import (
    LogReplay,
    ReplayedRun,
    prepared,
    replayed,
    usual_replicas,
)
from fairbench_logs.planning.carry_out import begin_plan, carry_out
from fairbench_logs.planning.question import Clusters, PlanQuestion

# A plan tries clusters of up to TIMES_USUAL times as many replicas as the replayed cluster, or up
# to LEAST_HIGH replicas if this number is larger.
LEAST_HIGH, TIMES_USUAL = 8, 4
# A replayed P95 agrees with the recorded P95 within a factor of AGREES or a difference of
# NOTICED_S seconds.
AGREES, NOTICED_S = 2.0, 0.5


@dataclass(frozen=True)
class DiagnosisInput:
    """The inputs of a diagnosis of an access log.

    - ``flags`` are the flags of ``fairbench run`` with which the log is replayed.
    - ``dp`` is the number of replicas; None means the fewest replicas that can serve the load
      outside floods.
    - ``schedulers`` names the schedulers of the replays, starting with the scheduler of the log's
      servers.
    - ``slos`` are the targets of the capacity plan; the default target is on the time to first
      token of the well-behaved clients.
    - ``plan`` is True if the diagnosis also plans the number of replicas.
    """

    flags: Mapping[str, Any]
    dp: int | None = None
    schedulers: tuple[str, ...] = (FCFS, *FAIR)
    slos: tuple[str, ...] = ()
    plan: bool = True


@dataclass(frozen=True)
class Diagnosis:
    """The findings of a diagnosis of an access log.

    - ``waits`` is the traffic with recorded waits or, if the log has no waits, with replayed waits.
    - ``harm`` names the clients that waited because of other clients, computed from ``waits``.
    - ``replays`` are completed simulations of the requests that arrived between the times
      ``part_s[0]`` and ``part_s[1]`` (in seconds).
    - ``dp`` is the number of replicas; ``dp_given`` says whether the user chose this number.
    - ``plan`` is the answer of the capacity plan, or None if no plan was made.
    - ``present`` is the scheduler of the log's servers, with which other schedulers are compared.
    - ``missing`` names the parts of the diagnosis, such as replays, that an interruption prevented.
    """

    log: access_log.AccessLog
    floods: tuple[Flood, ...]
    waits: Traffic
    harm: Harm | None
    replays: tuple[ReplayedRun, ...]
    part_s: tuple[float, float]
    dp: int
    dp_given: bool
    plan: Mapping[str, Any] | None
    present: str
    missing: tuple[str, ...]

    @property
    def first(self) -> ReplayedRun | None:
        """The replay under the log's own scheduler, or None if this replay was interrupted."""
        return next((one for one in self.replays if one.scheduler == self.present), None)

    @property
    def heavy(self) -> tuple[str, ...]:
        """The names of the heavy clients, starting with the client of the largest flood."""
        return heavy_of(self.log.traffic, self.floods)

    @property
    def judged_s(self) -> list[tuple[float, float]]:
        """The start and end (s) of each period in which schedulers are compared.

        Schedulers are compared during replayed floods or, if no flood is replayed, in the whole
        replay.
        """
        start_s, end_s = self.part_s
        replayed = [
            (max(one[0], start_s), min(one[1], end_s))
            for one in flood_windows(self.floods)
            if one[0] <= end_s and one[1] >= start_s
        ]
        return replayed or [self.part_s]


def heavy_of(traffic: Traffic, found: Sequence[Flood]) -> tuple[str, ...]:
    """Return the names of the clients that send floods, without repetition."""
    return tuple(dict.fromkeys(traffic.clients[one.client] for one in found))


def diagnose(log: access_log.AccessLog, asked: DiagnosisInput, context: RunContext) -> Diagnosis:
    """Find floods, replay the log under each scheduler, and plan replicas.

    After a signal, the diagnosis contains the finished parts and names the missing parts. Raises
    UsageError for flags that contradict each other, and DataError for a log without clients.
    """
    if log.nameless:
        raise DataError(f"{log.file}: {log.nameless}")
    found = tuple(floods(log.traffic))
    if not log.counted:
        return _unreplayed(log, found, asked)
    part, start_s = access_log.part_to_replay(log, found)
    with TemporaryDirectory(prefix="fairbench-") as name:
        folder = Path(name)
        heavy, clock = heavy_of(log.traffic, found), log.traffic.clock
        replay = prepared(folder, part, start_s, heavy, asked.flags, clock, log.file)
        # A latency target that no cluster can meet is refused before the first replay.
        if asked.slos:
            Clusters(_question(replay, asked.slos, asked.schedulers[:1], 1))
        again = access_log.traffic_of_table(part, part.end_s)
        again = again._replace(arrival_s=again.arrival_s + start_s)
        usual = np.flatnonzero(~_in_floods(again, renamed(found, log.traffic, again)))
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


def _unreplayed(
    log: access_log.AccessLog, found: tuple[Flood, ...], asked: DiagnosisInput
) -> Diagnosis:
    traffic = log.traffic
    harm = harm_of(traffic, list(found)) if traffic.knows_waits else None
    part_s = (float(traffic.arrival_s[0]), float(traffic.arrival_s[-1]))
    return Diagnosis(
        *(log, found, traffic, harm, (), part_s, asked.dp or 1, asked.dp is not None, None),
        present=asked.schedulers[0],
        missing=(),
    )


def others_waits(traffic: Traffic, found: Diagnosis) -> dict[str, float | None]:
    """Return percentiles of waits (s) in a log or a replay; None stands for no requests.

    ``heavy_p50_s`` is the median wait of heavy clients' requests. ``others_p50_s`` and
    ``others_p95_s`` are percentiles of the waits of clients that are not heavy.
    """
    inside = np.zeros(len(traffic.client), dtype=np.bool_)
    for start_s, end_s in found.judged_s:
        inside |= (traffic.arrival_s >= start_s) & (traffic.arrival_s <= end_s)
    heavy = np.isin(traffic.client, [traffic.clients.index(name) for name in found.heavy])

    def wait_s(rows: Flags, percent: int) -> float | None:
        waits_s = traffic.wait_s[rows & ~np.isnan(traffic.wait_s)]
        return float(np.percentile(waits_s, percent)) if len(waits_s) else None

    return {
        "others_p50_s": wait_s(inside & ~heavy, 50),
        "others_p95_s": wait_s(inside & ~heavy, 95),
        "heavy_p50_s": wait_s(inside & heavy, 50),
    }


def logged_waits(found: Diagnosis) -> dict[str, float | None] | None:
    """Return percentiles of the waits in the log, as ``others_waits`` does.

    Requests without an answer are ignored.

    The result is None if the log has no times to first token.
    """
    if found.log.measured != access_log.FIRST_TOKEN:
        return None
    waits_s = found.waits.wait_s
    answered = np.where(np.isfinite(waits_s), waits_s, np.nan)
    return others_waits(found.waits._replace(wait_s=answered), found)


class WaitComparison(NamedTuple):
    """The P95 time to first token of clients without floods, in the log and in its first replay."""

    logged_s: float
    replayed_s: float


def unlike_replay(found: Diagnosis) -> WaitComparison | None:
    """Return the P95 waits in the log and in its first replay, or None if they are similar."""
    waits = compared_waits(found)
    return None if waits is None or is_alike(waits) else waits


def is_alike(waits: WaitComparison) -> bool:
    """Return whether the P95 waits in the log and in its first replay are similar."""
    if abs(waits.logged_s - waits.replayed_s) <= NOTICED_S:
        return True
    return max(waits) <= AGREES * min(waits)


def compared_waits(found: Diagnosis) -> WaitComparison | None:
    """Return the P95 waits in the log and in its first replay, or None if they are unknown."""
    first, recorded = found.first, logged_waits(found)
    if first is None or recorded is None:
        return None
    logged_s = recorded["others_p95_s"]
    replayed_s = others_waits(first.traffic, found)["others_p95_s"]
    if logged_s is None or replayed_s is None:
        return None
    return WaitComparison(logged_s, replayed_s)


def best_fair(found: Diagnosis) -> ReplayedRun | None:
    """Return the replay under the fair scheduler with the lowest TTFT P95; None without replays.

    The TTFT P95 is computed over the requests of clients that send no flood.
    """
    fair = [one for one in found.replays if one.scheduler != FCFS]
    return min(
        fair, key=lambda one: others_waits(one.traffic, found)["others_p95_s"] or 0.0, default=None
    )


def renamed(found: Sequence[Flood], of: Traffic, to: Traffic) -> list[Flood]:
    """Renumber the clients of floods from their indices in ``of`` to their indices in ``to``.

    A flood is left out if its client does not occur in the traffic ``to``.
    """
    number = {name: place for place, name in enumerate(to.clients)}
    names = [of.clients[one.client] for one in found]
    return [
        one._replace(client=number[name])
        for one, name in zip(found, names, strict=True)
        if name in number
    ]


def _in_floods(traffic: Traffic, found: Sequence[Flood]) -> Flags:
    inside: Flags = np.zeros(len(traffic.client), dtype=np.bool_)
    for one in found:
        inside |= requests_of(traffic, one)
    return inside


def _question(
    replay: LogReplay, slos: Sequence[str], schedulers: Sequence[str], high: int
) -> PlanQuestion:
    flags = {key: value for key, value in replay.all_flags().items() if value is not None}
    gpu = flags.pop("gpu", DEFAULTS["gpu"])
    # The replay of a trace is deterministic, so a single seed is enough.
    return PlanQuestion(
        slos, schedulers, 1, high, flags, {}, gpus=(gpu,), num_runs=1, sharing=False
    )


def _plan(
    replay: LogReplay, asked: DiagnosisInput, found: Diagnosis, folder: Path, context: RunContext
) -> Mapping[str, Any] | None:
    """Plan the number of replicas for the best fair scheduler and for the log's scheduler.

    The result is None if a signal interrupts the plan.
    """
    best = best_fair(found)
    schedulers = dict.fromkeys((*([best.scheduler] if best else []), asked.schedulers[0]))
    usual = SESSION_SLO if found.replays[0].summary["latency"] == "program" else USUAL_SLO
    high = max(LEAST_HIGH, TIMES_USUAL * found.dp)
    question = _question(replay, asked.slos or (usual,), tuple(schedulers), high)
    try:
        return carry_out(begin_plan(question, folder / "plan"), context)
    except Interrupted:
        return None


MACHINE = ("model", "engine")


def recorded_waits(question: PlanQuestion, context: RunContext) -> dict[str, Any] | None:
    """Return the recorded waits of a capacity plan's trace, and the waits in a replay of the trace.

    The replay runs under FCFS on the plan's first GPU, with the fewest replicas that can serve all
    requests outside floods. Return None if the trace has no times to first token.
    """
    log = _log_of(question)
    if log is None or log.measured != access_log.FIRST_TOKEN:
        return None
    known = {key: one for key in MACHINE if (one := question.flags.get(key)) is not None}
    asked = DiagnosisInput({"gpu": question.gpus[0], **known}, schedulers=(FCFS,), plan=False)
    try:
        found = diagnose(log, asked, context)
    # UsageError means that the trace cannot be diagnosed, for example because it names no clients.
    except UsageError:
        return None
    waits = compared_waits(found)
    if found.first is None or waits is None:
        return None
    return {
        "logged_ttft_p95_s": waits.logged_s,
        "replayed_ttft_p95_s": waits.replayed_s,
        "alike": is_alike(waits),
        "scheduler": FCFS,
        "replicas": found.dp,
        "timing_profile": found.first.summary["timing_profile"],
        "of": "the other clients" if found.floods else "all clients",
    }


def _log_of(question: PlanQuestion) -> access_log.AccessLog | None:
    if not question.flags.get("trace"):
        return None
    flags = {
        key: one for key, one in question.flags.items() if one is not None and one is not False
    }
    try:
        return access_log.read_log(replace(trace_params(place_flags(flags, RUN)), time_scale=1.0))
    except UsageError:  # The capacity plan reads the log, too, and reports the error.
        return None
