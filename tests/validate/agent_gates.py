"""Gates for agent sessions against measured runs on four pods of two H100.

    FAIRBENCH_DATA=FOLDER python tests/validate/agent_gates.py [SEED ...]

The measured runs are those of zetxqx/thunderagent-original-verification (13-llm-d-router-sweep).
The measured sessions cannot be fetched, so simulations draw other sessions of the same recorder by
the measured rules: prompts have at most 245,000 tokens, sessions share no prefix, and pauses are
capped at 10 s.

Pauses (about 1 s) and the lengths of prompts and answers in each turn are scaled to published means
of the measured sessions (RESULTS.md @64c009eb). All other inputs come from data sheets and
settings. No input is fitted to measured hit rates, throughputs or waits.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairbench.config.resolve import resolve
from fairbench.sim.run import simulate

SHARED = Path(__file__).resolve().parents[3] / "shared/data"
SESSIONS = SHARED / "weka_sessions.jsonl.gz"
MEASURED = SHARED / "agent_gates/agent_gates_levels.json"
POD_BLOCKS = 139_815  # of 16 tokens, as measured
NEW_BLOCKS = 10**7  # ids from here on belong to no recorded block
MOST_INPUT, CAP_S, PAUSE_SCALE = 245_000, 10.0, 0.14
SEEDS = (0, 1, 2)


class Growth(NamedTuple):
    """Factors of lengths in recorded turns, counted from 0, up to a session's turn ``last_turn``.

    With these factors, simulated prompts and answers are on average as long as those published for
    the measured sessions: 26,760, 47,276, 57,355, 67,557 and 90,509 tokens in a prompt, and 363,
    684, 730, 773 and 819 tokens in an answer.
    """

    last_turn: float
    prompt: float
    answer: float


GROWTH = (
    Growth(1, 0.55, 0.68),
    Growth(4, 0.72, 1.91),
    Growth(9, 0.85, 1.44),
    Growth(19, 1.12, 1.22),
    Growth(inf, 1.2, 1.85),
)
PROFILE = """\
profile = "h100-80gb/qwen3-30b-a3b-fp8-kv-fp8/tp2/roofline"
grade = "derived: roofline of data sheet and config"
source = "fairbench profile derive qwen3-30b-a3b --gpu h100 --tp 2 --dtype fp8 --kv-dtype fp8 \
--engine vllm --roofline"
host_ms = 0.5
[coefficients_ms]
c0 = 0.0
c_w = 2.19637
c_T = 0.00521878
p = 1.45213
c_A = 8.19959e-07
c_K = 9.20964e-06
c_npf = 0.00684566
c_nd = 0.0106683
c_e = 5.45219
q_e = 0.9375
[pool]
pre_load_avail_gib = 78.8
weights_gib = 14.5073
kv_bytes_per_token = 24576
mem_fraction_static = 0.83
chunked_prefill_size = 8192
host_gb_s = 50.4
[frontend_ms]
request_ms = 1.5
token_ms = 0.003
delay_ms = 9.913
"""
WORKLOAD = """\
name = "agents"
description = "closed loop of recorded sessions"
program = "session"
latency = "program"
clients = 1
arrivals = {{ kind = "closed", params = {{ users = {users} }} }}
duration_s = {duration_s}
warmup_s = {warmup_s}
max_drain_s = 1.0
[params]
file = "{file}"
least_tokens = 0
most_tokens = {most}
most_calls = 400
think_scale = 1.0
[scenarios.s1]
description = "all users are alike"
rate = 1.0
"""
ROUTER = {"llm-d.prefix_weight": 3.0, "llm-d.load_weight": 0.0, "llm-d.kv_weight": 2.0}
ROUTER |= {"llm-d.queue_weight": 2.0, "vllm.num_gpu_blocks_override": POD_BLOCKS}
ARMS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "most-room": {"thunderagent-llmd.resume": "most-room"},
    "origin-only": {"thunderagent-llmd.resume": "origin"},
}


def prepared_sessions(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sessions with the rules and means of the measured sessions."""
    for session in map(json.loads, lines):
        if max(turn["in"] for turn in _turns(session["requests"])) > MOST_INPUT:
            continue
        for one in (session, *session["requests"]):
            one.pop("tool_tokens", None)
            one.pop("system_tokens", None)
        _shorten_pauses(session["requests"])
        _scale_lengths(session["requests"], session["block_size"], count(), count(NEW_BLOCKS))
        yield json.dumps(session)


def _scale_lengths(
    requests: list[dict[str, Any]], block: int, turns: Iterator[int], blocks: Iterator[int]
) -> None:
    """Scale prompts and answers by the number of the turn.

    A prompt shares as large a part of its agent's previous prompt as in the record.
    """
    before: list[int] = []
    kept: list[int] = []
    for one in requests:
        if "requests" in one:
            _scale_lengths(one["requests"], block, turns, blocks)
            continue
        turn = next(turns)
        growth = next(growth for growth in GROWTH if turn <= growth.last_turn)
        shared = _shared_blocks(before, one["hash_ids"])
        shared = round(shared / len(before) * len(kept)) if before else 0
        tokens = min(MOST_INPUT, round(one["in"] * growth.prompt))
        fresh = max(0, tokens // block - shared)
        before = one["hash_ids"]
        kept = kept[:shared] + [next(blocks) for _ in range(fresh)]
        one["hash_ids"] = kept
        one["in"] = max(tokens, len(kept) * block)
        one["out"] = max(1, round(one["out"] * growth.answer))


def _shared_blocks(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second))
    )


