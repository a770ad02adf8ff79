"""The result of a capacity plan as text and tables, computed from ``answer.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import metric_of
from fairbench.metrics.metric import Form
from fairbench.report.limit_lines import limit_line
from fairbench.report.numbers import UNDEFINED, WRITERS, index, number
from fairbench.report.table import MAX_WIDTH, plain_table, printed
from fairbench.results.significance import METHOD
from fairbench.results.summary import basis, trace_lines
from fairbench_logs.planning.question import REPLICAS, USERS

MET, MISSED, DOUBTFUL = "green", "red", "yellow"
WORST_SHOWN = 10

Row = Mapping[str, Any]


def answer_text(answer: Row, *, colour: bool = False, width: int = MAX_WIDTH) -> str:
    """Return a plan's answer as lines of text of at most ``width`` columns."""
    return printed(render(answer), colour=colour, width=width)


def render(answer: Row) -> RenderableType:
    """Return the answer for the terminal: a sentence, tables, and remarks."""
    basis_line, *others = head_lines(answer)
    head = [Text(basis_line), *map(Text, others)]
    warning = unlike_line(answer)
    blocks: list[RenderableType] = [Text(warning, style=DOUBTFUL), Text()] if warning else []
    blocks += [Text(needed_line(answer), style="bold"), Text()]
    blocks += [*head, Text(), _choices(answer)]
    has_loads = len({row["load"] for row in answer["choices"]}) > 1
    for row in answer["choices"]:
        if row["sharing"]:
            load = f" at {row['load']:g} x" if has_loads else ""
            title = (
                f"sharing incentive under {row['scheduler']}, dp {row['replicas']}{load}: latency "
                "on the shared cluster over latency alone on a part of it\n(at most 1: no reason "
                "to leave)"
            )
            blocks += [Text(), Text(title), _sharing(row["sharing"])]
    remarks = [Text(line) for line in remarks_of(answer)]
    return Group(*blocks, *([Text(), *remarks] if remarks else []))


def head_lines(answer: Row) -> list[str]:
    """Return the lines that state the hardware, seeds, load and trace of a plan's simulations."""
    count, first = len(answer["seeds"]), answer["seeds"][0]
    seeds = f"{count} seeds: {METHOD}" if count > 1 else f"seed {first}"
    profiles = list(dict.fromkeys(row["timing_profile"] for row in answer["choices"]))
    where = basis(answer) if len(profiles) == 1 else f"simulated on {', '.join(profiles)}"
    behaviour = [answer["behaviour"]] if "behaviour" in answer else []
    return [f"{where}, {seeds}", load_line(answer), *trace_lines(answer), *behaviour]


def unlike_line(answer: Row) -> str:
    """Return a warning if the simulated cluster does not resemble the recorded one, or else ""."""
    recorded = answer.get("recorded")
    if recorded is None or recorded["alike"]:
        return ""
    replicas = f"{recorded['replicas']} replica{'s' if recorded['replicas'] > 1 else ''}"
    return (
        f"The simulated cluster does not resemble yours: the TTFT P95 of {recorded['of']} is "
        f"{number(recorded['logged_ttft_p95_s'])} s in the log and "
        f"{number(recorded['replayed_ttft_p95_s'])} s replayed under {recorded['scheduler']} on "
        f"{replicas} of {recorded['timing_profile']}. Name your GPU and model with --gpu and "
        "--model."
    )


def needed_line(answer: Row, *, programs: bool = False) -> str:
    """Return a sentence on how many replicas each scheduler needs, or how many users it can serve.

    If ``programs`` is True, the metric ``victim_p95_s`` is the latency of whole sessions.
    """
    targets = " and ".join(said_target(one, programs=programs) for one in answer["targets"])
    rows = answer["choices"]
    several = len({row["timing_profile"] for row in rows}) > 1
    if size_of(answer) == USERS:
        return _carried_line(answer, targets)
    needs: list[str] = []
    for row in rows:
        on = f" on {row['gpu']}" if several else ""
        count = f"{row['replicas'] or answer['high']:,}"
        count = count if row["replicas"] else f"more than {count}"
        unit = "" if needs else " replica" if row["replicas"] == 1 else " replicas"
        verb = "" if needs else " needs"
        needs.append(f"{row['scheduler']}{on}{_at(row['load'], answer)}{verb} {count}{unit}")
    return f"To keep {targets}, {_listed(needs)}."


