"""Formats of one record a request, and of runs with a list for each field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from fairbench.errors import DataError
from fairbench.files.json_text import inner
from fairbench.files.times import is_missing
from fairbench.records.layout import Layout, Object, Record, Run, has_all
from fairbench.records.names import OWN

# Columns of measured runs, by field: of VTC-artifact's ``run_exp.py`` (Ying1123/VTC-artifact at
# 192c2e2), and of ``vllm bench serve --save-result --save-detailed`` (vllm/benchmarks/serve.py).
# sglang.bench_serving has the names of the latter, but no times.
VTC = {"client": "client", "start": "req_time", "ttft": "first_token_latency"}
VTC |= {"latency": "request_latency", "input_tokens": "prompt_len", "output_tokens": "output_len"}
VLLM = {"start": "start_times", "input_tokens": "input_lens", "output_tokens": "output_lens"}
VLLM |= {"ttft": "ttfts", "itls": "itls", "cached_tokens": "cached_tokens", "error": "errors"}
WHOLE = {"latency": "latencies"}  # instead of gaps, if the answer was not streamed
SERVING = {"start": "submit_s", "client": "client", "input_tokens": "prompt_tokens"}
SERVING |= {"output_tokens": "output_tokens", "ttft": "ttft_s", "latency": "latency_s"}
SERVING |= {"error": "error"}
NEEDED = ("start", "input_tokens", "output_tokens")
IN_SECONDS = dict.fromkeys(("start", "ttft", "latency", "itls", "end", "first_token"), "s")


def _run(item: Object, where: str, columns: Mapping[str, str], *, at_once: bool) -> Run:
    """Return the requests of a run that has a list for each of these columns."""
    lists = {name: item[name] for name in columns.values() if name in item}
    for field in NEEDED[at_once:]:
        if columns[field] not in lists:
            raise DataError(f"{where}: missing {columns[field]!r} ({field})")
    first = lists[columns["input_tokens"]]
    length = len(first) if isinstance(first, list) else 0
    for field, name in columns.items():
        if name in lists and (not isinstance(lists[name], list) or len(lists[name]) != length):
            raise DataError(
                f"{where}: {name!r} ({field}) must be a list as long as the other lists"
            )
    rows = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    if at_once:
        rows = [{**row, columns["start"]: 0.0} for row in rows]
    completed = item.get("completed")
    return Run(rows, completed if type(completed) is int else None)


def _columnwise(
    name: str, columns: Mapping[str, str], inside: str = "", *, at_once: bool = False, **more: Any
) -> Layout:
    """Return the layout of files with a run per object, whose lists are in the key ``inside``."""

    def lists_of(item: Record) -> Object:
        found = item.get(inside) if inside else item
        return dict(found) if isinstance(found, Mapping) else {}

    def fits(first: Record) -> bool:
        lists = lists_of(first)
        return all(isinstance(lists.get(columns[field]), list) for field in NEEDED[at_once:])

    def runs(objects: list[Object], where: str) -> list[Callable[[], Run]]:
        return [partial(_run, lists_of(item), "", columns, at_once=at_once) for item in objects]

    used = {field: column for field, column in columns.items() if field in IN_SECONDS}
    units = {field: IN_SECONDS[field] for field in used}
    return Layout(name, fits, columns, units, runs=runs, exact=True, at_once=at_once, **more)


def _with_session(first: dict[str, str], record: Record, where: str) -> Iterator[Object]:
    """Yield a turn of a chat with the chat's first turn as its session.

    A chat whose beginning is not in the file is named after the missing turn.
    """
    if not {"chat_id", "parent_chat_id"} <= record.keys():
        raise DataError(f"{where}: chat_id, parent_chat_id: missing, or of the wrong type")
    chat, parent = str(record["chat_id"]), record["parent_chat_id"]
    alone = str(parent) == "-1" or is_missing(parent)
    first[chat] = chat if alone else first.get(str(parent), str(parent))
    yield {**record, f"{OWN}session": first[chat]}


# Traces of Alibaba Cloud's Bailian, as alibaba-edu/qwen-bailian-usagetraces-anon describes them:
# turns of chats, each with its own ``chat_id``, with times in seconds and blocks of 16 tokens. A
# program is a turn without a parent (-1) with all its continuations. The traces have no clients;
# ``--clients-from type`` uses the types as clients.
BAILIAN = Layout(
    "bailian",
    has_all(
        *("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")
    ),
    {"session": f"{OWN}session"},
    spread=lambda: partial(_with_session, {}),
    unit="s",
    block_size=16,
)

FOREIGN = frozenset({"client", "session", "block_size", "time"})
SINCE_1970_S = 10**9


def _is_mooncake(first: Record) -> bool:
    at = first.get("timestamp")
    dated = isinstance(at, int | float) and SINCE_1970_S <= at < 100 * SINCE_1970_S
    # Turns of sessions may have a delay after the answer instead of a time.
    timed = "timestamp" in first or ("session_id" in first and "time" not in first)
    named = {"input_length", "output_length", "hash_ids"} <= first.keys()
    return timed and named and not dated and not FOREIGN & first.keys()


# Mooncake's traces have lengths and blocks of 512 tokens; ``hash_ids`` identify blocks together
# with all blocks before them (FAST25-release/traces of kvcache-ai/Mooncake at 3b5a594). Many
# requests have equal times; ``--trace-spread`` separates them. The traces have no clients.
MOONCAKE = Layout("mooncake", _is_mooncake, unit="ms", block_size=512)

# Sessions of agents in the form of LMCache/lmcache-agent-trace (at 16a14ad) and of Exgentic
# (inference-sim/inference-sim at c358946), with common block identities for all. ``src`` names the
# collection of a session, and is the client. Sessions were recorded on different days: those of one
# source follow each other in recorded order.
AGENT = Layout(
    "agent",
    has_all("t", "session", "step", "input_length", "output_length", "hash_ids"),
    {"client": "src"},
    block_size=16,
)
# The trace of Chatbot Arena that VTC-artifact samples ([VTC] §5.3), with a model as a client;
# ``arrivals`` of kind ``trace`` read the same trace.
ARENA = Layout("arena", has_all("t", "client", "prompt_len", "output_len"), unit="s")


def _texts(needs: tuple[str, ...]) -> Callable[[Record], bool]:
    """Return a test for rows of CSV with these columns."""
    fits = has_all(*needs)
    return lambda first: fits(first) and all(isinstance(one, str) for one in first.values())


# Azure's LLM inference traces of 2023 and 2024, without clients: Azure/AzurePublicDataset at
# b469a11, AzureLLMInferenceDataset2023.md.
AZURE = Layout("azure", _texts(("TIMESTAMP", "ContextTokens", "GeneratedTokens")))
# HPMLL/BurstGPT (releases 1.1 and 2.0), with conversations and durations in later releases:
# failures have no response tokens. ``--clients-from Model`` uses the two models as clients.
BURSTGPT = Layout(
    "burstgpt",
    _texts(("Timestamp", "Request tokens", "Response tokens", "Log Type")),
    {"latency": "Elapsed time"},
    unit="s",
)
# Runs measured by VTC-artifact, ``all_results*.jsonl``. Without an answer a request was refused.
VTC_COLUMNS = _columnwise("vtc-columns", VTC, uncached=True, refuses=True)


def _responses(item: Record) -> list[Object]:
    rows = inner(item, "result", "responses")
    return rows if isinstance(rows, list) else []


def _vtc_runs(objects: list[Object], where: str) -> list[Run]:
    found = [Run(_responses(item)) for item in objects]
    if not all(isinstance(row, dict) for run in found for row in run.requests):
        raise DataError(f"{where}: every request must be a JSON object")
    return found


VTC_RESPONSES = Layout(
    "vtc",
    lambda first: any(map(has_all("req_time", "prompt_len"), _dicts(_responses(first))[:1])),
    {**VTC, "client": "adapter_dir"},
    dict.fromkeys(("start", "ttft", "latency"), "s"),
    runs=_vtc_runs,
    exact=True,
    uncached=True,
    refuses=True,
)


def _dicts(rows: list[Object]) -> list[Object]:
    return [row for row in rows if isinstance(row, dict)]


# Runs measured on servers, one run per line, which ``fairbench validate`` also reads.
SERVING_RUNS = _columnwise("serving", SERVING, "columns")
VLLM_RUNS = _columnwise("vllm", VLLM | WHOLE)
SGLANG_RUNS = _columnwise("sglang", VLLM | WHOLE, at_once=True)

_OWN = {"start": "arrival_s", "first_token": "first_token_s", "end": "finish_s"}
_OWN |= {"admitted": "admitted_s", "session": "program_id", "client": "client"}
_OWN |= {name: name for name in ("input_tokens", "output_tokens", "worker", "cached_tokens")}
_OWN |= {"status": "status", "error": "error"}
# The requests of a stored run of fairbench.
FAIRBENCH = Layout(
    "fairbench",
    has_all("client", "arrival_s", "first_token_s", "finish_s", "input_tokens", "output_tokens"),
    _OWN,
    exact=True,
    keeps_clock=True,
)
