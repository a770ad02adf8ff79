"""Known formats of request records, in the order in which fairbench tries them on a file.

This module also defines the formats in which each record is a request, and the formats in which a
run has one list for each field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fairbench.errors import DataError, unknown_name
from fairbench.files.formats import inner
from fairbench.workloads.tokens import estimated_tokens
from fairbench_logs.records.benchmark_exports import TOOLS
from fairbench_logs.records.cells import is_missing
from fairbench_logs.records.column_names import OWN
from fairbench_logs.records.layout import (
    Layout,
    Object,
    Record,
    Run,
    first_given,
    has_all,
    objects_in,
)
from fairbench_logs.records.service_logs import EXPORTS

# ``VTC`` maps fields to the columns of VTC-artifact's ``run_exp.py`` (Ying1123/VTC-artifact at
# 192c2e2), and ``SERVING`` maps them to the columns of ``fairbench validate``. ``VLLM`` has the
# columns of ``vllm bench serve --save-result --save-detailed`` (vllm/benchmarks/serve.py) and of
# sglang.bench_serving, which exports no start times.
VTC = {"client": "client", "start": "req_time", "ttft": "first_token_latency"}
VTC |= {"latency": "request_latency", "input_tokens": "prompt_len", "output_tokens": "output_len"}
VLLM = {"start": "start_times", "input_tokens": "input_lens", "output_tokens": "output_lens"}
VLLM |= {"ttft": "ttfts", "itls": "itls", "cached_tokens": "cached_tokens", "error": "errors"}
# Files of answers that were not streamed have latencies instead of gaps between tokens.
WHOLE = {"latency": "latencies"}
SERVING = {"start": "submit_s", "client": "client", "input_tokens": "prompt_tokens"}
SERVING |= {"output_tokens": "output_tokens", "ttft": "ttft_s", "latency": "latency_s"}
SERVING |= {"error": "error"}
NEEDED = ("start", "input_tokens", "output_tokens")
IN_SECONDS = dict.fromkeys(("start", "ttft", "latency", "itls", "end", "first_token"), "s")


def _run_of_lists(item: Object, where: str, columns: Mapping[str, str], *, at_once: bool) -> Run:
    """Return the requests of a run that is recorded as one list of values for each column."""
    lists = {name: item[name] for name in columns.values() if name in item}
    for field in NEEDED[at_once:]:
        if columns[field] not in lists:
            raise DataError(f"{where}: the JSON list {columns[field]!r} (field {field}) is missing")
    first = lists[columns["input_tokens"]]
    length = len(first) if isinstance(first, list) else 0
    for field, name in columns.items():
        if name in lists and (not isinstance(lists[name], list) or len(lists[name]) != length):
            raise DataError(
                f"{where}: {name!r} ({field}) must be a list as long as the other lists"
            )
    # ``--map`` may name any other list with a value for each request.
    others = {
        name: one for name, one in item.items() if isinstance(one, list) and len(one) == length
    }
    lists = others | lists
    rows = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    if at_once:
        rows = [{**row, columns["start"]: 0.0} for row in rows]
    completed = item.get("completed")
    return Run(rows, completed if type(completed) is int else None)


def _columnwise(
    name: str, columns: Mapping[str, str], inside: str = "", *, at_once: bool = False, **more: Any
) -> Layout:
    """Return a file format in which each JSON object is a run with a list of values per column.

    The key ``inside``, if given, has the lists.
    """

    def lists_of(item: Record) -> Object:
        found = item.get(inside) if inside else item
        return dict(found) if isinstance(found, Mapping) else {}

    def fits_lists(first: Record) -> bool:
        lists = lists_of(first)
        return all(isinstance(lists.get(columns[field]), list) for field in NEEDED[at_once:])

    def runs(objects: list[Object], where: str) -> list[Callable[[], Run]]:
        return [
            partial(_run_of_lists, lists_of(item), "", columns, at_once=at_once) for item in objects
        ]

    used = {field: column for field, column in columns.items() if field in IN_SECONDS}
    units = {field: IN_SECONDS[field] for field in used}
    return Layout(name, fits_lists, columns, units, runs=runs, exact=True, at_once=at_once, **more)


def _with_session(first: dict[str, str], record: Record, where: str) -> Iterator[Object]:
    """Yield a turn of a chat, with the id of the chat's first turn as the session.

    If the file lacks the first turn, the session is named after the earliest known ``chat_id``.
    """
    if not {"chat_id", "parent_chat_id"} <= record.keys():
        raise DataError(f"{where}: must have the keys chat_id and parent_chat_id")
    chat, parent = str(record["chat_id"]), record["parent_chat_id"]
    alone = str(parent) == "-1" or is_missing(parent)
    first[chat] = chat if alone else first.get(str(parent), str(parent))
    yield {**record, f"{OWN}session": first[chat]}


# Traces of Alibaba Cloud's Bailian (alibaba-edu/qwen-bailian-usagetraces-anon) have times in
# seconds, blocks of 16 tokens, and a ``chat_id`` for each turn of a chat. A turn without a parent
# (-1) and all turns that continue it form a program. Bailian's traces name no clients; with
# ``--clients-from type``, the types of requests count as clients.
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
    # Later turns of a session may state a delay after the previous answer, and no arrival time.
    timed = "timestamp" in first or ("session_id" in first and "time" not in first)
    named = {"input_length", "output_length", "hash_ids"} <= first.keys()
    return timed and named and not dated and not FOREIGN & first.keys()


# Mooncake's traces (FAST25-release/traces of kvcache-ai/Mooncake at 3b5a594) have blocks of 512
# tokens; each number in ``hash_ids`` identifies a block and all blocks before it. Many requests of
# Mooncake's traces arrive at the same time; ``--trace-spread`` spreads such requests over time.
# Mooncake's traces name no clients.
MOONCAKE = Layout("mooncake", _is_mooncake, unit="ms", block_size=512)

# Format ``agent`` has the form of agents' sessions in LMCache/lmcache-agent-trace (16a14ad) and in
# Exgentic's trace (inference-sim/inference-sim, c358946). Equal block ids mean equal blocks, even
# in different sessions of a file. ``src`` names the collection of a session; each collection counts
# as one client. A collection's sessions were recorded on different days, so they are replayed one
# after another.
AGENT = Layout(
    "agent",
    has_all("t", "session", "step", "input_length", "output_length", "hash_ids"),
    {"client": "src"},
    block_size=16,
)
# The trace of Chatbot Arena, from which VTC-artifact draws a sample ([VTC] §5.3), has the format
# ``arena``. In this trace, each model is a client. Arrivals of kind ``trace`` may also use the
# format ``arena``.
ARENA = Layout("arena", has_all("t", "client", "prompt_len", "output_len"), unit="s")


def _is_message(value: Any) -> bool:
    known = isinstance(value, Mapping) and isinstance(value.get("role"), str)
    return known and isinstance(value.get("content"), str | None)


def _answers(record: Record, where: str) -> Iterator[Object]:
    """Yield a request for each answer in a record, which holds one or two conversations.

    Each request arrives at the record's time, and the requests of a conversation form a session.
    Each prompt begins with the model's name, because different models share no KV cache.
    """
    facts = {key: one for key, one in record.items() if not isinstance(one, list | Mapping)}
    name = first_given(record.get("question_id"), record.get("conversation_id"), where)
    for key in sorted(record.keys() & SIDES):
        model, messages = record.get(SIDES[key]), record[key]
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise DataError(f"{where}: {key}: must be a list of messages with role and content")
        texts = [one.get("content") or "" for one in messages]
        answers = [n for n, one in enumerate(messages) if one["role"] == "assistant"]
        if not messages or answers[-1:] != [len(messages) - 1]:
            answers.append(len(messages))  # The unanswered last message becomes a request, too.
        for at in answers:
            yield {
                **facts,
                f"{OWN}client": model,
                f"{OWN}session": f"{name} {key}",
                f"{OWN}input_tokens": _tokens("".join(texts[:at])),
                f"{OWN}output_tokens": _tokens("".join(texts[at : at + 1])),
                f"{OWN}text": [model, *messages[:at]] if at else None,
            }


def _tokens(text: str) -> int:
    return estimated_tokens(text) if text else 0


SIDES = {"conversation": "model", "conversation_a": "model_a", "conversation_b": "model_b"}
ROW_FIELDS = ("client", "session", "input_tokens", "output_tokens", "text")
# Rows of ``arena`` come from lmsys/chatbot_arena_conversations, or from logs of conversations that
# FastChat's clean_battle_data.py and clean_chat_data.py write (lm-sys/FastChat,
# fastchat/serve/monitor). ``tstamp`` is the time of the user's vote or, in data without votes, the
# end of the last answer.
ARENA_ROWS = Layout(
    "arena",
    lambda first: (
        isinstance(first.get("conversation_a"), list)
        or ("tstamp" in first and isinstance(first.get("conversation"), list))
    ),
    {"start": "tstamp"} | {name: f"{OWN}{name}" for name in ROW_FIELDS},
    spread=lambda: _answers,
    unit="s",
    exact=True,
)


def _has_text_columns(needs: tuple[str, ...]) -> Callable[[Record], bool]:
    has_needed = has_all(*needs)
    return lambda first: has_needed(first) and all(isinstance(one, str) for one in first.values())


# Azure's LLM inference traces of 2023 and 2024 (Azure/AzurePublicDataset at b469a11,
# AzureLLMInferenceDataset2023.md) name no clients.
AZURE = Layout("azure", _has_text_columns(("TIMESTAMP", "ContextTokens", "GeneratedTokens")))
# Release 2.0 of the traces of HPMLL/BurstGPT has conversations and durations; release 1.1 lacks
# them. Failed requests have no response tokens. With ``--clients-from Model``, BurstGPT's two
# models are clients.
BURSTGPT = Layout(
    "burstgpt",
    _has_text_columns(("Timestamp", "Request tokens", "Response tokens", "Log Type")),
    {"latency": "Elapsed time"},
    unit="s",
)
# Files ``all_results*.jsonl`` of VTC-artifact contain measured runs. A request without an answer
# was refused by the server.
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
    lambda first: any(map(has_all("req_time", "prompt_len"), objects_in(_responses(first))[:1])),
    {**VTC, "client": "adapter_dir"},
    dict.fromkeys(("start", "ttft", "latency"), "s"),
    runs=_vtc_runs,
    exact=True,
    uncached=True,
    refuses=True,
)


# ``fairbench validate`` reads measured runs of real servers in these formats, one run per line.
SERVING_RUNS = _columnwise("serving", SERVING, "columns")
VLLM_RUNS = _columnwise("vllm", VLLM | WHOLE)
SGLANG_RUNS = _columnwise("sglang", VLLM | WHOLE, at_once=True)

_OWN = {"start": "arrival_s", "first_token": "first_token_s", "end": "finish_s"}
_OWN |= {"admitted": "admitted_s", "session": "program_id", "client": "client"}
_OWN |= {name: name for name in ("input_tokens", "output_tokens", "worker", "cached_tokens")}
_OWN |= {"status": "status", "error": "error"}
# fairbench stores the requests of its own runs in this format.
FAIRBENCH = Layout(
    "fairbench",
    has_all("client", "arrival_s", "first_token_s", "finish_s", "input_tokens", "output_tokens"),
    _OWN,
    exact=True,
    keeps_clock=True,
)


PLAIN = Layout("lines")
"""The format of records in which fairbench recognises every column by its common name."""
LOOKED_AT = 100

LAYOUTS: tuple[Layout, ...] = (
    *(AGENT, BAILIAN, MOONCAKE, AZURE, BURSTGPT, ARENA_ROWS, ARENA, *EXPORTS, *TOOLS),
    *(VTC_RESPONSES, VTC_COLUMNS, SERVING_RUNS, VLLM_RUNS, SGLANG_RUNS, FAIRBENCH, PLAIN),
)

NAMES = tuple(dict.fromkeys(one.name for one in reversed(LAYOUTS)))

OURS = ("client", "start", "input_tokens", "output_tokens")


def kinds_of(records: Sequence[Record]) -> list[Record]:
    """Return the first record for each distinct set of keys."""
    return list({tuple(one): one for one in reversed(records)}.values())[::-1]


def layout_of(
    name: str | None, records: Iterable[Record], calls: Mapping[str, str] | None = None
) -> Layout:
    """Return the named format or, without a name, the first format that fits one of the records.

    ``calls`` maps format names of a command to layout names of this module. Raises UsageError if
    the name of the format is unknown.
    """
    seen = list(records)
    if name is not None:
        called = {name, (calls or {}).get(name, name)}
        named = [one for one in LAYOUTS if one.name in called]
        if not named:
            raise unknown_name("layout", name, NAMES)
        right = (one for one in named if any(map(one.fits, seen)))
        return next(right, named[-1])
    for record in seen:
        first = "first_token" in record or "ttft" in record
        last = "end" in record or "latency" in record or "itls" in record
        if first and last and all(name in record for name in OURS):
            return PLAIN
        for one in LAYOUTS:
            if one.fits(record):
                return one
    return PLAIN
