"""Real input for programs: token lengths of records in files and Hugging Face data sets.

Each ``Schema`` describes one layout of records, in local files and on the hub alike.
``Schema.read`` returns the texts of a record, or raises ValueError with the name of a wrong field.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.formats import csv_rows, inner, json_file, json_lines, read_parquet
from fairbench.streams import stream
from fairbench.workloads.items import Item
from fairbench.workloads.programs.agent import Agent
from fairbench.workloads.programs.chat import Chat
from fairbench.workloads.programs.judge import Judge
from fairbench.workloads.programs.long_qa import LongQA
from fairbench.workloads.programs.samples import Samples
from fairbench.workloads.programs.single import Single
from fairbench.workloads.programs.tool_use import ToolUse
from fairbench.workloads.programs.tree_of_thought import TreeOfThought
from fairbench.workloads.tokens import TokenCounter, load_counter

# Longer Python literals are cut, because a parsed tree takes 100 times the memory of its text.
MAX_LITERAL = 2**20
INPUT = "input"
OUTPUTS = ("output", "response", "completion", "answer")


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a record: a main text (see ``Item``), and (question, answer) pairs.

    If the content is not text (a video, for example), ``text`` only identifies the content, and
    ``text_tokens`` is the content's length in tokens.
    """

    text: str
    exchanges: tuple[tuple[str, str], ...] = ()
    text_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """A layout of data records, from which programs of kind ``kind`` take their input.

    A record has this layout if it has all fields in ``marks``. The function ``read`` returns the
    texts of a record, and ``shape`` describes the layout in error messages.
    """

    kind: str
    shape: str
    marks: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], Texts]


def schema_of(record: Mapping[str, Any], kind: str) -> Schema | None:
    """Return the first layout that fits a record, or None if no layout fits.

    For programs of kind ``single``, layouts of kind ``single`` are tried before all others.
    """
    known = schemas_for(kind) + list(SCHEMAS) if kind == Single.kind else SCHEMAS
    return next((s for s in known if all(mark in record for mark in s.marks)), None)


def nearest_schema(record: Mapping[str, Any], kind: str) -> Schema:
    """Return the layout, among those of ``kind``, with the most fields in common with a record."""
    return max(schemas_for(kind), key=lambda s: sum(mark in record for mark in s.marks))


def schemas_for(kind: str) -> list[Schema]:
    """Return the layouts of data set records from which programs of kind ``kind`` can be made."""
    return [schema for schema in SCHEMAS if schema.kind == kind]


def fields_of(kind: str) -> list[str]:
    """Return the data set fields that the layouts of a program kind read."""
    optional = (INPUT, *OUTPUTS) if kind == Single.kind else ()
    marks = (mark for schema in schemas_for(kind) for mark in schema.marks)
    return list(dict.fromkeys((*marks, *optional)))


