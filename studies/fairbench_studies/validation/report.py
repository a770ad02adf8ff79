"""The result of a comparison: its text, and the runs that could not be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fairbench.errors import UsageError

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class NotReplayed:
    """A run of a file that has no comparison, and the reason in one line."""

    run: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """The comparison of one file.

    ``whole`` is the report as a JSON object, ``text`` as tables.
    """

    whole: dict[str, Any]
    text: str
    not_replayed: list[NotReplayed] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object, with the runs that were not compared, if any."""
        if not self.not_replayed:
            return self.whole
        lines = [{"run": one.run, "reason": one.reason} for one in self.not_replayed]
        return {**self.whole, "not_replayed": lines}

    def as_text(self) -> str:
        """Return the tables, and a line for each run that was not compared."""
        return self.text + "".join(f"{line}\n" for line in _lines(self.not_replayed))


def _lines(failed: list[NotReplayed]) -> Iterator[str]:
    if failed:
        yield f"Not replayed: {len(failed)}"
    for one in failed:
        yield f"  ! {one.run}: {one.reason}"


def each(
    make: Callable[[Given], Made], items: Iterable[Given], name: Callable[[Given], str]
) -> tuple[list[Made], list[NotReplayed]]:
    """Convert each item, and collect the items that cannot be converted.

    Raises:
        UsageError: every item failed; the message is that of the first one.
    """
    made: list[Made] = []
    failed: list[NotReplayed] = []
    first: UsageError | None = None
    for item in items:
        try:
            made.append(make(item))
        except UsageError as error:
            first = first or error
            failed.append(NotReplayed(name(item), str(error)))
    if first is not None and not made:
        raise first
    return made, failed