def _turns(requests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in requests:
        yield from _turns(one["requests"]) if "requests" in one else (one,)


def _shorten_pauses(requests: list[dict[str, Any]]) -> None:
    shift_s, ended_s = 0.0, None
    for one in requests:
        if "requests" in one:
            _shorten_pauses(one["requests"])
            one["t"] = max(0.0, one["t"] - shift_s)
            continue
        if ended_s is not None:
            pause_s = one["t"] - shift_s - ended_s
            shift_s += pause_s - PAUSE_SCALE * min(max(pause_s, 0.0), CAP_S)
        one["t"] = max(0.0, one["t"] - shift_s)
        ended_s = one["t"] + one.get("api_time", 0.0)


@dataclass(frozen=True)
class Outcome:
    """The results of a run.

    ``hit`` is the fraction of prompt tokens that were cached. ``late_hit`` counts only requests
    whose first token came after the first third of the run. ``p99_s`` is the P99 of the time to the
    first token. ``p99_waiting_s`` also counts requests without a first token, with their wait until
    the end of the window.
    """

    output_tok_s: float
    hit: float
    late_hit: float
    p50_s: float
    p99_s: float
    p99_waiting_s: float
    pressure: float


class Bench:
    """Runs of the compared gates (arms) with the prepared sessions in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "sessions.jsonl.gz"
        with gzip.open(SESSIONS, "rt") as lines, gzip.open(self._file, "wt") as out:
            out.writelines(f"{line}\n" for line in prepared_sessions(lines))
        (folder / "h100.toml").write_text(PROFILE)

    def run(
        self, arm: str, users: int, *, pods: int = 4, duration_s: float = 1800.0, seed: int = 0
    ) -> Outcome:
        """Run an arm with ``users`` sessions at a time."""
        text = WORKLOAD.format(
            users=users, duration_s=duration_s, warmup_s=duration_s / 3, file=self._file,
            most=MOST_INPUT,
        )  # fmt: skip
        workload = self._folder / f"agents-{users}-{duration_s:.0f}.toml"
        workload.write_text(text)
        flags = {
            "workload": str(workload), "scenario": "s1", "engine": "vllm", "dp": pods,
            "gpu": str(self._folder / "h100.toml"), "router": "llm-d", "local": "fcfs",
            "seed": seed,
        }  # fmt: skip
        if arm != "baseline":
            flags["gateway"] = "thunderagent-llmd"
        spec = resolve(flags, ROUTER | ARMS[arm])
        return _outcome(simulate(spec).requests, duration_s, pods * POD_BLOCKS * 16)

    def mean(self, arm: str, users: int, *, seeds: Iterable[int] = SEEDS, **limits: Any) -> Outcome:
        """Return the mean of each result over runs with the given seeds."""
        found = [astuple(self.run(arm, users, seed=seed, **limits)) for seed in seeds]
        return Outcome(*np.mean(found, axis=0).tolist())


def _outcome(table: Any, end_s: float, pool_tokens: int) -> Outcome:
    named = (name for name in ("arrival_s", "first_token_s", "finish_s", "input_tokens"))
    column = {name: np.asarray(table[name], dtype=float) for name in named}
    cached, outputs = np.asarray(table["cached_tokens"]), np.asarray(table["output_tokens"])
    done = np.isfinite(column["finish_s"])
    first_s = column["first_token_s"] - column["arrival_s"]
    served = np.isfinite(first_s)
    waits_s = np.where(served, first_s, end_s - column["arrival_s"])
    inputs = column["input_tokens"][done]
    late = done & (column["first_token_s"] >= end_s / 3)
    return Outcome(
        output_tok_s=outputs[done].sum() / end_s,
        hit=cached[done].sum() / inputs.sum(),
        late_hit=cached[late].sum() / column["input_tokens"][late].sum(),
        p50_s=float(np.median(first_s[served])),
        p99_s=float(np.percentile(first_s[served], 99)),
        p99_waiting_s=float(np.percentile(waits_s, 99)),
        pressure=inputs.mean() / pool_tokens,
    )


def main(*seeds: str) -> None:
    """Print measured results, and means of simulated results, at all public load levels."""
    cells = json.loads(MEASURED.read_text())["cells"]
    measured = {(cell["arm"], cell["sessions"]): cell for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        base: dict[int, tuple[float, float]] = {}
        for (arm, users), cell in sorted(measured.items(), key=lambda one: one[0][1]):
            found = bench.mean(arm, users, seeds=tuple(map(int, seeds)) or SEEDS)
            rates = cell["output_tok_s"], found.output_tok_s
            ratios = [
                rate / usual
                for rate, usual in zip(rates, base.setdefault(users, rates), strict=True)
            ]
            cells_of = (
                f"{users} {arm}",
                f"{users * cell['prompt_len']['mean'] / (4 * POD_BLOCKS * 16):.2f} "
                f"{users * found.pressure:.2f}",
                f"{cell['hit_window']:.3f} {found.hit:.3f}",
                f"{ratios[0]:.2f} {ratios[1]:.2f}",
                f"{cell['ttft_s']['p50']:.2f} {found.p50_s:.2f}",
                f"{cell['ttft_s']['p99']:.0f} {found.p99_s:.0f}-{found.p99_waiting_s:.0f}",
            )
            print("| " + " | ".join(cells_of) + " |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
