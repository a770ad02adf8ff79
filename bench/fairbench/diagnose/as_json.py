"""A diagnosis as plain values, the output of ``diagnose --json``."""

from __future__ import annotations

from math import inf
from typing import Any

from fairbench.diagnose.access_log import FIRST_TOKEN
from fairbench.diagnose.diagnosis import Diagnosis, others_waits, unlike_replay
from fairbench.metrics.floods import Flood, Harm

OF_REPLAYS = ("min_share_60s", "service_rate_tok_s")


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as JSON types, with times in seconds from the first request."""
    log, first, unlike = found.log, found.first, unlike_replay(found)
    summary = found.replays[0].summary if found.replays else {}
    return {
        "file": log.file,
        "format": log.format,
        "sha256": log.sha256,
        "requests": len(log.traffic.client),
        "clients": len(log.traffic.clients),
        "span_s": log.traffic.span_s,
        "began": None if log.traffic.clock is None else log.traffic.clock.iso,
        "waits": log.measured or (f"replayed under {first.scheduler}" if first else None),
        "floods": [_flood(found, one) for one in found.floods],
        "harm": None if found.harm is None else _harm(found, found.harm),
        "replayed_requests": summary.get("num_requests"),
        "replayed_programs": summary.get("num_programs"),
        "replayed_from_s": found.part_s[0],
        "replayed_to_s": found.part_s[1],
        "timing_profile": summary.get("timing_profile"),
        "dp": found.dp,
        "replay_is_like_log": unlike is None if log.measured == FIRST_TOKEN and first else None,
        "judged_from_s": found.judged_s[0][0],
        "judged_to_s": found.judged_s[-1][1],
        "judged_s": found.judged_s,
        "schedulers": [
            {
                "scheduler": run.scheduler,
                **_finite(dict(others_waits(run.traffic, found))),
                **{key: run.summary.get(key) for key in OF_REPLAYS},
            }
            for run in found.replays
        ],
        "plan": found.plan,
        "missing": list(found.missing),
    }


def _flood(found: Diagnosis, flood: Flood) -> dict[str, Any]:
    name = found.log.traffic.clients[flood.client]
    return {**_finite(flood._asdict()), "client": name}


def _harm(found: Diagnosis, harm: Harm) -> dict[str, Any]:
    victims = [
        {**_finite(one._asdict()), "client": found.waits.clients[one.client]}
        for one in harm.victims
    ]
    parts = [_harm(found, one) for one in harm.parts]
    return {**_finite(harm._asdict()), "victims": victims, "parts": parts}


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with null for infinite ones."""
    return {key: None if value == inf else value for key, value in values.items()}
