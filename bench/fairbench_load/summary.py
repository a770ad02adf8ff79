"""The result of a run on real servers, computed from its records, even after a crash."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.core import ServiceBound
from fairbench.engine.contract import CONTRACTS
from fairbench.errors import DataError, printable, shortened
from fairbench.files.formats import json_file
from fairbench.files.reader import MissingFile
from fairbench.hardware.catalogue import is_known, load_profile
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.metrics.catalogue import forget_needing
from fairbench.metrics.metric import Needs
from fairbench.metrics.records import Facts, Floats, Measurements, TokenGaps
from fairbench.metrics.summary import summarize
from fairbench.metrics.tables import RunResult, Tables
from fairbench.metrics.totals import statistic_of
from fairbench.results.run_facts import cluster_bound, engine_prices, run_facts
from fairbench.results.summary import run_header
from fairbench.schedulers.registry import build_local, build_router
from fairbench.workloads.tokens import load_counter
from fairbench_load.backends.base import Served, time_scale_of
from fairbench_load.driver.drive import DriveResult
from fairbench_load.records import (
    FINISHED,
    REFUSED,
    LiveRecords,
    RequestRecord,
    driver_entries,
    merge,
    read_records,
    tables_of,
)

_MESSAGE = re.compile(r'"(?:message|detail|error)"\s*:\s*"((?:[^"\\]|\\.)*)')
# If the P99 delay of sending requests exceeds 10 ms, the result gets a note.
LATE_MS = 10.0
NO_CACHED = "the server does not report cached tokens"
CACHED_AT_END = (
    "the server reports cached tokens at the end of an answer, and too many answers had not ended"
)
# If more than 5% of all answers did not end, a note says that cached tokens are unknown.
FEW_CUT = 0.05
NO_WORKER = "the router does not say which worker served a request"
NO_ADMISSION = "the server does not report when it admitted requests"


def lateness_ms(requests: Iterable[RequestRecord]) -> Floats:
    """Return how many milliseconds late each request was sent; unsent requests are left out."""
    return np.array(
        [1000 * (r.submit_s - r.arrival_s) for r in requests if r.submit_s is not None], float
    )


def gaps_s(requests: Iterable[RequestRecord]) -> Floats:
    """Return the inter-token gaps in seconds of all finished requests as one array.

    As in SGLang's benchmark, the gap before a chunk is divided equally among the chunk's tokens.
    """
    gaps = [token_gaps_s(r.chunk_s, r.chunk_tokens) for r in requests if r.status == FINISHED]
    return np.concatenate(gaps) if gaps else np.array([])


def token_gaps_s(chunk_s: Sequence[float], chunk_tokens: Sequence[int]) -> Floats:
    """Return the gap before each token after the first chunk, in seconds."""
    tokens = np.array(chunk_tokens[1:], dtype=np.int64)
    gaps: Floats = np.repeat(np.diff(chunk_s) / tokens, tokens)
    return gaps


def error_counts(requests: Iterable[RequestRecord]) -> dict[str, int]:
    """Return the number of requests with each kind of error, the most frequent kind first."""
    kinds = Counter(r.error.partition(":")[0] for r in requests if r.error is not None)
    return dict(kinds.most_common())


def first_messages(requests: Iterable[RequestRecord]) -> dict[str, str]:
    """Return the server's first message for each kind of error."""
    messages: dict[str, str] = {}
    for request in requests:
        if request.error is not None:
            kind, _, said = request.error.partition(":")
            by_server = kind.startswith(("HTTP", "stream error", "no answer"))
            if not messages.get(kind) and by_server:
                said = said.strip()
                # The JSON text of an error may be cut off.
                found = _MESSAGE.search(said) if said.startswith("{") else None
                said = found[1].replace('\\"', '"') if found else " ".join(said.split())
                messages[kind] = printable(shortened(said))
    return messages


def summary_of(
    spec: ExperimentSpec, records: LiveRecords, tables: Tables, result: DriveResult, served: Served
) -> dict[str, Any]:
    """Return the summary as JSON types, with metrics, the experiment, and the server."""
    refused = [request for request in records.requests if request.status == REFUSED]
    # Answers with a status 4xx count as refused, not as failed.
    kinds = error_counts(refused).items()
    failed = sum(number for kind, number in kinds if not kind.startswith("HTTP 4"))
    facts = replace(_facts(spec, result, served), failed=failed)
    metrics = summarize(tables, facts, _measured(records))
    notes: dict[str, str] = metrics["notes"]
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
    return {**header, **metrics, "errors": error_counts(records.requests)}


def _measured(records: LiveRecords) -> Measurements:
    """Return measurements of the driver that no table contains, such as inter-token gaps.

    Requests that still waited for a free slot of the driver when the run ended are left out.
    """
    requests = records.requests
    held_s = [r.held_s for r in requests if r.held_s or r.submit_s is not None]
    # The stored table of requests is sorted by request id.
    rows = sorted(requests, key=lambda record: record.request_id)
    first_s = np.array([row.chunk_s[0] if row.chunk_s else np.nan for row in rows])
    gaps = TokenGaps.after(first_s, [np.diff(row.chunk_s) for row in rows], ())
    return Measurements(
        gaps_s(requests),
        lateness_ms(requests),
        np.array(held_s, float),
        _estimated(records),
        gaps if len(gaps.request) else None,
    )


def _facts(spec: ExperimentSpec, result: DriveResult, served: Served) -> Facts:
    bound, reason = _service_bound(spec, served)
    prices = None  # The GPU time of requests on real servers is not known.
    if served.timing_profile is not None and is_known(served.timing_profile):
        profile = load_profile(served.timing_profile)
        engine = CONTRACTS[spec.engine or DEFAULT_ENGINE](spec.settings, profile)
        prices = engine_prices(engine, profile)
    return run_facts(
        spec,
        spec.client_plans(),
        last_arrival_s=result.last_arrival_s,
        end_s=result.end_s,
        workers=served.workers or spec.dp,
        pool_tokens=served.pool_tokens or 0,
        bound=bound,
        bound_unavailable=reason,
        prices=prices,
    )


