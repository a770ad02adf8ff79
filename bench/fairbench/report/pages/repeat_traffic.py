"""Floods over several seeds: the client that floods most often, and the clients that it hurts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fairbench.errors.printable import printable
from fairbench.metrics.floods import Flood, Harm
from fairbench.metrics.records import Window
from fairbench.metrics.traffic import traffic_of
from fairbench.report.numbers import number, whole_percent
from fairbench.report.pages.page import Headline
from fairbench.report.traffic_lines import TTFT, Judged, judged
from fairbench.results.run_facts import stored_facts
from fairbench.results.run_tables import read_tables
from fairbench.results.store import StoredRun


def judged_run(run: StoredRun) -> Judged:
    """Return the traffic of a stored run with its floods and their harm."""
    summary = run.summary
    facts = stored_facts(run, Window(summary["window_start_s"], summary["window_end_s"]))
    tables = read_tables(run)
    return judged(traffic_of(tables.clients, tables.requests, facts.horizon_s))


def repeat_headlines(seeds: Sequence[Judged]) -> Iterator[Headline]:
    """Yield a card for the client that floods in most seeds, and one for its harm."""
    floods = _floods(seeds)
    if not floods:
        return
    name, found = max(floods.items(), key=lambda one: len(one[1]))
    load = _range([one.share for one in found], whole_percent)
    yield Headline("who floods", name, f"{_in_seeds(found, seeds)}, {load} of the load then")
    harms = _harms(seeds)
    if harms:
        wait = _range([one.median_s for one in harms], number)
        note = f"{_in_seeds(harms, seeds)}, median wait {wait} s"
        yield Headline("who is hurt", _clients(harms), note)
    elif all(one.traffic.knows_waits for one in seeds):
        yield Headline("who is hurt", "nobody", "no wait is noticeably longer than usual")


def repeat_lines(seeds: Sequence[Judged]) -> Iterator[str]:
    """Yield each client that floods in a seed, and the harm over the seeds."""
    floods = _floods(seeds)
    for name, found in sorted(floods.items(), key=lambda one: -len(one[1])):
        load = _range([one.share for one in found], whole_percent)
        yield f"{name} floods {_in_seeds(found, seeds)}: {load} of the load in that time."
    if harms := _harms(seeds):
        wait = _range([one.median_s for one in harms], number)
        usual = _range([one.usual_s for one in harms], number)
        yield (
            f"Other clients are hurt {_in_seeds(harms, seeds)}: {_clients(harms)}, median {TTFT} "
            f"{wait} s, usually {usual} s."
        )


def _floods(seeds: Sequence[Judged]) -> dict[str, list[Flood]]:
    """Return the floods of each client, by name: the largest of each seed that has one."""
    found: dict[str, list[Flood]] = {}
    for one in seeds:
        largest: dict[int, Flood] = {}
        for flood in one.floods:
            largest.setdefault(flood.client, flood)
        for client, flood in largest.items():
            found.setdefault(printable(one.traffic.clients[client]), []).append(flood)
    return found


def _harms(seeds: Sequence[Judged]) -> list[Harm]:
    return [one.harm for one in seeds if one.harm is not None]


def _clients(harms: Sequence[Harm]) -> str:
    counts = [len(one.victims) for one in harms]
    return f"{_range(counts, '{:,}'.format)} client{'s' if max(counts) > 1 else ''}"


def _in_seeds(found: Sequence[object], seeds: Sequence[Judged]) -> str:
    return f"in {len(found)} of {len(seeds)} seeds"


def _range(values: Sequence[float], shown: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys([shown(min(values)), shown(max(values))]))
