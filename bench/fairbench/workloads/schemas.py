"""Layouts of dataset records that programs can use, and how each layout is read.

The readers take one decoded JSON record and return its texts, or raise ValueError naming the
field. They are the same for local files and for the hub.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from fairbench.files.json_text import inner
from fairbench.workloads.programs.agent import Agent
from fairbench.workloads.programs.chat import Chat
from fairbench.workloads.programs.judge import Judge
from fairbench.workloads.programs.long_qa import LongQA
from fairbench.workloads.programs.samples import Samples
from fairbench.workloads.programs.single import Single
from fairbench.workloads.programs.tool_use import ToolUse
from fairbench.workloads.programs.tree_of_thought import TreeOfThought

# limit on the characters of a Python literal, whose tree takes a hundred times as much memory
MAX_LITERAL = 2**20
INPUT = "input"  # text of an instruction
OUTPUTS = ("output", "response", "completion", "answer")  # names of the answer to a prompt


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a record of real input: a text, and (question, answer) pairs.

    See ``programs.base.Item``. ``text_tokens`` is the length of content that cannot be counted as
    text, such as a video; ``text`` then only distinguishes it from other content.
    """

    text: str
    exchanges: tuple[tuple[str, str], ...] = ()
    text_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """A layout: its kind of program, its form, and the fields that identify it."""

    kind: str
    shape: str
    marks: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], Texts]


def schema_of(record: Mapping[str, Any], kind: str) -> Schema | None:
    """Return the layout of a record, found by its fields; None if none fits.

    A single request may have any record with a prompt; other kinds have layouts of their own.
    """
    known = schemas_for(kind) + list(SCHEMAS) if kind == Single.kind else SCHEMAS
    return next((s for s in known if all(mark in record for mark in s.marks)), None)


def nearest_schema(record: Mapping[str, Any], kind: str) -> Schema:
    """Return the layout for this program kind that is closest to a record."""
    return max(schemas_for(kind), key=lambda s: sum(mark in record for mark in s.marks))


def schemas_for(kind: str) -> list[Schema]:
    """Return the layouts that provide input for a program kind."""
    return [schema for schema in SCHEMAS if schema.kind == kind]


def fields_of(kind: str) -> list[str]:
    """Return the fields that the layouts of a program kind read."""
    optional = (INPUT, *OUTPUTS) if kind == Single.kind else ()
    marks = (mark for schema in schemas_for(kind) for mark in schema.marks)
    return list(dict.fromkeys((*marks, *optional)))


