"""Signs of how a request ended, in columns that are not called ``status`` or ``error``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairbench.errors import DataError
from fairbench.files.column_names import plain
from fairbench.score.files import Object
from fairbench.score.states import FAILED, FAILED_WORD, FINISHED_WORD, UNSAID, is_error, states_of

_YES, _NO = ("true", "yes", "y", "1", "1.0"), ("false", "no", "n", "0", "0.0")
LOOKED_AT = 10_000  # records, in which the columns of a file are found


def _state(value: Any) -> Any:
    """Return a status, or None if it is none, such as gRPC's 0."""
    try:
        return None if states_of([value], "")[0] == UNSAID else value
    except DataError:
        return None


def _switch(value: Any) -> str | None:
    """Return the state for a success that is true or false, in any spelling."""
    word = str(value).strip().lower()
    if word in _YES:
        return FINISHED_WORD
    return FAILED_WORD if word in _NO else _state(value)


def _trouble(value: Any) -> str | None:
    return FAILED_WORD if is_error(value) else None


def _reason(value: Any) -> str | None:
    """Return a failure for the reasons that are one; an answer that reached its limit is not."""
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
"""The state that a column of this name reports, in words of a status. Failures come first."""


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
