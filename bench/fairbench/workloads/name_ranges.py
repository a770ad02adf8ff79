"""Ranges of client names: ``"client-10..19"`` is ``client-10`` to ``client-19``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairbench.workloads.table import MAX_CLIENTS


def names_in(word: str) -> list[str]:
    """Return the names of a range, or the word itself if it is not a range.

    Raises ValueError for a range that ends before it begins or is larger than any workload.
    """
    found = re.fullmatch(r"(client-)(\d{1,6})\.\.(\d{1,6})", word)
    if found is None:
        return [word]
    first, last = int(found[2]), int(found[3])
    if not first <= last < first + MAX_CLIENTS:
        raise ValueError(f"{word!r}: must go up, and hold at most {MAX_CLIENTS:,} clients")
    return [f"{found[1]}{number}" for number in range(first, last + 1)]


def each_name(words: Iterable[Any]) -> Iterator[Any]:
    """Yield every name of a list with ranges expanded; values that are not text pass through."""
    for word in words:
        yield from names_in(word) if isinstance(word, str) else (word,)


def by_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """Expand the ranges of a table by name. A client's own entry takes precedence over a range."""
    ranges = {word: names_in(word) for word in table}
    many = {name: table[word] for word, names in ranges.items() for name in names}
    return many | {word: value for word, value in table.items() if ranges[word] == [word]}