def renamed(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a record in which each field of ``names`` has the value of the named field.

    A name with dots may lead into objects. Raises ValueError for a field that is missing.
    """
    found = dict(record)
    for field, name in names.items():
        value = record[name] if name in record else inner(record, *name.split("."))
        if value is None:
            raise ValueError(f"missing field {name!r}")
        found[field] = value
    return found


def merged(texts: Iterable[Texts]) -> list[Texts]:
    """Merge entries with the same text and all their exchanges (LooGLE has a row per question)."""
    first: dict[str, Texts] = {}
    exchanges: dict[str, list[tuple[str, str]]] = {}
    for entry in texts:
        first.setdefault(entry.text, entry)
        exchanges.setdefault(entry.text, []).extend(entry.exchanges)
    return [replace(entry, exchanges=tuple(exchanges[text])) for text, entry in first.items()]


def _string(record: Mapping[str, Any], field: str, where: str = "") -> str:
    if field not in record:
        raise ValueError(f"missing field {where + field!r}")
    value = record[field]
    if not isinstance(value, str):
        raise ValueError(f"field {where + field!r}: must be a text")
    return value


def _text(record: Mapping[str, Any], field: str) -> str:
    """Return the text that a program is about. Raises ValueError if the text is empty."""
    text = _string(record, field)
    if not text:
        raise ValueError(f"field {field!r}: must not be empty")
    return text


def _records(record: Mapping[str, Any], field: str) -> Sequence[Mapping[str, Any]]:
    value = record[field]
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise ValueError(f"field {field!r}: must be a list of objects")
    if not value:
        raise ValueError(f"field {field!r}: must not be empty")
    return value


def _pairs(record: Mapping[str, Any], field: str, ask: str, reply: str) -> Texts:
    """Return the (ask, reply) texts of a list of objects, without a surrounding text."""
    pairs = [
        (_string(entry, ask, f"{field}[{i}]."), _string(entry, reply, f"{field}[{i}]."))
        for i, entry in enumerate(_records(record, field))
    ]
    return Texts("", tuple(pairs))


def _only(field: str) -> Callable[[Mapping[str, Any]], Texts]:
    """Return the reader of a layout with a single text."""
    return lambda record: Texts(_text(record, field))


def _prompt(record: Mapping[str, Any]) -> Texts:
    return Texts(_text(record, "prompt"), _answered(record))


def _instruction(record: Mapping[str, Any]) -> Texts:
    """Return an instruction with its input, if any, as one prompt."""
    given = record.get(INPUT) or ""
    if not isinstance(given, str):
        raise ValueError(f"field {INPUT!r}: must be a text")
    return Texts("\n".join(filter(None, (_text(record, "instruction"), given))), _answered(record))


def _answered(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the answer that a record has, if any."""
    field = next((name for name in OUTPUTS if record.get(name)), None)
    return () if field is None else (("", _string(record, field)),)


def _document(record: Mapping[str, Any]) -> Texts:
    return Texts(_text(record, "text"), _pairs(record, "qa", "q", "a").exchanges)


def _document_row(record: Mapping[str, Any]) -> Texts:
    pair = (_string(record, "question"), _string(record, "answer"))
    return Texts(_text(record, "context"), (pair,))


def _document_qa_pairs(record: Mapping[str, Any]) -> Texts:
    """Return the texts of LooGLE's first layout on the hub, whose list is a Python literal."""
    listed = record["qa_pairs"]
    if isinstance(listed, str):
        try:
            listed = literal_eval(listed[:MAX_LITERAL])
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            raise ValueError("field 'qa_pairs': must be a list of objects") from None
    pairs = _pairs({"qa_pairs": listed}, "qa_pairs", "Q", "A")
    return Texts(_text(record, "input"), pairs.exchanges)


def _arena(record: Mapping[str, Any]) -> Texts:
    """Return a hub conversation: each user message with the assistant message that follows it."""
    field = "conversation_a"
    messages = [
        (_string(entry, "role", f"{field}[{i}]."), _string(entry, "content", f"{field}[{i}]."))
        for i, entry in enumerate(_records(record, field))
    ]
    pairs = [
        (asked, replied)
        for (role, asked), (next_role, replied) in pairwise(messages)
        if (role, next_role) == ("user", "assistant")
    ]
    if not pairs:
        raise ValueError(
            f"field {field!r}: must hold a user message that is followed by an assistant message"
        )
    return Texts("", tuple(pairs))


def _video(record: Mapping[str, Any]) -> Texts:
    """Return a NExT-QA question with its choices; 30 frames count as 256 tokens [Preble code]."""
    text = _string(record, "frame_count")
    if not text.isdecimal() or not int(text):
        raise ValueError(f"field 'frame_count': {text!r} must be a number of frames")
    choices = [_string(record, f"a{number}") for number in range(5)]
    answer = _string(record, "answer")
    if answer not in ("0", "1", "2", "3", "4"):
        raise ValueError(f"field 'answer': {answer!r} must be the number of a choice")
    asked = " ".join([_string(record, "question"), *choices])
    tokens = max(1, int(text) * 256 // 30)
    return Texts(_text(record, "video"), ((asked, choices[int(answer)]),), tokens)


def _tools(record: Mapping[str, Any]) -> Texts:
    """Return a ToolBench query after its tools' description; the answer is the final text."""
    tools = json.dumps(list(_records(record, "tools")))
    return Texts(tools, ((_text(record, "query"), _string(record, "final")),))


def _trajectory(record: Mapping[str, Any]) -> Texts:
    """Return an agent's messages: each assistant message with the messages that precede it."""
    root, before, exchanges = "", "", []
    for number, entry in enumerate(_records(record, "traj")):
        said = entry.get("content") or json.dumps(entry.get("tool_calls") or "")
        if not isinstance(said, str):
            raise ValueError(f"field 'traj[{number}].content': must be a text")
        if entry.get("role") == "assistant":
            exchanges.append((before, said))
            before = ""
        elif entry.get("role") == "system":
            root += said
        else:
            before += said
    if not root or not exchanges:
        raise ValueError("field 'traj': must hold a system message and an assistant message")
    return Texts(root, tuple(exchanges))


def _react(record: Mapping[str, Any]) -> Texts:
    """Return a ReAct trajectory as one text: lines that begin with ``>`` are the agent's."""
    task, *acts = ("\n" + _text(record, "text")).split("\n>")
    if not acts or not task.strip():
        raise ValueError("field 'text': must hold a task, followed by lines that begin with >")
    exchanges, seen = [], ""
    for act in acts:
        said, _, after = act.partition("\n")
        exchanges.append((seen, said.strip() or ">"))
        seen = after
    return Texts(task.strip(), tuple(exchanges))


# The first layout whose marks a record has applies, so the more specific layouts come first.
SCHEMAS: tuple[Schema, ...] = (
    Schema(
        LongQA.kind,
        "{video, frame_count, question, answer, a0, ..., a4}",
        ("video", "frame_count", "question", "answer"),
        _video,
    ),
    Schema(LongQA.kind, "{text, qa: [{q, a}]}", ("text", "qa"), _document),
    Schema(
        LongQA.kind, "{context, question, answer}", ("context", "question", "answer"), _document_row
    ),
    Schema(LongQA.kind, "{input, qa_pairs: [{Q, A}]}", ("input", "qa_pairs"), _document_qa_pairs),
    Schema(
        Chat.kind,
        "{history: [{user, bot}]}",
        ("history",),
        lambda record: _pairs(record, "history", "user", "bot"),
    ),
    Schema(Chat.kind, "{conversation_a: [{role, content}]}", ("conversation_a",), _arena),
    Schema(TreeOfThought.kind, "{question}", ("question",), _only("question")),
    Schema(ToolUse.kind, "{query, tools, final}", ("query", "tools", "final"), _tools),
    Schema(
        Samples.kind,
        "{prompt, canonical_solution}",
        ("prompt", "canonical_solution"),
        _only("prompt"),
    ),
    Schema(Single.kind, "{prompt} or {prompt, output}", ("prompt",), _prompt),
    Schema(Single.kind, "{instruction, input, output}", ("instruction",), _instruction),
    Schema(Agent.kind, "{traj: [{role, content}]}", ("traj",), _trajectory),
    Schema(Judge.kind, "{text} or a text", ("text",), _only("text")),
    Schema(Single.kind, "a text", ("text",), _only("text")),
    Schema(Agent.kind, "a text of a ReAct trajectory", ("text",), _react),
)
