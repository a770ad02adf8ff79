"""The end states of a request, in the terms of several tools."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from fairbench.errors import DataError, unknown_name
from fairbench.files.column_names import plain
from fairbench.files.times import is_missing, number_of
from fairbench.metrics.records import FINISHED, REFUSED, UNFINISHED

UNSAID = -1
FAILED = 3
FINISHED_WORD, FAILED_WORD = "finished", "failed"
"""The state of a request that broke off, which the metrics' tables have as refused."""

WORDS = {
    FINISHED: (
        *("finished", "success", "succeeded", "successful", "ok", "completed", "complete"),
        *("done", "passed", "true"),
    ),
    REFUSED: ("refused", "rejected", "denied", "throttled", "ratelimited"),
    UNFINISHED: ("unfinished", "incomplete", "running", "pending", "inprogress"),
    FAILED: (
        *("failed", "failure", "error", "errored", "timeout", "timedout", "abort", "aborted"),
        *("cancelled", "canceled", "disconnected", "dropped", "killed", "exception"),
        "false",
    ),
}
_HTTP = re.compile(r"(?:http\S*\s+)?([1-5]\d\d)(?:\s.*)?", re.IGNORECASE)
_STATES = {word: state for state, words in WORDS.items() for word in words}


def states_of(values: Iterable[Any], where: str) -> Any:
    """Return the state of each value; ``UNSAID`` for an empty value.

    Numbers, also in ``HTTP 200`` and ``200 OK``, are HTTP's: 2xx is finished, 4xx refused, anything
    else from 100 to 599 failed. Raises DataError naming the request.
    """
    known: dict[tuple[type, Any], int] = {}
    found = []
    for row, value in enumerate(values):
        key = type(value), value if isinstance(value, str | int | float) else repr(value)
        if key not in known:
            known[key] = _state_of(value, f"{where}: request {row + 1}")
        found.append(known[key])
    return np.array(found, dtype=np.int64)


def _state_of(value: Any, where: str) -> int:
    if isinstance(value, bool):
        return FINISHED if value else FAILED
    if not isinstance(value, list | dict) and is_missing(value):
        return UNSAID
    code = number_of(value)
    if code is None and isinstance(value, str) and (line := _HTTP.fullmatch(value.strip())):
        code = int(line[1])
    if code is not None and 100 <= code < 600:
        return {2: FINISHED, 4: REFUSED}.get(int(code) // 100, FAILED)
    if isinstance(value, str) and (word := plain(value)) in _STATES:
        return _STATES[word]
    raise DataError(f"{where}: {unknown_name('status', str(value), [*_STATES, '200'])}")


def is_error(value: Any) -> bool:
    """Return whether a value of an error column reports an error."""
    if isinstance(value, list | dict):
        return bool(value)
    if isinstance(value, str):
        return not is_missing(value) and value.strip().lower() not in ("false", "no", "0")
    return not is_missing(value) and bool(value)
