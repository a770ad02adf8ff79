"""The answer of a plan for people, with remarks, from ``answer.json`` alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import metric_of
from fairbench.metrics.metric import Form
from fairbench.report.numbers import UNDEFINED, WRITERS, index, number
from fairbench.report.table import MAX_WIDTH, plain_table, printed
from fairbench.results.header import basis, trace_lines
from fairbench.results.intervals import METHOD

MET, MISSED, DOUBTFUL = "green", "red", "yellow"
WORST_SHOWN = 10  # clients of the sharing incentive

Row = Mapping[str, Any]


def answer_text(answer: Row, *, colour: bool = False, width: int = MAX_WIDTH) -> str:
    """Return the output of ``render`` as lines of text."""
    return printed(render(answer), colour=colour, width=width)


def render(answer: Row) -> RenderableType:
    """Render the question, each choice with the next smaller cluster, sharing, and remarks."""
    basis_line, *others = head_lines(answer)
    head = [Text(basis_line, style="bold"), *map(Text, others)]
    warning = unlike_line(answer)
    blocks: list[RenderableType] = [Text(warning, style=DOUBTFUL), Text()] if warning else []
    blocks += [*head, Text(), _choices(answer)]
    for row in answer["choices"]:
        if row["sharing"]:
            blocks += [Text(), Text(_sharing_title(answer, row)), _sharing(row["sharing"])]
    remarks = [Text(line) for line in remarks_of(answer)]
    return Group(*blocks, *([Text(), *remarks] if remarks else []))


def head_lines(answer: Row) -> list[str]:
    """Return the lines that state the hardware, seeds, load and trace behind the numbers."""
    count, first = len(answer["seeds"]), answer["seeds"][0]
    seeds = f"{count} seeds: {METHOD}" if count > 1 else f"seed {first}"
    profiles = list(dict.fromkeys(row["timing_profile"] for row in answer["choices"]))
    where = basis(answer) if len(profiles) == 1 else f"simulated on {', '.join(profiles)}"
    behaviour = [answer["behaviour"]] if "behaviour" in answer else []
    return [f"{where}, {seeds}", load_line(answer), *trace_lines(answer), *behaviour]


def unlike_line(answer: Row) -> str:
    """Return that the simulated cluster differs from the recorded one; "" if it does not."""
    recorded = answer.get("recorded")
    if recorded is None or recorded["alike"]:
        return ""
    replicas = f"{recorded['replicas']} replica{'s' if recorded['replicas'] > 1 else ''}"
    return (
        f"The simulated cluster is not like yours: the TTFT P95 of {recorded['of']} is "
        f"{number(recorded['logged_ttft_p95_s'])} s in the log and "
        f"{number(recorded['replayed_ttft_p95_s'])} s replayed under {recorded['scheduler']} on "
        f"{replicas} of {recorded['timing_profile']}. Name your GPU and model with --gpu and "
        "--model."
    )


def load_line(answer: Row) -> str:
    """Return a line that states the load, which is independent of the number of replicas."""
    what = f"workload {answer['workload']}, scenario {answer['scenario']}"
    if answer["rate"] is None:
        return f"{what}: the load of the trace, fixed"
    own = ", its own for one replica" if answer["rate_is_usual"] else ""
    return (
        f"{what}: {answer['rate']:.3g} programs/s of each well-behaved client{own}, fixed "
        "for any number of replicas"
    )


def _choices(answer: Row) -> Table:
    rows = answer["choices"]
    priced = any(row["cost"] is not None for row in rows)
    loads = len({row["load"] for row in rows}) > 1
    table = plain_table()
    if loads:
        table.add_column("load", justify="right")
    table.add_column("scheduler", no_wrap=True)
    table.add_column("GPU", overflow="fold", min_width=9, max_width=14)
    table.add_column("replicas", justify="right", no_wrap=True)
    if priced:
        table.add_column("cost/h", justify="right")
    for target in answer["targets"]:
        table.add_column(f"{target['slo']}\n(margin)", justify="right")
    table.add_column("seeds\nthat do", justify="right")
    count = len(answer["seeds"])
    for row in rows:
        lead = [f"{row['load']:g} x"] if loads else []
        lead += [row["scheduler"], row["timing_profile"].split("/")[0]]
        cost = [Text("-" if row["cost"] is None else f"{row['cost']:,.2f}")] if priced else []
        none = row["replicas"] is None
        dp = Text(f"> {answer['high']}", style=MISSED) if none else Text(f"{row['replicas']}")
        table.add_row(*lead, dp, *cost, *_judged(row["targets"], count))
        if not none and row["less"] is not None:
            blank = [""] * len(lead)
            less, judged = row["less"], _judged(row["less"]["targets"], count)
            table.add_row(*blank, f"{less['replicas']}", *([""] if priced else []), *judged)
    return table


def _judged(targets: Sequence[Row], seeds: int) -> list[Text]:
    cells = [_cell(one) for one in targets]
    return [*cells, Text(f"{min(one['seeds_met'] for one in targets)}/{seeds}")]


def _cell(target: Row) -> Text:
    """Return the mean, its interval and the margin, coloured by the verdict."""
    style = MISSED if not target["met"] else MET if target["certain"] else DOUBTFUL
    text = Text(target_text(target), style=style)
    if target["mean"] is None:
        return text
    if target["margin"] is not None:
        text.append(f" ({margin_text(target['margin'])})")
    if target["low"] is not None:
        write = _writer(target)
        text.append(f"\n{write(target['low'])}-{write(target['high'])}", style="dim")
    return text


def margin_text(margin: float) -> str:
    """Return a margin in % of the limit; a latency above twice its limit as a multiple."""
    return f"{margin:+.0%}" if margin >= -1 else f"{1 - margin:.3g}x the limit"


def target_text(target: Row) -> str:
    """Return the mean of a target's metric with its unit, or why it has none."""
    if target["mean"] is None:
        return target["reason"].partition(":")[0] or UNDEFINED
    entry = metric_of(target["metric"])
    unit = f" {entry.unit}" if entry is not None and entry.unit else ""
    bound = f"{target['bound']} " if target["bound"] else ""
    return f"{bound}{_writer(target)(target['mean'])}{unit}"


def _writer(target: Row) -> Callable[[float | None], str]:
    entry = metric_of(target["metric"])
    return WRITERS[Form.AMOUNT if entry is None else entry.form]


def _sharing_title(answer: Row, row: Row) -> str:
    load = f" at {row['load']:g} x" if len({one["load"] for one in answer["choices"]}) > 1 else ""
    return (
        f"sharing incentive under {row['scheduler']}, dp {row['replicas']}{load}: latency "
        "on the shared cluster over latency alone on a part of it\n(at most 1: no reason "
        "to leave)"
    )


def _sharing(rows: Sequence[Row]) -> Table:
    table = plain_table("client", "P50", "P95", "P99")
    worst = sorted(rows, key=lambda row: -(row["p99"] or 0.0))
    shown = rows if len(rows) <= WORST_SHOWN else worst[:WORST_SHOWN]
    for row in shown:
        table.add_row(row["client"], *(_incentive(row, key) for key in ("p50", "p95", "p99")))
    if len(shown) < len(rows):
        table.add_row(f"and {len(rows) - len(shown)} with a lower P99", "", "", "")
    return table


def _incentive(row: Row, key: str) -> str:
    bound = f"{row[f'{key}_bound']} " if row[f"{key}_bound"] else ""
    return bound + index(row[key])


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
    several = len({row["load"] for row in answer["choices"]}) > 1
    return f" at {load:g} times the load" if several else ""


def _listed(values: list[Any]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last
