"""The states in which requests ended, recognised by words and columns of several tools."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fairbench.errors import unknown_name
from fairbench.files.times import number_of
from fairbench.metrics.records import FINISHED, REFUSED, UNFINISHED
from fairbench_logs.records.cells import is_missing
from fairbench_logs.records.column_names import plain, sign_name
from fairbench_logs.records.log_reader import ColumnValues, FileColumns, listed

UNSAID = -1  # The record does not state how the request ended.
UNKNOWN = -2  # The record's word for the end of the request is not in ``WORDS``.
FAILED = 3  # The request ended early; metrics count the request as refused.
FINISHED_WORD, FAILED_WORD = "finished", "failed"

WORDS = {
    FINISHED: (
        *("finished", "success", "succeeded", "successful", "ok", "completed", "complete"),
        *("done", "passed", "true", "succeed", "default", "info", "debug", "warning"),
    ),
    REFUSED: ("refused", "rejected", "denied", "throttled", "ratelimited", "toomanyrequests"),
    UNFINISHED: ("unfinished", "incomplete", "running", "pending", "inprogress"),
    FAILED: (
        *("failed", "failure", "error", "errored", "timeout", "timedout", "abort", "aborted"),
        *("cancelled", "canceled", "disconnected", "dropped", "killed", "exception"),
        "false",
    ),
}
_HTTP = re.compile(r"(?:http\S{0,20}\s{1,9})?([1-5]\d\d)(?:\s.*)?", re.IGNORECASE)
_STATES = {word: state for state, words in WORDS.items() for word in words}


def states_of(values: Iterable[Any], columns: FileColumns, unknown: Counter[str]) -> Any:
    """Convert each value to a state, or to ``UNSAID`` if it is empty or an unknown word.

    Numbers, even in texts such as ``200 OK``, are read as HTTP status codes: 2xx means finished,
    4xx means refused, and other codes from 100 to 599 mean failed. ``unknown`` counts how often
    each unknown word occurs. A list or an object raises a DataError that names the request.
    """
    known: dict[tuple[type, Any], int] = {}
    found = []
    for row, value in enumerate(values):
        if isinstance(value, list | dict):
            said = f"{unknown_name('status', str(value), [*_STATES, '200'])}"
            raise columns.problem(row, said)
        key = type(value), value
        if key not in known:
            known[key] = state_of(value)
        if known[key] == UNKNOWN:
            unknown[str(value)] += 1
        found.append(max(known[key], UNSAID))
    return np.array(found, dtype=np.int64)


def state_of(value: Any) -> int:
    """Convert a value to a state: ``UNSAID`` for an empty value, ``UNKNOWN`` for unknown words."""
    if isinstance(value, bool):
        return FINISHED if value else FAILED
    if is_missing(value):
        return UNSAID
    code = number_of(value)
    if code is None and isinstance(value, str) and (line := _HTTP.fullmatch(value.strip())):
        code = int(line[1])
    if code is not None and 100 <= code < 600:
        return {2: FINISHED, 4: REFUSED}.get(int(code) // 100, FAILED)
    if isinstance(value, str):
        word = plain(value).removeprefix("statuscode")
        return UNSAID if word == "unset" else _STATES.get(word, UNKNOWN)
    opentelemetry = {0: UNSAID, 1: FINISHED, 2: FAILED}
    return opentelemetry.get(value, UNKNOWN)


def errors_of(values: Iterable[Any]) -> Any:
    """Return a mask of the values in an error column: True for values that report an error."""
    known: dict[tuple[type, Any], bool] = {}
    found = []
    for value in values:
        if isinstance(value, list | dict):
            found.append(bool(value))
            continue
        key = type(value), value
        if key not in known:
            known[key] = is_error(value)
        found.append(known[key])
    return np.array(found, dtype=np.bool_)


_YES, _NO = ("true", "yes", "y", "t", "1", "1.0"), ("false", "no", "n", "f", "0", "0.0")
_NO_ERROR = {*_NO, "[]", "{}", "ok", "success", "successful", "no error", "no errors", "no_error"}


def is_error(value: Any) -> bool:
    """Return whether an error column's value, such as a message, means that the request failed.

    The number 0 and HTTP status codes from 200 to 299 report no error.
    """
    if isinstance(value, list | dict | bool):
        return bool(value)
    if is_missing(value):
        return False
    if (number := number_of(value)) is not None:
        return number != 0 and not 200 <= number < 300
    return str(value).strip().lower() not in _NO_ERROR


def with_failures(values: Sequence[Any]) -> list[Any]:
    """Return the values, with "failed" for numbers up to 0 in a column of HTTP status codes.

    Clients write such a number for a request that got no answer.
    """
    numbers = list(map(number_of, values))
    if not any(one is not None and 100 <= one < 600 for one in numbers):
        return list(values)
    failed = [one is not None and one <= 0 for one in numbers]
    return [FAILED_WORD if no else one for one, no in zip(values, failed, strict=True)]


def _state(value: Any) -> Any:
    """Return the value of a status column, or None for gRPC's 0, which is not an HTTP status."""
    known = not isinstance(value, list | dict) and state_of(value) > UNSAID
    return value if known else None


