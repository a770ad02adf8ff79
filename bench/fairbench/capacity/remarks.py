"""Remarks on a plan as sentences, derived from ``answer.json`` alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairbench.report.numbers import number

Row = Mapping[str, Any]


def remarks_of(answer: Row) -> Iterator[str]:
    """Yield remarks on the limits of the answer, on doubts, and on cheaper choices."""
    for row in answer["choices"]:
        yield from _of_choice(row, answer)
    yield from _cheaper(answer)


def _of_choice(row: Row, answer: Row) -> Iterator[str]:
    name = f"{row['scheduler']} on {row['gpu']}{_at(row['load'], answer)}"
    enough = [one["replicas"] for one in row["tried"] if one["enough"]]
    beyond = [
        one["replicas"]
        for one in row["tried"]
        if not one["enough"] and one["replicas"] > min(enough, default=one["replicas"])
    ]
    if row["replicas"] is None:
        missed = [one["slo"] for one in row["targets"] if not one["met"]] or _doubtful(row)
        most = (
            "1 replica does not meet"
            if answer["high"] == 1
            else f"{answer['high']} replicas do not meet"
        )
        yield f"{name}: {most} {_listed(missed)}"
    elif row["replicas"] == answer["low"]:
        suffice = "1 replica suffices" if row["replicas"] == 1 else f"{row['replicas']} suffice"
        yield f"{name}: {suffice}, the smallest number in the range"
    if beyond:
        yield f"{name}: not monotone: {_listed(beyond)} replicas do not suffice, though fewer do"
    if row["replicas"] and len(answer["seeds"]) > 1 and (doubtful := _doubtful(row)):
        yield (
            f"{name}: on average {_listed(doubtful)} is met, but not over the whole 95% "
            "interval; more seeds (--num-runs) make the interval smaller, and --certain "
            "requires the whole interval"
        )


def _doubtful(row: Row) -> list[str]:
    return [one["slo"] for one in row["targets"] if not one["certain"]]


def _cheaper(answer: Row) -> Iterator[str]:
    rows = answer["choices"]
    for load in dict.fromkeys(row["load"] for row in rows):
        first = next(row for row in rows if row["load"] == load)
        if sum(row["load"] == load for row in rows) == 1:
            continue
        cheaper = [rows[n] for n in answer["cheaper"] if rows[n]["load"] == load]
        than = f"{first['scheduler']} on {first['gpu']}{_at(load, answer)}"
        if cheaper:
            yield f"cheaper than {than}: {'; '.join(map(_offer, cheaper))}"
        else:
            yield f"no other choice is cheaper than {than}"


def _offer(row: Row) -> str:
    cost = "" if row["cost"] is None else f" for {number(row['cost'])} an hour"
    return f"{row['scheduler']} on {row['replicas']} x {row['gpu']}{cost}"


def _at(load: float, answer: Row) -> str:
    """Return a phrase that names the load if there are several."""
    several = len({row["load"] for row in answer["choices"]}) > 1
    return f" at {load:g} times the load" if several else ""


def _listed(values: list[Any]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last
