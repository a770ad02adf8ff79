"""Traces of Alibaba Cloud's Bailian: turns of chats, times in seconds, blocks of 16 tokens.

JSON lines of ``chat_id``, ``parent_chat_id`` (-1 for none), ``timestamp``, ``input_length``,
``output_length``, ``type``, ``turn`` and ``hash_ids``, as alibaba-edu/qwen-bailian-usagetraces-anon
describes them. Each turn has a ``chat_id`` of its own: a program is a turn without a parent and all
that go on from there. There are no clients; ``--clients-from type`` takes the types for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairbench.errors import DataError
from fairbench.files.json_text import Place
from fairbench.files.times import is_missing
from fairbench.workloads.traces.format import Asked, PlacedRow, Record
from fairbench.workloads.traces.formats.plain import Plain
from fairbench.workloads.traces.missing import OWN

SESSION = f"{OWN}session"
NONE = "-1"  # the parent of the first turn


class Bailian(Plain):
    """A format recognised by its column ``parent_chat_id``."""

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]:
        yield from super().rows(_with_sessions(records), asked)


def _with_sessions(records: Iterator[Place]) -> Iterator[Place]:
    """Yield the records, each with the first turn of its chat as the session.

    A chat whose beginning is not in the file is called after the turn that is missing.
    """
    first: dict[str, str] = {}
    for where, record in records:
        if not isinstance(record, Mapping) or not {"chat_id", "parent_chat_id"} <= set(record):
            raise DataError(f"{where}: chat_id, parent_chat_id: missing, or of the wrong type")
        yield Place(where, _with_session(record, first))


def _with_session(record: Record, first: dict[str, str]) -> dict[str, Any]:
    chat, parent = str(record["chat_id"]), record["parent_chat_id"]
    alone = str(parent) == NONE or (not isinstance(parent, list | dict) and is_missing(parent))
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
