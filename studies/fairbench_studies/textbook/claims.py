"""Claim 35: the output of a textbook's listing, reproduced to the digit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairbench_studies.kit.claim import Claim, Finding, verdict
from fairbench_studies.kit.judged import Judged, table_lines, write_claims
from fairbench_studies.textbook.edf import TextbookEDF
from fairbench_studies.textbook.replica import (
    BUDGET_BLOCKS,
    InOrder,
    Outcome,
    Replica,
    printed_load,
)

PRINTED = {"fcfs": (80, 34, "46%", 814), "slo": (80, 65, "100%", 948)}
INTRODUCTION = (
    "# A textbook's claim",
    "",
    "This page compares a textbook's claim about deadlines with the numbers of fairbench.",
    "",
)
BASIS = "the listing's own replica, 120 blocks of 16 tokens and batches of 24"


def played() -> dict[str, Outcome]:
    """Run both policies of the listing on its load."""
    textbook = TextbookEDF(TextbookEDF.Params(step_s=1.0))
    return {
        "fcfs": Replica(InOrder(), printed_load()).run(),
        "slo": Replica(textbook, printed_load()).run(),
    }


def judge_listing(outcomes: dict[str, Outcome]) -> Finding:
    """Compare all printed numbers exactly, and report inputs that the listing ignores."""
    found = {
        name: (one.finished, one.on_time, f"{one.short_on_time:.0%}", one.steps)
        for name, one in outcomes.items()
    }
    fcfs, slo = outcomes["fcfs"], outcomes["slo"]
    return Finding(
        f"{_said(found['fcfs'])}; {_said(found['slo'])}, with {slo.preempted} preemptions, and "
        f"above its {BUDGET_BLOCKS} blocks in {slo.steps_over_budget} steps (FCFS in "
        f"{fcfs.steps_over_budget})",
        verdict(
            shape=slo.on_time > fcfs.on_time and slo.finished == fcfs.finished,
            quantity=found == PRINTED,
            opposite=slo.on_time < fcfs.on_time,
        ),
    )


def _said(numbers: tuple[int, int, str, int]) -> str:
    finished, on_time, short, steps = numbers
    return f"{on_time} of {finished} on time, {short} of the short ones, {steps} steps"


CLAIM = Claim(
    35,
    "SLO-aware scheduling with preemption finishes as many, and nearly twice as many on time",
    f"FCFS {_said(PRINTED['fcfs'])}; SLO-aware {_said(PRINTED['slo'])}",
    "textbook, Code and Output 24.6.1",
    "textbook",
    judge_listing,
    "the listing's replica gives other numbers here than it printed",
)


def judge_textbook() -> list[Judged]:
    """Judge the claim. This takes about a second."""
    return [Judged(CLAIM, judge_listing(played()), BASIS)]


def textbook_markdown(judged: Sequence[Judged]) -> str:
    """Return the table as Markdown, followed by the source of its numbers."""
    return "\n".join([*INTRODUCTION, *table_lines(judged), "", f"Simulated on {BASIS}."]) + "\n"


def write_textbook(judged: Sequence[Judged], folder: Path) -> list[Path]:
    """Write ``textbook-claims.md`` and ``.csv``. Raises UsageError if they cannot be written."""
    return write_claims(judged, textbook_markdown(judged), folder, "textbook-claims")
