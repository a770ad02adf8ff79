"""Traces with hashed blocks of prompts: Bailian and Mooncake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from fairbench.errors import DataError
from fairbench.files.json_text import Place
from fairbench.files.times import is_missing
from fairbench.workloads.traces.cells import OWN
from fairbench.workloads.traces.format import Asked, PlacedRow, Record
from fairbench.workloads.traces.formats.tables import Plain

SESSION = f"{OWN}session"
NONE = "-1"  # the parent id of a first turn


class Bailian(Plain):
    """Traces of Alibaba Cloud's Bailian, recognised by the column ``parent_chat_id``.

    The files are JSON lines with turns of chats, as alibaba-edu/qwen-bailian-usagetraces-anon
    describes them, with times in seconds and blocks of 16 tokens. Each turn has its own
    ``chat_id``. A program is a turn without a parent (-1) with all its continuations. The traces
    have no clients; ``--clients-from type`` uses the types as clients.
    """

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]:
        yield from super().rows(_with_sessions(records), asked)


def _with_sessions(records: Iterator[Place]) -> Iterator[Place]:
    """Yield the records, each with the first turn of its chat as the session.

    A chat whose beginning is not in the file is named after the missing turn.
    """
    first: dict[str, str] = {}
    for where, record in records:
        if not isinstance(record, Mapping) or not {"chat_id", "parent_chat_id"} <= set(record):
            raise DataError(f"{where}: chat_id, parent_chat_id: missing, or of the wrong type")
        yield Place(where, _with_session(record, first))


def _with_session(record: Record, first: dict[str, str]) -> dict[str, Any]:
    chat, parent = str(record["chat_id"]), record["parent_chat_id"]
    alone = str(parent) == NONE or is_missing(parent)
    first[chat] = chat if alone else first.get(str(parent), str(parent))
    return {**record, SESSION: first[chat]}


BAILIAN = Bailian(
    "bailian",
    needs=(
        *("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"),
        "hash_ids",
    ),
    usual={"session": SESSION},
    unit="s",
    block_size=16,
)


FOREIGN = frozenset({"client", "session", "block_size", "time"})
SINCE_1970_S = 10**9


class Mooncake(Plain):
    """Mooncake's traces, recognised by their columns and by times that can be milliseconds.

    The files are JSON lines with lengths and blocks of 512 tokens; ``hash_ids`` identify blocks
    together with all blocks before them (FAST25-release/traces of kvcache-ai/Mooncake at 3b5a594).
    Many requests have equal times; ``--trace-spread`` separates them. The traces have no clients.
    With format ``mooncake``, all times are in seconds if the first one can only be seconds since
    1970.
    """

    def fits(self, first: Record) -> bool:
        # Turns of sessions may have a delay after the answer instead of a time.
        named = (
            {"timestamp": 0, **first} if "session_id" in first and "time" not in first else first
        )
        return super().fits(named) and not _since_1970(first) and not FOREIGN & set(first)

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]:
        first = next(records, None)
        if first is None:
            return
        whole = chain((first,), records)
        if isinstance(first[1], Mapping) and _since_1970(first[1]):
            yield from Plain("mooncake", block_size=self.block_size).rows(whole, asked)
        else:
            yield from super().rows(whole, asked)


def _since_1970(first: Record) -> bool:
    at = first.get("timestamp")
    return isinstance(at, int | float) and SINCE_1970_S <= at < 100 * SINCE_1970_S


MOONCAKE = Mooncake(
    "mooncake",
    needs=("timestamp", "input_length", "output_length", "hash_ids"),
    unit="ms",
    block_size=512,
)
