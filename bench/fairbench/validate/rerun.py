"""Runs of the DLPM authors' own benchmark on a GPU, simulated from their command lines.

A file is a JSON array of runs. Each says scheduler and flags of its server, the client's command
line, and what was measured: makespan, service, Jain's index, and the latency of every program of
every user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fairbench.config.resolve import resolve
from fairbench.errors import DataError
from fairbench.files.json_text import json_file
from fairbench.sim.run import simulate
from fairbench.validate.pair import Pair

SCHEDULERS = {
    "lpm": "lpm",
    "vtc": "vtc",
    "dlpm": "dlpm",
    "d2lpm": "d2lpm",
    "preble": "preble-code",
    "fcfs": "fcfs",
}
"""The benchmark's schedulers by their simulated ones; its Preble is the published code."""

FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "run_id": str,
    "scheduler": str,
    "flags": str,
    "server": str,
    "client": str,
    "makespan_s": (int, float),
    "service_tok_s": (int, float),
    "service_tok_s_all_active": (int, float),
    "jain_service": (int, float),
    "program_latencies_s": dict,
}
SERVICE_TARGET_PCT, JAIN_TARGET, MAKESPAN_TARGET_PCT = 6.0, 0.05, 12.0


@dataclass(frozen=True, slots=True)
class Rerun:
    """One measured run: what it was, and its numbers."""

    name: str
    scheduler: str
    settings: Mapping[str, Any]
    num_programs: int
    interval_s: float
    branches: tuple[int, ...]
    makespan_s: float
    service_tok_s: float
    active_tok_s: float
    jain: float
    p50_s: tuple[float, ...]  # of each user's programs, in order of the users


@dataclass(frozen=True, slots=True)
class RerunComparison:
    """A run, simulated and measured. ``p50_s`` is that of each user's programs."""

    name: str
    scheduler: str
    profile: str
    service_tok_s: Pair
    active_tok_s: Pair
    jain: Pair
    makespan_s: Pair
    p50_s: tuple[Pair, ...]

    @property
    def misses(self) -> list[str]:
        """The targets that are missed."""
        found = []
        if not self.service_tok_s.within(SERVICE_TARGET_PCT):
            found.append(f"service: {_error(self.service_tok_s)} (target {SERVICE_TARGET_PCT:g}%)")
        if not abs(self.jain.simulated - self.jain.measured) <= JAIN_TARGET:
            numbers = f"{self.jain.simulated:.3f} against {self.jain.measured:.3f}"
            found.append(f"Jain's index: {numbers} (target {JAIN_TARGET:g})")
        if not self.makespan_s.within(MAKESPAN_TARGET_PCT):
            found.append(f"makespan: {_error(self.makespan_s)} (target {MAKESPAN_TARGET_PCT:g}%)")
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "scheduler": self.scheduler,
            "timing_profile": self.profile,
            "service_tok_s": self.service_tok_s.as_dict(),
            "service_tok_s_all_active": self.active_tok_s.as_dict(),
            "jain_index": self.jain.as_dict(),
            "makespan_s": self.makespan_s.as_dict(),
            "p50_s": [pair.as_dict() for pair in self.p50_s],
            "misses": self.misses,
        }


def _error(pair: Pair) -> str:
    return "undefined" if pair.error_pct is None else f"{pair.error_pct:+.1f}%"


def holds_reruns(path: Path) -> bool:
    """Tell whether a file is a JSON array of such runs."""
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        data = json_file(path, str(path))
    except DataError:
        return False
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(one, dict) and "program_latencies_s" in one for one in data)
    )


def load_reruns(path: Path) -> list[Rerun]:
    """Read every run of a file. Raises DataError naming the run and the field."""
    data = json_file(path, str(path))
    return [_rerun(one, f"{path}, run {number}") for number, one in enumerate(data, start=1)]


