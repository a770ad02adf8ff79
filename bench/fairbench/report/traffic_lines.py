"""Floods and their harm in sentences, for a diagnosis and for a run's page."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from fairbench.errors import printable
from fairbench.files.times import Clock
from fairbench.metrics.floods import Flood, Harm, floods, harm_of
from fairbench.metrics.traffic import Overload, Traffic
from fairbench.report.numbers import number, percent

MANY = 1000.0  # ratios above this are printed without decimals
NAMED = 3  # number of victims that are named
TTFT = "time to first token"


def flood_line(
    traffic: Traffic, flood: Flood, *, several: bool = False, verb: str = "floods"
) -> str:
    """Return the client, time and size of a flood as a sentence.

    Args:
        several: Whether there are other floods, which are left out of the mean.
        verb: What the client does.
    """
    name = printable(traffic.clients[flood.client])
    when = "throughout"
    if not flood.throughout:
        when = f"from {window(flood.start_s, flood.end_s, traffic.clock)}"
    much = f"{flood.multiple:.0f} times" if flood.multiple < MANY else f"over {MANY:,.0f} times"
    return (
        f"{name} {verb} {when}: {flood.share:.0%} of the load in that time, {much} the mean of "
        f"the {'clients that do not flood' if several else 'other clients'}."
    )


def harm_line(traffic: Traffic, harm: Harm, heavy: int, measured: str, basis: str) -> str:
    """Return how many clients waited, when, how long, and which waited longest.

    Args:
        heavy: How many clients flood.
    """
    others = len(traffic.clients) - heavy
    worst = ", ".join(printable(traffic.clients[one.client]) for one in harm.victims[:NAMED])
    more = " (longest: " + worst + ")" if len(harm.victims) > NAMED else f" ({worst})"
    hurt = f"{len(harm.victims):,} of {others:,} other client{'s' if others > 1 else ''}"
    verb = "are" if len(harm.victims) > 1 else "is"
    when = window(harm.start_s, harm.end_s, traffic.clock)
    return (
        f"{hurt} {verb} hurt from {when}{more}: median {measured} {number(harm.median_s)} s, "
        f"usually {number(harm.usual_s)} s, {basis}."
    )


class Shortfall(NamedTuple):
    """A client that received little of its fair share, in its worst minute."""

    client: str
    share: float
    start_s: float
    end_s: float


class Judged(NamedTuple):
    """Traffic with its floods and their harm; ``heavy`` are the names of heavy clients.

    ``bursts`` are floods of clients that the workload calls well-behaved. ``shortfall`` is that of
    the worst minute, if a client received little in it.
    """

    traffic: Traffic
    floods: tuple[Flood, ...]
    harm: Harm | None
    heavy: tuple[str, ...]
    bursts: tuple[Flood, ...] = ()
    shortfall: Shortfall | None = None


def judged(
    traffic: Traffic, well_behaved: Collection[str] = (), shortfall: Shortfall | None = None
) -> Judged:
    """Return the traffic with its floods and their harm.

    A client that is called ``well_behaved`` may burst, but does not flood.
    """
    every = floods(traffic)
    found = tuple(one for one in every if traffic.clients[one.client] not in well_behaved)
    bursts = tuple(one for one in every if one not in found)
    heavy = tuple(dict.fromkeys(traffic.clients[one.client] for one in found))
    return Judged(traffic, found, harm_of(traffic, found), heavy, bursts, shortfall)


def traffic_lines(found: Judged, basis: str, measured: str = TTFT) -> Iterator[str]:
    """Yield the floods and bursts of the traffic and their harm; nothing without a flood."""
    several = len(found.floods) + len(found.bursts) > 1
    yield from (flood_line(found.traffic, one, several=several) for one in found.floods)
    for one in found.bursts:
        yield flood_line(found.traffic, one, several=several, verb="bursts")
    if found.harm is not None:
        for part in found.harm.parts or (found.harm,):
            yield harm_line(found.traffic, part, len(found.heavy), measured, basis)
    elif found.floods and found.shortfall is not None:
        yield shortfall_line(found.shortfall, found.traffic.clock)
    elif found.floods and found.traffic.knows_waits:
        yield "No other client waited noticeably longer than usual."


def shortfall_line(found: Shortfall, clock: Clock | None) -> str:
    """Return which client received little, how much and when, as a sentence."""
    when = window(found.start_s, found.end_s, clock)
    return (
        f"{printable(found.client)} received {percent(found.share)} of its fair share from {when}."
    )


def overload_line(traffic: Traffic, found: Overload, basis: str) -> str:
    """Return that most clients wait, when and how long, as a sentence."""
    why = "No single client causes it:" if len(traffic.clients) > 1 else "It is the only client:"
    who = f"{found.clients:,} of {len(traffic.clients):,} clients wait"
    return (
        f"{who} long from {window(found.start_s, found.end_s, traffic.clock)}: median {TTFT} "
        f"{number(found.median_s)} s, P95 {number(found.p95_s)} s, {basis}. {why} the servers "
        "are overloaded."
    )


def window_list(parts: Sequence[tuple[float, float]], clock: Clock | None = None) -> str:
    """Return several times, such as ``150 to 200 s and 600 to 660 s``."""
    texts = [window(*one, clock) for one in parts]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if texts[1:] else texts)


def window(start_s: float, end_s: float, clock: Clock | None = None) -> str:
    """Return a period in whole seconds, with the clock's times if known."""
    dated = f" ({clock.window(start_s, end_s)})" if clock is not None else ""
    return f"{start_s:,.0f} to {end_s:,.0f} s{dated}"