def size_of(answer: Row) -> str:
    """Return the quantity that the plan determined: USERS or REPLICAS."""
    return str(answer.get("size", REPLICAS))


def _carried_line(answer: Row, targets: str) -> str:
    several = len({row["timing_profile"] for row in answer["choices"]}) > 1
    carried: list[str] = []
    for row in answer["choices"]:
        on = f" on {row['gpu']}" if several else ""
        least = min(int(one[USERS]) for one in row["tried"])
        count = f"fewer than {least:,}" if row[USERS] is None else f"{row[USERS]:,}"
        count = f"at least {count}" if row[USERS] == answer["high"] else count
        unit = "" if carried else f" user{'' if row[USERS] == 1 else 's'}"
        verb = "" if carried else " carries"
        carried.append(f"{row['scheduler']}{on}{_at(row['load'], answer)}{verb} {count}{unit}")
    count = answer["replicas"]
    cluster = f"{count} replica{'s' if count > 1 else ''}"
    return f"Within {targets}, {_listed(carried)} on {cluster}."


def said_target(target: Row, *, programs: bool) -> str:
    """Return a target as text, in words if its metric is a P95 of the well-behaved clients."""
    sessions = "P95 of whole sessions" if programs else "TTFT P95"
    measured = {"victim_p95_s": sessions, "victim_ttft_p95_s": "TTFT P95"}.get(target["metric"])
    if measured is None:
        return str(target["slo"])
    return f"the mean {measured} of well-behaved clients below {target['limit']:g} s"


def load_line(answer: Row) -> str:
    """Return a line on the plan's load, which does not depend on the number of replicas."""
    what = f"workload {answer['workload']}, scenario {answer['scenario']}"
    if answer["rate"] is None:
        return f"{what}: the load of the trace, fixed"
    own = ", its own for one replica" if answer["rate_is_usual"] else ""
    number_of = "users; each client is a user" if size_of(answer) == USERS else "replicas"
    return (
        f"{what}: {answer['rate']:.3g} programs/s of each well-behaved client{own}, fixed "
        f"for any number of {number_of}"
    )


def _choices(answer: Row) -> Table:
    """Return the table of compared schedulers and GPUs.

    Below each chosen size, a row shows that one replica fewer, or one user more, misses a target.
    """
    rows, size = answer["choices"], size_of(answer)
    priced = any(row["cost"] is not None for row in rows)
    loads = len({row["load"] for row in rows}) > 1
    table = plain_table()
    if loads:
        table.add_column("load", justify="right")
    table.add_column("scheduler", no_wrap=True)
    table.add_column("GPU", overflow="fold", min_width=9, max_width=14)
    table.add_column(size, justify="right", no_wrap=True)
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
        none = row[size] is None
        over = "none" if size == USERS else f"> {answer['high']}"
        dp = Text(over, style=MISSED) if none else Text(f"{row[size]}")
        table.add_row(*lead, dp, *cost, *_judged(row["targets"], count))
        if not none and row["less"] is not None:
            blank = [""] * len(lead)
            less, judged = row["less"], _judged(row["less"]["targets"], count)
            table.add_row(*blank, f"{less[size]}", *([""] if priced else []), *judged)
    return table


def _judged(targets: Sequence[Row], seeds: int) -> list[Text]:
    cells = [_cell(one) for one in targets]
    return [*cells, Text(f"{min(one['seeds_met'] for one in targets)}/{seeds}")]