def renamed(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of a record with new fields; ``names`` maps new fields to source fields.

    A name with dots, such as ``a.b``, selects a field of a nested object. Raises ValueError if a
    source field is missing.
    """
    found = dict(record)
    for field, name in names.items():
        value = record[name] if name in record else inner(record, *name.split("."))
        if value is None:
            raise ValueError(f"missing field {name!r}")
        found[field] = value
    return found


def merged(texts: Iterable[Texts]) -> list[Texts]:
    """Merge entries with equal texts into one entry with all their (question, answer) pairs.

    In LooGLE, for example, the record of each question repeats the whole document.
    """
    first: dict[str, Texts] = {}
    exchanges: dict[str, list[tuple[str, str]]] = {}
    for entry in texts:
        first.setdefault(entry.text, entry)
        exchanges.setdefault(entry.text, []).extend(entry.exchanges)
    return [replace(entry, exchanges=tuple(exchanges[text])) for text, entry in first.items()]


def _string_field(record: Mapping[str, Any], field: str, where: str = "") -> str:
    if field not in record:
        raise ValueError(f"missing field {where + field!r}")
    value = record[field]
    if not isinstance(value, str):
        raise ValueError(f"field {where + field!r}: must be a string")
    return value


def _text_field(record: Mapping[str, Any], field: str) -> str:
    text = _string_field(record, field)
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
    pairs = [
        (_string_field(entry, ask, f"{field}[{i}]."), _string_field(entry, reply, f"{field}[{i}]."))
        for i, entry in enumerate(_records(record, field))
    ]
    return Texts("", tuple(pairs))


def _only(field: str) -> Callable[[Mapping[str, Any]], Texts]:
    return lambda record: Texts(_text_field(record, field))


def _instruction(record: Mapping[str, Any]) -> Texts:
    given = record.get(INPUT) or ""
    if not isinstance(given, str):
        raise ValueError(f"field {INPUT!r}: must be a string")
    return Texts(
        "\n".join(filter(None, (_text_field(record, "instruction"), given))), _answer_pair(record)
    )


def _answer_pair(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    field = next((name for name in OUTPUTS if record.get(name)), None)
    return () if field is None else (("", _string_field(record, field)),)


def _document_qa_pairs(record: Mapping[str, Any]) -> Texts:
    """Return the texts of a LooGLE record whose questions are a Python list in a string."""
    listed = record["qa_pairs"]
    if isinstance(listed, str):
        try:
            listed = literal_eval(listed[:MAX_LITERAL])
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            raise ValueError("field 'qa_pairs': must be a list of objects") from None
    pairs = _pairs({"qa_pairs": listed}, "qa_pairs", "Q", "A")
    return Texts(_text_field(record, "input"), pairs.exchanges)


def _arena(record: Mapping[str, Any]) -> Texts:
    field = "conversation_a"
    messages = [
        (
            _string_field(entry, "role", f"{field}[{i}]."),
            _string_field(entry, "content", f"{field}[{i}]."),
        )
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
    text = _string_field(record, "frame_count")
    if not text.isdecimal() or not int(text):
        raise ValueError(f"field 'frame_count': {text!r} must be a number of frames")
    choices = [_string_field(record, f"a{number}") for number in range(5)]
    answer = _string_field(record, "answer")
    if answer not in ("0", "1", "2", "3", "4"):
        raise ValueError(f"field 'answer': {answer!r} must be the number of a choice, from 0 to 4")
    asked = " ".join([_string_field(record, "question"), *choices])
    tokens = max(1, int(text) * 256 // 30)
    return Texts(_text_field(record, "video"), ((asked, choices[int(answer)]),), tokens)


def _trajectory(record: Mapping[str, Any]) -> Texts:
    """Pair each assistant message with all messages since the previous assistant message."""
    root, before, exchanges = "", "", []
    for number, entry in enumerate(_records(record, "traj")):
        said = entry.get("content") or json.dumps(entry.get("tool_calls") or "")
        if not isinstance(said, str):
            raise ValueError(f"field 'traj[{number}].content': must be a string")
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
    """Return the exchanges of a ReAct trajectory, in which lines by the agent begin with ``>``."""
    task, *acts = ("\n" + _text_field(record, "text")).split("\n>")
    if not acts or not task.strip():
        raise ValueError("field 'text': must hold a task, followed by lines that begin with >")
    exchanges, seen = [], ""
    for act in acts:
        said, _, after = act.partition("\n")
        exchanges.append((seen, said.strip() or ">"))
        seen = after
    return Texts(task.strip(), tuple(exchanges))


# ``schema_of`` chooses the first layout whose fields (``marks``) all occur in a record, so layouts
# with more fields come first.
SCHEMAS: tuple[Schema, ...] = (
    Schema(
        *(LongQA.kind, "{video, frame_count, question, answer, a0, ..., a4}"),
        *(("video", "frame_count", "question", "answer"), _video),
    ),
    Schema(
        *(LongQA.kind, "{text, qa: [{q, a}]}", ("text", "qa")),
        lambda record: Texts(_text_field(record, "text"), _pairs(record, "qa", "q", "a").exchanges),
    ),
    Schema(
        *(LongQA.kind, "{context, question, answer}", ("context", "question", "answer")),
        lambda record: Texts(
            _text_field(record, "context"),
            ((_string_field(record, "question"), _string_field(record, "answer")),),
        ),
    ),
    Schema(LongQA.kind, "{input, qa_pairs: [{Q, A}]}", ("input", "qa_pairs"), _document_qa_pairs),
    Schema(
        *(Chat.kind, "{history: [{user, bot}]}", ("history",)),
        lambda record: _pairs(record, "history", "user", "bot"),
    ),
    Schema(Chat.kind, "{conversation_a: [{role, content}]}", ("conversation_a",), _arena),
    Schema(TreeOfThought.kind, "{question}", ("question",), _only("question")),
    Schema(  # In ToolBench, the prompt is the description of the tools, followed by a query.
        *(ToolUse.kind, "{query, tools, final}", ("query", "tools", "final")),
        lambda record: Texts(
            json.dumps(list(_records(record, "tools"))),
            ((_text_field(record, "query"), _string_field(record, "final")),),
        ),
    ),
    Schema(
        *(Samples.kind, "{prompt, canonical_solution}", ("prompt", "canonical_solution")),
        _only("prompt"),
    ),
    Schema(
        *(Single.kind, "{prompt} or {prompt, output}", ("prompt",)),
        lambda record: Texts(_text_field(record, "prompt"), _answer_pair(record)),
    ),
    Schema(Single.kind, "{instruction, input, output}", ("instruction",), _instruction),
    Schema(Agent.kind, "{traj: [{role, content}]}", ("traj",), _trajectory),
    Schema(Judge.kind, "{text} or a string", ("text",), _only("text")),
    Schema(Single.kind, "a string", ("text",), _only("text")),
    Schema(Agent.kind, "a text of a ReAct trajectory", ("text",), _react),
)


MERGED = (LongQA.kind, ToolUse.kind)
"""Program kinds whose records are merged if a data set repeats a text for every question."""

NAMED = "; --dataset-map FIELD=NAME names another field of the file"

JUDGE_ARTICLE_TOKENS = 2677
"""An input of the judge workload joins articles until it has about ``JUDGE_ARTICLE_TOKENS`` tokens.

Articles have 705 tokens on average, but the inputs in [DLPM] had 2,701 tokens.
"""


class Source:
    """The items of a data set for one program kind; token counts are computed on demand."""

    def __init__(self, name: str, kind: str, texts: Sequence[Texts], counter: TokenCounter) -> None:
        self._name = name
        self._kind = kind
        self._texts = texts
        self._counter = counter
        self._counted: dict[int, Item] = {}
        often = Counter(entry.text for entry in texts if entry.text)
        repeated = [text for text, times in often.items() if times > 1]
        self._text_keys = {text: f"{name}/text-{n}" for n, text in enumerate(repeated, start=1)}
        self.token_count_method = counter.method

    def __len__(self) -> int:
        return len(self._texts)

    def item(self, seed: int, number: int) -> Item:
        """Return item ``number`` in the random order that ``seed`` determines.

        A run that needs more items than the data set has reads the data set again, in a new order.
        When the data set is read again, items get new content keys, so that they do not hit earlier
        KV cache entries.
        """
        turn, position = divmod(number, len(self._texts))
        item = self._item(_order(seed, turn, len(self._texts))[position])
        if not turn:
            return item
        return replace(item, key=f"{item.key}#{turn + 1}")

    def _item(self, index: int) -> Item:
        if index not in self._counted:
            count = self._counter.count
            pairs = self._texts[index].exchanges
            self._counted[index] = Item(
                key=f"{self._name}/{index + 1}",
                text_tokens=self._joined_tokens(index)
                if self._kind == Judge.kind
                else self._text_tokens(index),
                exchanges=tuple((count(asked), count(replied)) for asked, replied in pairs),
                text_key=self._text_keys.get(self._texts[index].text, ""),
            )
        return self._counted[index]

    def _text_tokens(self, index: int) -> int:
        text, known = self._texts[index].text, self._texts[index].text_tokens
        if known is not None:
            return known
        return self._counter.count(text) if text else 0

    def _joined_tokens(self, index: int) -> int:
        """Return the length of joined articles in tokens, about ``JUDGE_ARTICLE_TOKENS``.

        Each joined text begins with a different article, so no two joined texts share a prefix.
        """
        total = self._text_tokens(index)
        for step in range(1, len(self._texts)):
            longer = total + self._text_tokens((index + step) % len(self._texts))
            if longer - JUDGE_ARTICLE_TOKENS > JUDGE_ARTICLE_TOKENS - total:
                break
            total = longer
        return total


@lru_cache(maxsize=8)
def _order(seed: int, turn: int, count: int) -> tuple[int, ...]:
    order = list(range(count))
    stream(seed, f"items-{turn}").shuffle(order)
    return tuple(order)


def load_source(
    kind: str,
    dataset_path: str,
    tokenizer_path: str | None = None,
    names: Mapping[str, str] | None = None,
) -> Source:
    """Load the data set ``dataset_path`` (a file or ``hf:OWNER/NAME``) for a program kind.

    ``names`` maps fields of the layout to the field names in the file. Raises UsageError for a
    missing tokenizer or package, and for an unknown field. Raises DataError (file, line, field) for
    a file that is unreadable or does not fit the program kind.
    """
    if not schemas_for(kind):
        raise UsageError(
            f"dataset {dataset_path}: programs of kind {kind} do not read a data set; leave "
            "dataset_path out"
        )
    for field in names or {}:
        if field not in fields_of(kind):
            raise unknown_name("field in --dataset-map", field, fields_of(kind))
    counter = load_counter(tokenizer_path)
    if dataset_path.startswith(HUB_PREFIX):
        name, records = dataset_path, hub_records(dataset_path)
    else:
        name, records = Path(dataset_path).name, _file_records(dataset_path)
    texts = list(_texts_of_records(kind, dataset_path, records, names or {}))
    if not texts:
        raise DataError(f"{dataset_path}: holds no records")
    return Source(name, kind, merged(texts) if kind in MERGED else texts, counter)


def _texts_of_records(
    kind: str, path: str, records: Iterable[tuple[str, Any]], names: Mapping[str, str]
) -> Iterator[Texts]:
    schema: Schema | None = None
    for place, record in records:
        try:
            table = {"text": record} if isinstance(record, str) else record
            if not isinstance(table, dict):
                raise ValueError("the record must be a JSON object or a string")
            table = renamed(table, names)
            schema = schema or _fitting(table, kind)
            missing = [mark for mark in schema.marks if mark not in table]
            if missing:
                raise ValueError(f"missing field {missing[0]!r}")
            yield schema.read(table)
        except ValueError as error:
            raise DataError(f"dataset {path}, {place}: {error}") from None


def _fitting(record: dict[str, Any], kind: str) -> Schema:
    """Return the layout of a record; raise ValueError if no layout of ``kind`` fits the record."""
    schema = schema_of(record, kind)
    # A record that is only a text fits several program kinds, so ``kind`` decides.
    if list(record) == ["text"]:
        schema = next((s for s in schemas_for(kind) if s.marks == ("text",)), schema)
    if schema is not None and schema.kind == kind:
        return schema
    wanted = " or ".join(schema.shape for schema in schemas_for(kind))
    if schema is not None:
        other = ", as --workload prompts does" if schema.kind == Single.kind else ""
        raise ValueError(
            f"the records ({schema.shape}) are for programs of kind {schema.kind}{other}, but this "
            f"workload runs kind {kind}, which needs {wanted}{NAMED if kind == Single.kind else ''}"
        )
    marks = nearest_schema(record, kind).marks
    missing = next(mark for mark in marks if mark not in record)
    raise ValueError(f"missing field {missing!r}: programs of kind {kind} read {wanted}{NAMED}")


def _file_records(path: str) -> Iterator[tuple[str, Any]]:
    plain, shown = path.removesuffix(".gz"), f"dataset {path}"
    if plain.endswith(".csv"):
        for number, row in csv_rows(Path(path), shown):
            yield f"line {number}", {key: text for key, text in row.items() if key}
    elif plain.endswith(".json"):
        listed = json_file(Path(path), shown)
        if isinstance(listed, list):
            yield from ((f"record {number}", one) for number, one in enumerate(listed, start=1))
            return
        if not isinstance(listed, dict):
            raise DataError(f"{shown}: must be a JSON list or object whose entries are records")
        yield from ((f"entry {name!r}", record) for name, record in listed.items())
    elif plain.endswith(".parquet"):
        for number, row in enumerate(read_parquet(Path(path)).to_pylist(), start=1):
            yield f"row {number}", row
    elif plain.endswith(".jsonl"):
        for where, record in json_lines(Path(path), shown):
            yield where.removeprefix(f"{shown}, "), record
    else:
        allowed = ".jsonl, .csv, .json (or one of them and .gz), .parquet"
        raise DataError(f"{shown}: must end in {allowed}, or start with hf:")


HUB_PREFIX = "hf:"
INSTALL = 'pip install ".[hub]"'

# The configuration and the split to read from each known data set on the Hugging Face hub.
HUB_DATASETS: dict[str, tuple[str | None, str]] = {
    "bigai-nlco/LooGLE": ("longdep_qa", "test"),
    "openai/gsm8k": ("main", "train"),
    "lmsys/chatbot_arena_conversations": (None, "train"),
}


def _needs_package(ref: str) -> str:
    return f"{ref} needs the package datasets: in a clone of fairbench, {INSTALL}"


# Unless HF_HUB_OFFLINE is 1, the hub's library retries for half a minute before it raises an error.
HUB_OFFLINE = "HF_HUB_OFFLINE"
# The Hugging Face hub has more than 1 s to answer, because TCP sends a lost packet again after 1 s.
HUB_PATIENCE_S = 1.5


def hub_host() -> str:
    """Return the host name of the Hugging Face hub, or of the mirror in ``HF_ENDPOINT``."""
    return urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname or "huggingface.co"


def reaches_hub() -> bool:
    """Return whether the Hugging Face hub answers in time, or True if a proxy is configured.

    A thread tries the connection, because host name resolution has no timeout.
    """
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return True
    url = urlsplit(os.environ.get("HF_ENDPOINT", ""))
    reached = Event()

    def connect() -> None:
        with suppress(OSError):
            port = url.port or (80 if url.scheme == "http" else 443)
            socket.create_connection((hub_host(), port), HUB_PATIENCE_S).close()
            reached.set()

    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(HUB_PATIENCE_S)
    return reached.is_set()


def has_copy(name: str) -> bool:
    """Return whether the local cache of the hub's library has files of a data set."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    prepared = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets")
    flat = name.replace("/", "___")
    folders = (
        hub / f"datasets--{name.replace('/', '--')}",
        prepared / flat,
        prepared / flat.lower(),
    )
    return any(path.is_file() for folder in folders for path in folder.rglob("*"))


def hub_records(ref: str) -> Iterator[tuple[str, Any]]:
    """Yield (location, record) for each row of the hub data set ``hf:OWNER/NAME``.

    Raises UsageError if the data set is unknown or unreachable, or if a package is missing.
    """
    name = ref.removeprefix(HUB_PREFIX)
    if name not in HUB_DATASETS:
        raise unknown_name("hub dataset", name, HUB_DATASETS)
    if "datasets" not in sys.modules and find_spec("datasets") is None:
        raise UsageError(_needs_package(ref))
    if not reaches_hub():
        if not has_copy(name):
            raise UsageError(
                f"{ref}: cannot be loaded: {hub_host()} did not answer within {HUB_PATIENCE_S:g} "
                "s, and there is no copy on this machine. Check the network, or give a file's path"
            )
        os.environ[HUB_OFFLINE] = "1"
    try:
        from datasets import load_dataset
    except ImportError:
        raise UsageError(_needs_package(ref)) from None
    configuration, split = HUB_DATASETS[name]
    try:
        rows = load_dataset(name, configuration, split=split)
    # If the network or the Hugging Face hub fails, ``load_dataset`` may raise many types of errors.
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise UsageError(
            f"{ref}: cannot be loaded: {reason}. Check the network, log in to the hub "
            f"if the data set is gated, and install the package: {INSTALL}"
        ) from None
    return ((f"row {number}", row) for number, row in enumerate(rows, start=1))
