"""Real input for programs: files and hub data sets, as token lengths returned in a fixed order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.csv_text import csv_rows
from fairbench.files.json_text import json_file, json_lines
from fairbench.files.parquet import read_parquet
from fairbench.streams import stream
from fairbench.workloads.items import Item
from fairbench.workloads.programs.judge import Judge
from fairbench.workloads.programs.long_qa import LongQA
from fairbench.workloads.programs.single import Single
from fairbench.workloads.programs.tool_use import ToolUse
from fairbench.workloads.schemas import (
    Schema,
    Texts,
    fields_of,
    merged,
    nearest_schema,
    renamed,
    schema_of,
    schemas_for,
)
from fairbench.workloads.tokens import TokenCounter, load_counter

MERGED = (LongQA.kind, ToolUse.kind)
"""Kinds whose data have several questions about one text."""

NAMED = "; --dataset-map FIELD=NAME names another field of the file"

JUDGE_ARTICLE_TOKENS = 2677
"""Articles (705 tokens on average) are joined to about this length, the paper's prefix of 2701."""


class Source:
    """Items of one data set for one program kind; token counts are made when first needed."""

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
        """Return the ``number``-th item under a seed.

        The order is shuffled on each pass. From the second pass on, items are new copies with their
        own keys: a program has new content, whereas nine documents used repeatedly would all be
        cache hits.
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
                text_tokens=self._joined(index) if self._kind == Judge.kind else self._one(index),
                exchanges=tuple((count(asked), count(replied)) for asked, replied in pairs),
                text_key=self._text_keys.get(self._texts[index].text, ""),
            )
        return self._counted[index]

    def _one(self, index: int) -> int:
        text, known = self._texts[index].text, self._texts[index].text_tokens
        if known is not None:
            return known
        return self._counter.count(text) if text else 0

    def _joined(self, index: int) -> int:
        """Return the tokens of successive articles, up to the total nearest to the target.

        Two joined texts start with different articles, so they share no prefix.
        """
        total = self._one(index)
        for step in range(1, len(self._texts)):
            longer = total + self._one((index + step) % len(self._texts))
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
    """Load the real input of a program kind from a .jsonl or .jsonl.gz file or ``hf:OWNER/NAME``.

    ``names`` has the name in the file of a field that has another name there. Raises UsageError for
    a missing tokenizer or package, or an unknown field, DataError (file, line, field) for a file
    that cannot be read or does not fit the kind.
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
    texts = list(_read(kind, dataset_path, records, names or {}))
    if not texts:
        raise DataError(f"{dataset_path}: holds no records")
    return Source(name, kind, merged(texts) if kind in MERGED else texts, counter)


def _read(
    kind: str, path: str, records: Iterable[tuple[str, Any]], names: Mapping[str, str]
) -> Iterator[Texts]:
    """Yield the texts of records that all have the layout of the first record."""
    schema: Schema | None = None
    for place, record in records:
        try:
            table = {"text": record} if isinstance(record, str) else record
            if not isinstance(table, dict):
                raise ValueError("must be a JSON object or a text")
            table = renamed(table, names)
            schema = schema or _fitting(table, kind)
            missing = [mark for mark in schema.marks if mark not in table]
            if missing:
                raise ValueError(f"missing field {missing[0]!r}")
            yield schema.read(table)
        except ValueError as error:
            raise DataError(f"dataset {path}, {place}: {error}") from None


def _fitting(record: dict[str, Any], kind: str) -> Schema:
    """Return the layout of the first record. Raises ValueError if the kind does not fit."""
    schema = schema_of(record, kind)
    if list(record) == ["text"]:  # a plain text, which each of several kinds reads in its own way
        schema = next((s for s in schemas_for(kind) if s.marks == ("text",)), schema)
    if schema is not None and schema.kind == kind:
        return schema
    wanted = " or ".join(schema.shape for schema in schemas_for(kind))
    if schema is not None:
        other = ", as --workload prompts does" if schema.kind == Single.kind else ""
        raise ValueError(
            f"records of {schema.shape} are for programs of kind {schema.kind}{other}, but this "
            f"workload runs kind {kind}, which reads {wanted}{NAMED if kind == Single.kind else ''}"
        )
    marks = nearest_schema(record, kind).marks
    missing = next(mark for mark in marks if mark not in record)
    raise ValueError(f"missing field {missing!r}: {kind} reads {wanted}{NAMED}")


def _file_records(path: str) -> Iterator[tuple[str, Any]]:
    """Yield (location, record) for each line that is not blank, or for each entry of an object."""
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
            raise DataError(f"{shown}: must be a JSON list of records, or an object of records")
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

# Dataset -> (configuration, split). All are read by fairbench.workloads.schemas.
HUB_DATASETS: dict[str, tuple[str | None, str]] = {
    "bigai-nlco/LooGLE": ("longdep_qa", "test"),
    "openai/gsm8k": ("main", "train"),
    "lmsys/chatbot_arena_conversations": (None, "train"),
}


def hub_records(ref: str) -> Iterator[tuple[str, Any]]:
    """Yield (location, record) for each row of ``hf:OWNER/NAME``.

    Raises UsageError, one line: unknown dataset, package not installed, or not reachable.
    """
    name = ref.removeprefix(HUB_PREFIX)
    if name not in HUB_DATASETS:
        raise unknown_name("hub dataset", name, HUB_DATASETS)
    try:
        from datasets import load_dataset
    except ImportError:
        raise UsageError(
            f"{ref} needs the package datasets: in a clone of fairbench, {INSTALL}"
        ) from None
    configuration, split = HUB_DATASETS[name]
    try:
        rows = load_dataset(name, configuration, split=split)
    except Exception as error:  # any error of the network or the hub
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"{ref}: cannot be loaded: {reason}. Check the network, log in to the hub "
            f"if the data set is gated, and install the package: {INSTALL}"
        ) from None
    return ((f"row {number}", row) for number, row in enumerate(rows, start=1))
