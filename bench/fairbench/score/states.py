"""The end states of a request, in the terms of several tools, and other signs of these states."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fairbench.errors import DataError, unknown_name
from fairbench.files.column_names import plain
from fairbench.files.times import is_missing, number_of
from fairbench.metrics.records import FINISHED, REFUSED, UNFINISHED
from fairbench.score.files import Object

UNSAID = -1
FAILED = 3
FINISHED_WORD, FAILED_WORD = "finished", "failed"
"""The state of a request that broke off, which the metrics' tables show as refused."""

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

    Numbers, including those in ``HTTP 200`` and ``200 OK``, are HTTP's: 2xx means finished, 4xx
    refused, any other number from 100 to 599 failed. Raises DataError naming the request.
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
    if is_missing(value):
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


_YES, _NO = ("true", "yes", "y", "1", "1.0"), ("false", "no", "n", "0", "0.0")
LOOKED_AT = 10_000  # number of records in which the columns of a file are searched


def _state(value: Any) -> Any:
    """Return a status, or None if the value is not one, such as gRPC's 0."""
    try:
        return None if states_of([value], "")[0] == UNSAID else value
    except DataError:
        return None


def _switch(value: Any) -> str | None:
    """Return the state for a success flag, true or false in any spelling."""
    word = str(value).strip().lower()
    if word in _YES:
        return FINISHED_WORD
    return FAILED_WORD if word in _NO else _state(value)


def _trouble(value: Any) -> str | None:
    return FAILED_WORD if is_error(value) else None


def _reason(value: Any) -> str | None:
    """Return a failure for reasons that mean one; reaching the output limit is no failure."""
    state = _state(value) if isinstance(value, str) else None
    return FAILED_WORD if state is not None and states_of([state], "")[0] == FAILED else None


SIGNS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            *("errormessage", "errormsg", "errortype", "errorcode", "exception", "failurereason"),
            *("failed", "iserror", "haserror", "isfailed", "aborted", "cancelled", "canceled"),
        ),
        _trouble,
    ),
    **dict.fromkeys(("finishreason", "stopreason"), _reason),
    **dict.fromkeys(
        (
            *("statuscode", "httpstatus", "httpstatuscode", "httpcode", "responsecode"),
            "responsestatus",
        ),
        _state,
    ),
    **dict.fromkeys(("success", "succeeded", "successful", "issuccess", "ok"), _switch),
}
"""The state that a column of this name reports, as a status. Failures come first."""


def signed(rows: Sequence[Object]) -> list[Any] | None:
    """Return a status for each record by such columns, or None if no record has one."""
    names = {name for row in rows[:LOOKED_AT] for name in row}
    found = sorted((one for one in names if plain(one) in SIGNS), key=_rank)
    if not found:
        return None
    said = [(name, SIGNS[plain(name)]) for name in found]
    values = [
        next((word for name, sign in said if (word := sign(row.get(name))) is not None), None)
        for row in rows
    ]
    return None if all(value is None for value in values) else values


def _rank(name: str) -> int:
    return list(SIGNS).index(plain(name))
