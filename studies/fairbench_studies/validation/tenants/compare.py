"""The comparison of a measured run of several tenants with its replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairbench.metrics.fairness import jain
from fairbench.metrics.records import Flags, Floats
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.validation.report import LONG_TTFT_S, defined
from fairbench_studies.validation.serving.compare import (
    answered_tokens,
    clients_of,
    throughput_tok_s,
    tpot_p50_ms,
    trace_of,
)
from fairbench_studies.validation.serving.engines import believable_pool, most_decoding_tokens
from fairbench_studies.validation.serving.measured import ServingRun
from fairbench_studies.validation.serving.profiles import host_cost_text
from fairbench_studies.validation.serving.unanswered import rows_of
from fairbench_studies.validation.windows import WEIGHTS, service_between, spans_of

THROUGHPUT_TARGET_PCT, P50_TARGET_PCT, SHARE_TARGET = 5.0, 15.0, 0.03
# With more than ``FEW_CLIENTS`` tenants, kinds of requests are compared instead of tenants.
FEW_CLIENTS = 3


@dataclass(frozen=True, slots=True)
class TenantLatency:
    """Times to first token (s) of a tenant or of a kind of request.

    ``other_p50_s`` and ``other_p99_s`` are predictions of another simulator (BLIS).
    """

    name: str
    p50_s: Pair
    p99_s: Pair
    other_p50_s: float
    other_p99_s: float


@dataclass(frozen=True, slots=True)
class ClientComparison:
    """A client's times to first token in seconds, and its share of the run's service."""

    name: str
    p50_s: Pair
    p99_s: Pair
    share: Pair

    def as_dict(self) -> dict[str, Any]:
        """Return the client's numbers as JSON-compatible values."""
        return {
            "client": self.name,
            "ttft_p50_s": self.p50_s.as_dict(),
            "ttft_p99_s": self.p99_s.as_dict(),
            "service_share": self.share.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class TenantComparison:
    """A measured run of several tenants, with its simulation.

    ``share_off`` holds the largest simulation error of a tenant's or request kind's service share:
    in the whole run, and in any minute. ``jain_off`` is the largest simulation error of Jain's
    index in any minute. ``tenants`` lists tenants or kinds of requests, and ``clients`` lists all
    clients.
    """

    name: str
    profile: str
    fitted: bool
    notes: tuple[str, ...]
    throughput: Pair
    tpot_p50_ms: Pair
    tenants: tuple[TenantLatency, ...]
    clients: tuple[ClientComparison, ...]
    share_off: tuple[float, float]
    jain: Pair
    jain_off: float

    @property
    def misses(self) -> list[str]:
        """The targets that the replay misses, with the simulated and the measured value."""
        return list(self._misses())

    def _misses(self) -> Iterator[str]:
        if not self.throughput.within(THROUGHPUT_TARGET_PCT):
            yield _miss("throughput", self.throughput, THROUGHPUT_TARGET_PCT)
        for tenant in self.tenants:
            pair = tenant.p50_s
            if pair.measured > LONG_TTFT_S and not pair.within(P50_TARGET_PCT):
                yield _miss(f"TTFT P50 of {tenant.name}", pair, P50_TARGET_PCT)
        if self.share_off[0] > SHARE_TARGET:
            yield f"share of service: off by {100 * self.share_off[0]:.1f} points (target 3)"

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-compatible values."""
        return {
            "name": self.name,
            "timing_profile": self.profile,
            "fitted": self.fitted,
            "notes": list(self.notes),
            "throughput_tok_s": self.throughput.as_dict(),
            "tpot_p50_ms": self.tpot_p50_ms.as_dict(),
            "ttft": [
                {
                    "group": one.name,
                    "p50_s": one.p50_s.as_dict(),
                    "p99_s": one.p99_s.as_dict(),
                    "blis_p50_s": defined(one.other_p50_s),
                    "blis_p99_s": defined(one.other_p99_s),
                }
                for one in self.tenants
            ],
            "clients": [one.as_dict() for one in self.clients],
            "share_off": defined(self.share_off[0]),
            "share_off_in_windows": defined(self.share_off[1]),
            "jain_index": self.jain.as_dict(),
            "jain_off_in_windows": defined(self.jain_off),
            "misses": self.misses,
        }


def compare_tenants(
    run: ServingRun, replayed: ServingRun, recorded: Flags, profile: str, *, fitted: bool = False
) -> TenantComparison:
    """Compare a measured run with its replay.

    Args:
        run: The measured run.
        replayed: The replay, which may have requests that the measured record lacks.
        recorded: Whether ``run`` contains each replayed request, shape (n_replayed,).
        profile: The id of the timing profile.
        fitted: Whether the timing profile, or the CPU time of a policy, was fitted to ``run``.
    """
    simulated = rows_of(replayed, recorded)
    spans = spans_of(trace_of(run))
    shares = np.array([[_shares(side, run, *span) for span in spans] for side in (simulated, run)])
    indices = np.array([[_jain(side, *span) for span in spans] for side in (simulated, run)])
    off = np.abs(shares[0] - shares[1]).max(axis=1)
    return TenantComparison(
        name=run.name,
        profile=profile,
        fitted=fitted,
        notes=tuple(_notes(run, int((~recorded).sum()))),
        throughput=Pair(throughput_tok_s(replayed, answered_tokens(run)), throughput_tok_s(run)),
        tpot_p50_ms=Pair(tpot_p50_ms(simulated), tpot_p50_ms(run)),
        tenants=tuple(_latency(name, simulated, run) for name in groups(run)),
        clients=tuple(_clients(simulated, run, *spans[0])),
        share_off=(float(off[0]), _largest(off)),
        jain=Pair(*map(float, indices[:, 0])),
        jain_off=_largest(np.abs(indices[0] - indices[1])),
    )


def groups(run: ServingRun) -> list[str]:
    """Return the groups to compare: tenants or, with many tenants, kinds of requests or "all"."""
    clients = sorted(set(run.client))
    if len(clients) <= FEW_CLIENTS:
        return clients
    return sorted(set(run.kind)) or ["all"]


def of_group(run: ServingRun, name: str) -> Flags:
    """Return a mask of the requests of a tenant or kind of request, shape (n_requests,)."""
    labels = run.client if len(set(run.client)) <= FEW_CLIENTS else run.kind
    return np.array([label == name for label in labels]) if labels else np.ones(len(run), bool)


def _notes(run: ServingRun, unanswered: int) -> Iterator[str]:
    if unanswered:
        yield (
            f"{unanswered} requests added that were sent, but are not in the record: throughput "
            "counts until as many tokens are answered"
        )
    if cost := host_cost_text(run.policy):
        yield cost
    if run.pool_tokens and not believable_pool(run):
        used = (
            "the default pool of vllm"
            if run.engine == "vllm"
            else "the pool of --mem-frac 0.7, from the same command line"
        )
        elsewhere = most_decoding_tokens(run) <= run.pool_tokens
        where = " in a run with the same settings" if elsewhere else ""
        yield (
            f"pool of {run.pool_tokens:,} tokens not used: more were decoding at once{where}; "
            f"replayed with {used}"
        )


def _latency(name: str, simulated: ServingRun, run: ServingRun) -> TenantLatency:
    p50_s, p99_s = _ttft(of_group(run, name), simulated, run)
    other_p50_s, other_p99_s = (_said_s(run, name, key) for key in ("p50_us", "p99_us"))
    return TenantLatency(name, p50_s, p99_s, other_p50_s, other_p99_s)


def _clients(
    simulated: ServingRun, run: ServingRun, start_s: float, end_s: float
) -> Iterator[ClientComparison]:
    shares = [_client_shares(side, start_s, end_s) for side in (simulated, run)]
    for name in clients_of(run):
        own = np.array([client == name for client in run.client])
        share = Pair(*(side.get(name, 0.0) for side in shares))
        yield ClientComparison(name, *_ttft(own, simulated, run), share)


def _client_shares(side: ServingRun, start_s: float, end_s: float) -> dict[str, float]:
    names, service = clients_of(side), service_between(trace_of(side), WEIGHTS, start_s, end_s)
    total = sum(service.values()) or float("nan")
    return {names[client]: one / total for client, one in service.items()}


def _ttft(chosen: Flags, simulated: ServingRun, run: ServingRun) -> tuple[Pair, Pair]:
    """Return the P50 and P99 TTFT (s) of the chosen requests that have an answer in both runs."""
    both = chosen & run.served & simulated.served & run.steady
    p50_s, p99_s = (
        Pair(*(_percentile(side, both, percent) for side in (simulated, run)))
        for percent in (50, 99)
    )
    return p50_s, p99_s


def _said_s(run: ServingRun, tenant: str, key: str) -> float:
    """Return a TTFT percentile (s) that another simulator (BLIS) predicts for a tenant, or NaN."""
    value: Any = run.predicted
    for part in ("tenants", tenant, "ttft_percentiles", key):
        value = value.get(part) if isinstance(value, dict) else None
    return value / 1e6 if isinstance(value, int | float) else float("nan")


def _largest(values: Floats) -> float:
    """Return the largest value that is not NaN, or NaN if there is none."""
    return float(np.nanmax(values)) if not np.isnan(values).all() else float("nan")


def _percentile(run: ServingRun, chosen: Flags, percent: float) -> float:
    return float(np.percentile(run.ttft_s[chosen], percent)) if chosen.any() else float("nan")


def _shares(side: ServingRun, run: ServingRun, start_s: float, end_s: float) -> list[float]:
    found = []
    for name in groups(run):
        part = trace_of(side, of_group(run, name))
        service = service_between(part, WEIGHTS, start_s, end_s) if len(part) else {}
        found.append(sum(service.values()))
    total = sum(found)
    return [one / total if total else float("nan") for one in found]


def _jain(side: ServingRun, start_s: float, end_s: float) -> float:
    return jain(list(service_between(trace_of(side), WEIGHTS, start_s, end_s).values()))


def _miss(name: str, pair: Pair, target: float) -> str:
    error = "undefined" if pair.error_pct is None else f"{pair.error_pct:+.1f}%"
    return f"{name}: {pair.simulated:.4g} against {pair.measured:.4g}, {error} (target {target:g}%)"
