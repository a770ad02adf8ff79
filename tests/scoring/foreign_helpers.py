"""The same few requests in the formats of different tools."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

# client, start, first token, end (s), input and output tokens; the last request failed
REQUESTS = (
    ("ann", 0.0, 1.0, 3.0, 100, 50),
    ("bob", 1.0, 2.0, 4.0, 100, 100),
    ("ann", 2.0, None, None, 40, 10),
)
FIELDS = ("client", "start", "first_token", "end", "input_tokens", "output_tokens")


def rows(requests=REQUESTS, **changes):
    return [dict(zip(FIELDS, request, strict=True)) | changes for request in requests]


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def columns(records):
    return {name: [record[name] for record in records] for name in records[0]}


def vtc_rows():
    """Return rows of VTC-artifact's run_exp.py, in which -1 means aborted."""
    return [
        {
            "adapter_dir": client,
            "prompt_len": prompt,
            "output_len": output,
            "request_latency": -1 if end is None else end - start,
            "first_token_latency": -1 if first is None else first - start,
            "req_time": start,
        }
        for client, start, first, end, prompt, output in REQUESTS
    ]


def write_plain(path):
    return lines(path / "plain.jsonl", rows())


def write_durations(path):
    """Write plain lines with durations, but without times."""
    names = {"client": "adapter_dir", "start": "req_time", "ttft": "first_token_latency"}
    names |= {"latency": "request_latency", "input_tokens": "prompt_len"}
    names |= {"output_tokens": "output_len"}
    records = [{name: row[theirs] for name, theirs in names.items()} for row in vtc_rows()]
    return lines(path / "durations.jsonl", records)


def write_vtc(path):
    record = {"config": {"num_adapters": 2}, "result": {"responses": vtc_rows()}}
    return lines(path / "all_results_mine.jsonl", [record])


def write_vtc_columns(path):
    made = columns(vtc_rows())
    made["client"] = made.pop("adapter_dir")
    return lines(path / "columns.jsonl", [{"path": "VTC/all_results_mine.jsonl", **made}])


def write_parquet(path):
    records = [
        {
            "client": client,
            "arrival_s": start,
            "first_token_s": first,
            "finish_s": end,
            "input_tokens": prompt,
            "output_tokens": output,
            "status": "refused" if end is None else "finished",
        }
        for client, start, first, end, prompt, output in REQUESTS
    ]
    pq.write_table(pa.Table.from_pylist(records), path / "requests.parquet")
    return path / "requests.parquet"


def bench(requests, **values):
    """Return vLLM's and SGLang's format, on a clock that did not start with the run."""
    made = {
        "input_lens": [r[4] for r in requests],
        "output_lens": [0 if r[3] is None else r[5] for r in requests],
        "ttfts": [0.0 if r[2] is None else r[2] - r[1] for r in requests],
        "itls": [[] if r[3] is None else [(r[3] - r[2]) / 4] * 4 for r in requests],
        "start_times": [7_000.0 + r[1] for r in requests],
        "errors": ["timeout" if r[3] is None else "" for r in requests],
    }
    return made | values


def aiperf_records(client):
    """Return a client's requests as aiperf exports them; bob has a warm-up request."""
    records = []
    if client == "bob":
        records.append(_aiperf("warmup", 0.5, {"request_latency": _ms(100.0)}))
    for owner, start, first, end, read, produced in REQUESTS:
        if owner != client:
            continue
        if first is None:
            error = {"code": 499, "type": "RequestCancellationError", "message": "gone"}
            metrics = {"error_isl": {"value": read, "unit": "tokens"}}
            records.append(_aiperf("profiling", start, metrics, error=error))
            continue
        metrics = {
            "input_sequence_length": {"value": read, "unit": "tokens"},
            "time_to_first_token": _ms((first - start) * 1e3),
            "request_latency": _ms((end - start) * 1e3),
            "inter_chunk_latency": {"value": [1.0, 2.0], "unit": "ms"},
            "output_token_count": {"value": produced - 1, "unit": "tokens"},
            "output_sequence_length": {"value": produced, "unit": "tokens"},
        }
        if client == "bob":
            metrics["usage_prompt_cache_read_tokens"] = {"value": read + 2, "unit": "tokens"}
        records.append(_aiperf("profiling", start, metrics))
    return records


def _ms(value):
    return {"value": value, "unit": "ms"}


def _aiperf(phase, start, metrics, error=None):
    begun = 1_759_813_207_000_000_000 + round(start * 1e9)
    metadata = {
        "session_num": 0,
        "conversation_id": f"talk-{start}",
        "turn_index": 0,
        "request_start_ns": begun,
        "request_end_ns": begun + 10**9,
        "worker_id": f"worker_{start}",
        "benchmark_phase": phase,
        "was_cancelled": error is not None,
    }
    return {"metadata": metadata, "metrics": metrics, "error": error}


def write_aiperf(path, client):
    folder = path / client
    folder.mkdir(exist_ok=True)
    return lines(folder / "profile_export.jsonl", aiperf_records(client))