def _cell(target: Row) -> Text:
    """Return a cell with a target metric's mean, margin and interval, coloured by the verdict."""
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
    """Return a margin to a limit in percent, or a value above twice the limit as its multiple."""
    return f"{margin:+.0%}" if margin >= -1 else f"{1 - margin:.3g}x the limit"


def target_text(target: Row) -> str:
    """Return the mean and unit of a target's metric, or the reason why the mean is missing."""
    if target["mean"] is None:
        return target["reason"].partition(":")[0] or UNDEFINED
    entry = metric_of(target["metric"])
    unit = f" {entry.unit}" if entry is not None and entry.unit else ""
    bound = f"{target['bound']} " if target["bound"] else ""
    return f"{bound}{_writer(target)(target['mean'])}{unit}"


def _writer(target: Row) -> Callable[[float | None], str]:
    entry = metric_of(target["metric"])
    return WRITERS[Form.AMOUNT if entry is None else entry.form]


def _sharing(rows: Sequence[Row]) -> Table:
    """Return the table of each client's sharing incentive (benefit from sharing the cluster).

    A long table shows only the clients with the highest P99 of the sharing incentive.
    """
    table = plain_table("client", "P50", "P95", "P99")
    worst = sorted(rows, key=lambda row: -(row["p99"] or 0.0))
    shown = rows if len(rows) <= WORST_SHOWN else worst[:WORST_SHOWN]
    for row in shown:
        bounded = (f"{row[f'{key}_bound']} {index(row[key])}" for key in ("p50", "p95", "p99"))
        table.add_row(row["client"], *map(str.strip, bounded))
    if len(shown) < len(rows):
        table.add_row(f"and {len(rows) - len(shown)} with a lower P99", "", "", "")
    return table


def remarks_of(answer: Row) -> Iterator[str]:
    """Yield remarks on each scheduler, on uncertain verdicts, and on cheaper clusters."""
    for row in answer["choices"]:
        yield from _choice_remarks(row, answer)
    yield from _cheaper(answer)


def _choice_remarks(row: Row, answer: Row) -> Iterator[str]:
    name = f"{row['scheduler']} on {row['gpu']}{_at(row['load'], answer)}"
    size = size_of(answer)
    enough = [one[size] for one in row["tried"] if one["enough"]]
    within = max(enough, default=0) if size == USERS else min(enough, default=answer["high"])
    beyond = [
        one[size]
        for one in row["tried"]
        if not one["enough"] and (one[size] < within if size == USERS else one[size] > within)
    ]
    if size == USERS:
        yield from _user_remarks(row, answer, name)
    elif row["replicas"] is None:
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
    if limit := row.get("limit"):
        yield f"{name}: limit: {limit_line(limit)}"
    if beyond and size == REPLICAS:
        yield f"{name}: not monotone: {_listed(beyond)} replicas do not suffice, though fewer do"
    elif beyond and within:
        yield f"{name}: not monotone: {_listed(beyond)} users are too many, though {within} are not"
    if row[size] and len(answer["seeds"]) > 1 and (doubtful := _doubtful(row)):
        yield (
            f"{name}: on average {_listed(doubtful)} is met, but not over the whole 95% "
            "interval; more seeds (--num-runs) make the interval smaller, and --certain "
            "requires the whole interval"
        )


def _user_remarks(row: Row, answer: Row, name: str) -> Iterator[str]:
    """Yield a remark if no tested number of users meets the targets, or if the largest one does."""
    if row[USERS] is None:
        least = min(row["tried"], key=lambda one: int(one[USERS]))
        missed = [one["slo"] for one in least["targets"] if not one["met"]] or _doubtful(least)
        yield f"{name}: {least[USERS]}, the fewest users that are tried, miss {_listed(missed)}"
    elif row[USERS] == answer["high"]:
        yield f"{name}: {row[USERS]} users, the largest number that is tried, meet the targets"


def _doubtful(row: Row) -> list[str]:
    return [one["slo"] for one in row["targets"] if not one["certain"]]


def _cheaper(answer: Row) -> Iterator[str]:
    rows = answer["choices"] if size_of(answer) == REPLICAS else []
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
