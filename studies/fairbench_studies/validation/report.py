"""The report of a comparison as text and JSON, including runs that could not be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fairbench.errors import UsageError, printable
from fairbench.report.numbers import UNDEFINED, number
from fairbench_calibration.validate.live_run import Pair

# Reports show no target and no error for a TTFT up to ``LONG_TTFT_S``, because the simulator is too
# inexact for short times.
LONG_TTFT_S, UNRESOLVED = 0.1, "<"

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class NotReplayed:
    """A measured run that could not be compared, with the reason in one line."""

    run: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """The comparison of all measured runs in a file with their simulations.

    ``whole`` is the report as a JSON object, and ``text`` is the report as text tables.
    """

    whole: dict[str, Any]
    text: str
    not_replayed: list[NotReplayed] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object, with the runs that were not compared."""
        if not self.not_replayed:
            return self.whole
        lines = [{"run": one.run, "reason": one.reason} for one in self.not_replayed]
        return {**self.whole, "not_replayed": lines}

    def as_text(self) -> str:
        """Return the report as tables, followed by a line for each run that was not compared."""
        return self.text + "".join(f"{line}\n" for line in _lines(self.not_replayed))


def _lines(failed: list[NotReplayed]) -> Iterator[str]:
    if failed:
        yield f"Not replayed: {len(failed)}"
    for one in failed:
        yield f"  ! {printable(one.run)}: {printable(one.reason)}"


def defined(value: float) -> float | None:
    """Return the value as a float, or None if the value is NaN."""
    return None if value != value else float(value)


def both(pair: Pair, form: Callable[[float | None], str] = number) -> str:
    """Return a simulated and a measured number as text, separated by a slash."""
    return f"{form(defined(pair.simulated))}/{form(defined(pair.measured))}"


def error(pair: Pair, least: float = 0.0) -> str:
    """Return the simulation error as text, or ``<`` if the measured value is at most ``least``."""
    if pair.measured <= least:
        return UNRESOLVED
    return UNDEFINED if pair.error_pct is None else f"{pair.error_pct:+.0f}%"


def unresolved_line() -> str:
    """Return the legend for measured times to first token too short for an accuracy target."""
    return f"{UNRESOLVED} measured below {1000 * LONG_TTFT_S:g} ms, too short for a target"


def each(
    make: Callable[[Given], Made],
    items: Iterable[Given],
    name: Callable[[Given], str],
    *,
    replayed: bool = False,
) -> tuple[list[Made], list[NotReplayed]]:
    """Convert each item with ``make``; return the converted items, and the items that failed.

    Raises UsageError with the first error if ``make`` fails for all items. With ``replayed``, the
    error message begins with the name of the run that failed.
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
        raise type(first)(f"run {failed[0].run}: {first}") if replayed else first
    return made, failed


def unique(
    runs: Iterable[Given], name: Callable[[Given], str]
) -> tuple[list[Given], list[NotReplayed]]:
    """Return the first run of each name, and an error for each further run with the same name."""
    found: dict[str, Given] = {}
    later = [run for run in runs if found.setdefault(name(run), run) is not run]
    reason = "an earlier run has this name; rename one"
    return list(found.values()), [NotReplayed(name(run), reason) for run in later]