def _switch(value: Any) -> str | None:
    """Return the state that a success flag (true or false in any spelling) means."""
    word = str(value).strip().lower()
    if word in _YES:
        return FINISHED_WORD
    return FAILED_WORD if word in _NO else _state(value)


def _reason(value: Any) -> str | None:
    """Return "failed" if the reason for an answer's end is a failure, or else None."""
    state = _state(value) if isinstance(value, str) else None
    return FAILED_WORD if state is not None and state_of(state) == FAILED else None


def _answer(value: Any) -> Any:
    """Return the state of an answer; an incomplete one, such as of OpenAI, reached its limit."""
    return None if _state(value) is None or state_of(value) == UNFINISHED else value


def _code(value: Any) -> Any:
    """Return an HTTP status code or the word of ``with_failures``, or None for other values."""
    return value if value == FAILED_WORD or 100 <= (number_of(value) or 0) < 600 else None


def _word(value: Any) -> Any:
    """Return the word of a failure or of an unfinished request, or None for other texts."""
    text = value if isinstance(value, str) and number_of(value) is None else ""
    known = state_of(text) in (REFUSED, UNFINISHED, FAILED) and plain(text) != "false"
    return text if known else None


def _grpc(value: Any) -> str | None:
    """Return the state that a gRPC status code or its name means."""
    word = "" if is_missing(value) or isinstance(value, list | dict) else plain(str(value))
    known = {"": None, "0": FINISHED_WORD, "ok": FINISHED_WORD}
    known |= dict.fromkeys(("8", "resourceexhausted"), "refused")
    return known.get(word.removeprefix("statuscode"), FAILED_WORD)


SIGNS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            *("errormessage", "errormsg", "errortype", "errorcode", "failurereason"),
            *("exception", "exceptiontype"),
            *("failed", "iserror", "haserror", "isfailed", "aborted", "cancelled", "canceled"),
            *("wascancelled", "wascanceled", "iscancelled", "iscanceled", "isaborted", "timedout"),
            "responseerror",
        ),
        lambda value: FAILED_WORD if is_error(value) else None,
    ),
    **dict.fromkeys(("finishreason", "stopreason"), _reason),
    **dict.fromkeys(
        (
            *("statuscode", "httpstatus", "httpstatuscode", "httpcode", "responsecode"),
            "responsestatuscode",
        ),
        _state,
    ),
    "responsestatus": _answer,
    "code": _code,
    **dict.fromkeys(("grpcstatus", "grpccode", "grpcstatuscode", "rpcgrpcstatuscode"), _grpc),
    **dict.fromkeys(("outcome", "result", "state"), _word),
    **dict.fromkeys(("success", "succeeded", "successful", "issuccess", "ok"), _switch),
}
"""Functions that convert a column's values to request states; earlier columns take precedence."""


# Columns such as ``code`` or ``result`` have another meaning if these functions find no success.
_CHECKED: Mapping[Callable[[Any], Any], Callable[[Any], Any]] = {_code: _code, _word: _state}


def signed(columns: Sequence[ColumnValues]) -> list[Any] | None:
    """Return each record's state by the columns in ``SIGNS``, or None if all states are unknown."""
    said: list[Any] | None = None
    order = list(SIGNS)
    for column in sorted(columns, key=lambda one: order.index(sign_name(one.name))):
        sign, known = SIGNS[sign_name(column.name)], {}
        check = _CHECKED.get(sign)
        if check is not None and FINISHED not in map(state_of, map(check, column.values)):
            continue
        words = []
        for value in (
            with_failures(listed(column.values))
            if sign in (_state, _answer, _code)
            else column.values
        ):
            key = repr(value) if isinstance(value, list | dict) else (type(value), value)
            if key not in known:
                known[key] = sign(value)
            words.append(known[key])
        if said is None:
            said = words
        else:
            said = [b if a is None else a for a, b in zip(said, words, strict=True)]
    return None if said is None or all(value is None for value in said) else said
