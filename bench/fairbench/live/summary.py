"""The summary of a live run: the keys of a simulated run, and client-side metrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any

import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.core import ServiceBound
from fairbench.errors import printable, shortened
from fairbench.live.backends.base import Served
from fairbench.live.driver.drive import DriveResult
from fairbench.live.records import FINISHED, REFUSED, LiveRecords, RequestRecord
from fairbench.metrics.catalogue import forget_needing
from fairbench.metrics.metric import Needs
from fairbench.metrics.records import Facts, Floats
from fairbench.metrics.summary import summarize
from fairbench.metrics.tables import Tables
from fairbench.metrics.totals import distribution
from fairbench.results.header import run_header
from fairbench.results.run_facts import cluster_bound, run_facts
from fairbench.schedulers.registry import build_local, build_router
from fairbench.workloads.tokens import load_counter

_MESSAGE = re.compile(r'"(?:message|detail|error)"\s*:\s*"((?:[^"\\]|\\.)*)')
LATE_MS = 10.0  # P99 lateness above which a run is flagged
NO_CACHED = "the server does not report cached tokens"
CACHED_AT_END = (
    "the server reports cached tokens at the end of an answer, and too many answers had not ended"
)
FEW_CUT = 0.05  # part of the answers that may lack cached tokens because they did not end
NO_WORKER = "the router does not say which worker served a request"
NO_ADMISSION = "the server does not report when it admitted requests"


def lateness_ms(requests: Iterable[RequestRecord]) -> dict[str, float]:
    """Return ``lateness_{p50,p99,max}_ms``: the delay between due time and sending of requests.

    The values are NaN if no request was sent.
    """
    late_ms = np.array([1000 * (r.sent_s - r.arrival_s) for r in requests if r.sent_s is not None])
    return _percentiles("lateness", "ms", late_ms)


def _percentiles(name: str, unit: str, values: Floats) -> dict[str, float]:
    found = np.percentile(values, [50, 99, 100]).tolist() if len(values) else [np.nan] * 3
    keys = (f"{name}_{statistic}_{unit}" for statistic in ("p50", "p99", "max"))
    return dict(zip(keys, found, strict=True))


def itl_ms(requests: Iterable[RequestRecord]) -> dict[str, float]:
    """Return ``{mean,median,std,p50,p99}_itl_ms`` over the token gaps of completed requests.

    Tokens that arrive together share the preceding gap evenly, as in SGLang's benchmark.
    """
    gaps = [token_gaps_s(r.chunk_s, r.chunk_tokens) for r in requests if r.status == FINISHED]
    return distribution("itl", np.concatenate(gaps) if gaps else np.array([]))


def token_gaps_s(chunk_s: Sequence[float], chunk_tokens: Sequence[int]) -> Floats:
    """Return the gap before each token after the first chunk."""
    tokens = np.array(chunk_tokens[1:], dtype=np.int64)
    gaps: Floats = np.repeat(np.diff(chunk_s) / tokens, tokens)
    return gaps


def error_counts(requests: Iterable[RequestRecord]) -> dict[str, int]:
    """Count the errors that ended requests by kind, most frequent first."""
    kinds = Counter(r.error.partition(":")[0] for r in requests if r.error is not None)
    return dict(kinds.most_common())


def first_messages(requests: Iterable[RequestRecord]) -> dict[str, str]:
    """Return the server's text in the first error of each kind, of JSON only the message."""
    messages: dict[str, str] = {}
    for request in requests:
        if request.error is not None:
            kind, _, said = request.error.partition(":")
            by_server = kind.startswith(("HTTP", "stream error", "no answer"))
            if not messages.get(kind) and by_server:
                messages[kind] = printable(shortened(_message(said.strip())))
    return messages


def _message(said: str) -> str:
    """Return the message of an API's error, perhaps truncated, or the whole text without one."""
    found = _MESSAGE.search(said) if said.startswith("{") else None
    return found[1].replace('\\"', '"') if found else " ".join(said.split())


def summary_of(
    spec: ExperimentSpec, records: LiveRecords, tables: Tables, result: DriveResult, served: Served
) -> dict[str, Any]:
    """Return the summary as JSON types: metrics, the experiment and its server."""
    facts = replace(_facts(spec, result, served), failed=_failed(records))
    metrics = summarize(tables, facts)
    notes: dict[str, str] = metrics["notes"]
    _measure_gaps(metrics, records)
    _forget_unknown(metrics, records)
    notes |= _remarks(spec, records)
    counter = load_counter(spec.tokenizer) if spec.dataset_path else None
    header = run_header(
        spec,
        spec.client_plans(),
        complete=result.complete,
        pool_tokens=served.pool_tokens,
        mem_fraction_static=served.mem_fraction_static,
        chunked_prefill_size=served.chunked_prefill_size,
        timing_profile=served.timing_profile,
        timing_grade=served.timing_grade,
        timing_error_pct=0.0,
        token_count_method=counter.method if counter else None,
        bound=facts.bound,
        served={
            "emulated": served.emulated,
            "backend": served.backend,
            "served": served.name,
            **({"pool_flag": served.pool_flag} if served.pool_flag else {}),
        },
    )
    return {
        **header,
        **metrics,
        **_finite(lateness_ms(records.requests)),
        **_held(records),
        **({"estimated": estimated} if (estimated := _estimated(records)) else {}),
        "errors": error_counts(records.requests),
    }