def _service_bound(spec: ExperimentSpec, served: Served) -> tuple[ServiceBound | None, str]:
    if served.unbounded:
        return None, served.unbounded
    if served.pool_tokens is None:
        return None, "the size of the KV pool is not known"
    router = build_router(spec.router, spec.settings, spec.dp)
    return cluster_bound(router, build_local(spec.local, spec.settings), spec.dp)


def _forget_unknown(metrics: dict[str, Any], records: LiveRecords) -> None:
    """Set metrics to null, with a reason, if the server did not report the data for them."""
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
            f"{len(silent):,} of {len(answered):,} answers did not end, so the server did not "
            "report their cached tokens; the cache hit rate and computed service describe the "
            "other answers"
        )


def _remarks(spec: ExperimentSpec, records: LiveRecords) -> dict[str, str]:
    """Return notes that readers need to interpret the numbers of the run."""
    remarks: dict[str, str] = {}
    late_ms = statistic_of("p99", lateness_ms(records.requests))
    if late_ms > LATE_MS and spec.request_rate != inf:
        remarks["lateness"] = (
            f"1% of the requests were sent {late_ms:,.0f} ms late or more (up to {LATE_MS:g} is "
            "fine), so the load differed from the load of the experiment"
        )
    errors = error_counts(records.requests)
    if errors:
        said = first_messages(records.requests)
        remarks["errors"] = ", ".join(
            f"{number} x {kind}" + (f" ({said[kind]})" if said.get(kind) else "")
            for kind, number in errors.items()
        )
    finished = _finished_requests(records)
    if estimated := _estimated(records):
        remarks["estimated"] = (
            f"the server did not report the tokens of {estimated} of {len(finished)} answers; an "
            "event with output counts as one token there, and a word of the prompt as another"
        )
    reported = (request for request in finished if not request.estimated)
    if short := sum(one.output_tokens < (one.min_new_tokens or 0) for one in reported):
        remarks["lengths"] = (
            f"the server ignores min_tokens: {short} of {len(finished)} answers are shorter than "
            "their requests demand; --output-lengths free leaves min_tokens out"
        )
    if spec.dataset_path:
        remarks["dataset"] = "prompts are synthetic tokens; only their lengths are the data set's"
    return remarks


def _finished_requests(records: LiveRecords) -> list[RequestRecord]:
    return [request for request in records.requests if request.status == FINISHED]


def _estimated(records: LiveRecords) -> int:
    return sum(request.estimated for request in _finished_requests(records))


SERVED_FILE = "served.json"


def write_served(folder: Path, served: Served) -> None:
    """Write the description of the server to the folder of the records."""
    (folder / SERVED_FILE).write_bytes(msgspec.json.encode(served) + b"\n")


def outcome(
    spec: ExperimentSpec,
    folder: Path,
    driven: DriveResult,
    served: Served,
    *,
    ended: Sequence[str] = (),
    broken: str = "",
    remarks: Mapping[str, str] | None = None,
) -> RunResult:
    """Return the result of a run, computed from the records in ``folder``.

    ``ended`` are the names of the workers that ended during the run. ``broken`` is the reason why
    the run had to end early, or "". If the run ended early or no request succeeded, the run is
    marked as incomplete, and a note says why. ``remarks`` are added to the summary's notes.
    """
    records = read_records(folder)
    tables = tables_of(records, [plan.client for plan in spec.client_plans()])
    summary = summary_of(spec, records, tables, driven, served)
    notes = summary["notes"]
    notes |= remarks or {}
    if ended:
        notes["workers"] = f"{', '.join(ended)} ended during the run"
    if broken:
        lost = sum(request.status != FINISHED for request in records.requests)
        notes["complete"] = (
            f"{broken}; {lost} requests have no complete answer, and no more requests were sent"
        )
    elif driven.complete and records.requests and not summary["completed"]:
        notes["complete"] = f"no request succeeded ({notes.get('errors', 'none was answered')})"
    summary["complete"] = driven.complete and "complete" not in notes
    about: dict[str, Any] = {"hosts": list(served.hosts)} if served.hosts else {}
    if served.async_scheduling is not None:
        about["async_scheduling"] = served.async_scheduling
    if drivers := driver_entries(folder):
        about["drivers"] = drivers
    return RunResult(*tables.columns()[:3], summary, summary["complete"], about=about)


def recover(spec: ExperimentSpec, folder: Path) -> RunResult:
    """Return the result of a live run that was killed.

    Raises DataError if the records cannot be read.
    """
    path = folder / SERVED_FILE
    try:
        served = msgspec.convert(json_file(path, f"{path}"), Served)
    except MissingFile:
        raise DataError(
            f"{folder}: the servers of this run did not become ready, so there are no results"
        ) from None
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: {error}") from None
    merge(folder, time_scale_of(spec))
    return outcome(spec, folder, recovered(read_records(folder)), served)


def recovered(records: LiveRecords) -> DriveResult:
    """Return the result of a killed run; the run counts as ended at its last record.

    Requests and programs that were in progress when the run was killed have no record.
    """
    arrivals = [program.arrival_s for program in records.programs]
    ends = [program.finish_s for program in records.programs]
    ends += [request.finish_s for request in records.requests]
    return DriveResult(
        complete=False,
        end_s=max([*arrivals, *(end_s for end_s in ends if end_s is not None)], default=0.0),
        last_arrival_s=max(arrivals, default=0.0),
    )