def _rerun(record: Mapping[str, Any], where: str) -> Rerun:
    where = f"{where} ({record['run_id']})" if isinstance(record.get("run_id"), str) else where
    for name, kind in FIELDS.items():
        if name not in record:
            raise DataError(f"{where}: field {name!r} is missing")
        if not isinstance(record[name], kind) or isinstance(record[name], bool):
            raise DataError(f"{where}: field {name!r} = {record[name]!r}: is of another type")
    if record["scheduler"] not in SCHEDULERS:
        known = ", ".join(SCHEDULERS)
        raise DataError(f"{where}: scheduler {record['scheduler']!r}: known are {known}")
    client = record["client"]
    branches = tuple(map(int, _found(r"--branches((?: \d+)+)", client, where).split()))
    intervals = {float(one) for one in _found(r"--intervals((?: [\d.]+)+)", client, where).split()}
    if len(intervals) != 1 or len(set(branches[1:])) != 1:
        raise DataError(f"{where}: client: users 1 and up must be alike, and intervals the same")
    latencies = record["program_latencies_s"]
    users = sorted(latencies, key=lambda user: int(re.sub(r"\D", "", user) or 0))
    if len(users) != len(branches):
        raise DataError(f"{where}: program_latencies_s: {len(users)} users, not {len(branches)}")
    return Rerun(
        name=record["run_id"],
        scheduler=SCHEDULERS[record["scheduler"]],
        settings=_settings(record, where),
        num_programs=int(_found(r"(\d+) programs a user", client, where)),
        interval_s=intervals.pop(),
        branches=branches,
        makespan_s=record["makespan_s"],
        service_tok_s=record["service_tok_s"],
        active_tok_s=record["service_tok_s_all_active"],
        jain=record["jain_service"],
        p50_s=tuple(median(latencies[user]) for user in users),
    )


def _settings(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the engine's and the scheduler's settings, as the command line has them."""
    server = record["server"]
    settings = {
        "engine.max_total_tokens": int(_found(r"--max-total (\d+)", server, where)),
        "engine.max_prefill_tokens": int(_found(r"--max-prefill (\d+)", server, where)),
    }
    quantum = re.search(r"--Q (\d+)", record["flags"])
    if quantum and record["scheduler"] in ("dlpm", "d2lpm"):
        settings["dlpm.quantum"] = int(quantum[1])
    return settings


def _found(pattern: str, text: str, where: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        what = pattern.split("(")[0].strip() or "number of programs a user"
        raise DataError(f"{where}: no {what} in {text!r}")
    return match[1].strip()


def compare_rerun(run: Rerun, seed: int = 0) -> RerunComparison:
    """Simulate a run with nothing fitted, and compare it."""
    others = run.branches[1]
    flags = {
        "preset": "dlpm-paper",
        "workload": "judge",
        "scenario": "s1",
        "scheduler": run.scheduler,
        "clients": len(run.branches),
        "num_programs": run.num_programs,
        "request_rate": 1 / run.interval_s,
        "seed": seed,
    }
    dimensions = {"judge.dimensions": others, "judge.misbehaving.dimensions": run.branches[0]}
    result = simulate(resolve(flags, {**run.settings, **dimensions}))
    summary, programs = result.summary, result.tables()["programs"]
    names = [row["client"] for row in summary["clients"]]
    latency = programs["finish_s"] - programs["arrival_s"]
    mine = [latency[np.asarray(programs["client"]) == name] for name in names]
    ours = [float(np.median(of)) for of in mine]
    return RerunComparison(
        name=run.name,
        scheduler=run.scheduler,
        profile=summary["timing_profile"],
        service_tok_s=Pair(summary["service_rate_tok_s"], run.service_tok_s),
        active_tok_s=Pair(summary["service_rate_paper_window_tok_s"], run.active_tok_s),
        jain=Pair(summary["jain_index_paper_window"], run.jain),
        makespan_s=Pair(summary["time_to_100pct_s"], run.makespan_s),
        p50_s=tuple(map(Pair, ours, run.p50_s)),
    )