def _held(records: LiveRecords) -> dict[str, float]:
    """Return ``held``, and how long all requests waited for a slot if some did.

    Requests that were still waiting at the end are left out.
    """
    waits_s = [r.held_s for r in records.requests if r.held_s or r.sent_s is not None]
    held = sum(wait_s > 0 for wait_s in waits_s)
    return {"held": held, **(_percentiles("held", "s", np.array(waits_s)) if held else {})}


def _facts(spec: ExperimentSpec, result: DriveResult, served: Served) -> Facts:
    workers = served.workers or spec.dp
    bound, reason = _bound(spec, served)
    return run_facts(
        spec,
        spec.client_plans(),
        last_arrival_s=result.last_arrival_s,
        end_s=result.end_s,
        workers=workers,
        pool_tokens=served.pool_tokens or 0,
        bound=bound,
        bound_unavailable=reason,
    )


def _bound(spec: ExperimentSpec, served: Served) -> tuple[ServiceBound | None, str]:
    if served.unbounded:
        return None, served.unbounded
    if served.pool_tokens is None:
        return None, "the size of the KV pool is not known"
    router = build_router(spec.router, spec.settings, spec.dp)
    return cluster_bound(router, build_local(spec.local, spec.settings), spec.dp)


def _measure_gaps(metrics: dict[str, Any], records: LiveRecords) -> None:
    """Fill in the gaps between tokens, which a service log does not contain."""
    for key, value in _finite(itl_ms(records.requests)).items():
        metrics[key] = value
        if value is not None:
            metrics["notes"].pop(key, None)


def _failed(records: LiveRecords) -> int:
    """Return how many requests were not refused but failed: an HTTP 4xx answer is a refusal."""
    over = [request for request in records.requests if request.status == REFUSED]
    return sum(
        number for kind, number in error_counts(over).items() if not kind.startswith("HTTP 4")
    )


def _forget_unknown(metrics: dict[str, Any], records: LiveRecords) -> None:
    """Replace metrics that depend on unreported data by null, with the reason."""
    answered = [request for request in records.requests if request.first_token_s is not None]
    if any(request.admitted_s is None for request in answered):
        forget_needing(metrics, Needs.ADMISSION, NO_ADMISSION)
    if any(request.worker < 0 for request in answered):
        forget_needing(metrics, Needs.ADMISSION, NO_WORKER)
    silent = [request for request in answered if request.cached_tokens is None]
    if any(request.status == FINISHED for request in silent):
        forget_needing(metrics, Needs.CACHED, NO_CACHED)
    elif len(silent) > FEW_CUT * len(answered):
        forget_needing(metrics, Needs.CACHED, CACHED_AT_END)
    elif silent:
        metrics["notes"]["cache"] = (
            f"{len(silent):,} of {len(answered):,} answers did not end, so that the server did not "
            "report their cached tokens: the cache hit rate and computed service are of the others"
        )


def _remarks(spec: ExperimentSpec, records: LiveRecords) -> dict[str, str]:
    """Return notes that a reader needs in order to judge the numbers."""
    remarks = {}
    late_ms = lateness_ms(records.requests)["lateness_p99_ms"]
    if late_ms > LATE_MS and spec.request_rate != inf:
        remarks["lateness"] = (
            f"1% of the requests were sent {late_ms:,.0f} ms late or more (up to {LATE_MS:g} is "
            "fine): the load was not the one asked for"
        )
    errors = error_counts(records.requests)
    if errors:
        said = first_messages(records.requests)
        remarks["errors"] = ", ".join(
            f"{number} x {kind}" + (f" ({said[kind]})" if said.get(kind) else "")
            for kind, number in errors.items()
        )
    finished = _finished(records)
    if estimated := _estimated(records):
        remarks["estimated"] = (
            f"the server did not report the tokens of {estimated} of {len(finished)} answers; an "
            "event with output counts as one token there, and a word of the prompt as another"
        )
    if short := sum(map(_is_short, finished)):
        remarks["lengths"] = (
            f"the server ignores min_tokens: {short} of {len(finished)} answers are shorter than "
            "their requests asked for; --output-lengths free does not send it"
        )
    if spec.dataset_path:
        remarks["dataset"] = "prompts are synthetic tokens; only their lengths are the data set's"
    return remarks


def _finished(records: LiveRecords) -> list[RequestRecord]:
    return [request for request in records.requests if request.status == FINISHED]


def _estimated(records: LiveRecords) -> int:
    """Return the number of answers whose tokens the server did not report."""
    return sum(request.estimated for request in _finished(records))


def _is_short(request: RequestRecord) -> bool:
    """Return whether a counted answer is shorter than its request asked for."""
    return not request.estimated and request.output_tokens < (request.min_new_tokens or 0)


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {key: value if isfinite(value) else None for key, value in values.items()}
