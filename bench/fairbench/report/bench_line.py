"""A run's summary as one JSON line, for tools that read the output of sglang.bench_serving.

The line starts with the keys that sglang.bench_serving prints, followed by all summary keys.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.errors import writing
from fairbench.metrics.records import FINISHED, Requests
from fairbench.results.store import Summary

LATENCIES = ("e2e_latency", "ttft", "tpot", "itl")
STATISTICS = ("mean", "median", "std", "p99")


def bench_line(summary: Summary) -> dict[str, Any]:
    """Return the summary as a JSON object, with SGLang's keys before the summary's own keys."""
    duration = summary["duration"]
    inputs, outputs = summary.get("total_input_tokens"), summary.get("total_output_tokens")
    total = None if inputs is None or outputs is None else inputs + outputs
    line = {
        "tag": None,
        "backend": summary.get("backend") or ("sim" if summary.get("simulated") else None),
        "dataset_name": summary.get("workload"),
        "request_rate": None,
        "max_concurrency": None,
        "duration": duration,
        "completed": summary["completed"],
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": summary.get("request_throughput"),
        "input_throughput": _per_second(inputs, duration),
        "output_throughput": summary["output_throughput"],
        "total_throughput": _per_second(total, duration),
    }
    for latency in LATENCIES:
        ours = "e2el" if latency == "e2e_latency" else latency
        for statistic in STATISTICS:
            line[f"{statistic}_{latency}_ms"] = summary.get(f"{statistic}_{ours}_ms")
    # The mean number of concurrent requests is rate times mean latency (Little's law).
    mean_ms, rate = summary.get("mean_e2el_ms"), summary.get("request_throughput")
    line["concurrency"] = None if mean_ms is None or rate is None else rate * mean_ms / 1000
    return {**line, **{key: value for key, value in summary.items() if key not in line}}


def bench_details(requests: Requests) -> dict[str, list[Any]]:
    """Return the fields that ``--output-details`` adds, with one entry per request.

    The gaps between a request's tokens are set to their mean, because only the sum is known. An
    unfinished request has an error and no tokens, as in SGLang's and vLLM's benchmarks.
    """
    done = requests.status == FINISHED
    ttft = np.where(done, requests.first_token_s - requests.arrival_s, 0.0)
    gaps = np.where(done, requests.output_tokens - 1, 0)
    decode = np.where(done, requests.finish_s - requests.first_token_s, 0.0)
    return {
        "input_lens": requests.input_tokens.tolist(),
        "output_lens": np.where(done, requests.output_tokens, 0).tolist(),
        "ttfts": ttft.tolist(),
        "itls": [
            [float(total / count)] * int(count) if count > 0 else []
            for count, total in zip(gaps, decode, strict=True)
        ],
        "start_times": requests.arrival_s.tolist(),
        "errors": ["" if one else "not finished" for one in done],
        "cached_tokens": requests.cached_tokens.tolist(),
    }


def _per_second(amount: float | None, duration_s: float) -> float | None:
    return amount / duration_s if duration_s and amount is not None else None


def check_appendable(path: Path) -> None:
    """Raise UsageError unless lines can be appended to a file; do not create the file."""
    is_new = not path.exists()
    with writing(path, "--output-file"):
        path.open("a").close()
    if is_new:
        path.unlink()


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line to a file, either completely or not at all.

    Raises UsageError if writing to the file fails.
    """
    text = json.dumps(line, allow_nan=False) + "\n"
    with writing(path, "--output-file"), path.open("ab", buffering=0) as file:
        _append_bytes(file, text.encode())


def _append_bytes(file: io.FileIO, data: bytes) -> None:
    """Append the data to the file; if the disk is full, remove the bytes already written."""
    before = file.seek(0, os.SEEK_END) if file.seekable() else None
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        if before is not None:
            with suppress(OSError):
                file.truncate(before)
        raise
