"""Claim 35: the output of a textbook's listing, reproduced to the digit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairbench_studies.kit.claims_page import HERE, Judged, Page, page_text, write_page
from fairbench_studies.kit.outcomes import Outcome as Found
from fairbench_studies.kit.parts import Claim, Part, in_every
from fairbench_studies.textbook.edf import TextbookEDF
from fairbench_studies.textbook.replica import (
    BUDGET_BLOCKS,
    InOrder,
    Outcome,
    Replica,
    printed_load,
)

NAMES = {"fcfs": "FCFS", "slo": "SLO-aware"}
PRINTED = {"fcfs": (80, 34, "46%", 814), "slo": (80, 65, "100%", 948)}
RULE = (
    "A part is one statement of the claim. A statement *holds* if the run shows it. Printed "
    "numbers *hold* if every digit is the same, and are *off* otherwise. The load is the "
    "listing's own, so one run decides."
)
BASIS = "the listing's own replica, 120 blocks of 16 tokens and batches of 24"


def played() -> dict[str, Outcome]:
    """Run both scheduling policies of the textbook's listing on the listing's own load."""
    textbook = TextbookEDF(TextbookEDF.Params(step_s=1.0))
    return {
        "fcfs": Replica(InOrder(), printed_load()).run(),
        "slo": Replica(textbook, printed_load()).run(),
    }


def judge_listing(outcomes: dict[str, Outcome]) -> list[Part]:
    """Check that simulated numbers equal the textbook's; report steps above the memory budget."""
    found = {
        name: (one.finished, one.on_time, f"{one.short_on_time:.0%}", one.steps)
        for name, one in outcomes.items()
    }
    fcfs, slo = outcomes["fcfs"], outcomes["slo"]
    beyond = {
        "fcfs": f"above its {BUDGET_BLOCKS} blocks in {fcfs.steps_over_budget} steps",
        "slo": f"with {slo.preempted} preemptions, above its {BUDGET_BLOCKS} blocks in "
        f"{slo.steps_over_budget} steps",
    }
    return [
        in_every(
            "SLO-aware finishes as many",
            [slo.finished == fcfs.finished],
            f"{slo.finished}, FCFS {fcfs.finished}",
        ),
        in_every(
            "more are on time",
            [slo.on_time > fcfs.on_time],
            f"{slo.on_time}, FCFS {fcfs.on_time}",
        ),
        *(
            Part(
                f"{NAMES[name]}: every printed number",
                Found.HOLDS if numbers == PRINTED[name] else Found.OFF,
                f"{_said(numbers)}, {beyond[name]}",
            )
            for name, numbers in found.items()
        ),
    ]


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
    """Judge claim 35, on the printed output of a textbook's listing, in about a second."""
    return [Judged(CLAIM, {HERE: judge_listing(played())})]


def textbook_markdown(judged: Sequence[Judged]) -> str:
    """Return the Markdown page of the judged claim of the textbook."""
    return page_text(Page("A textbook's claim", RULE), judged, [HERE], [f"simulated on {BASIS}"])


def write_textbook(judged: Sequence[Judged], folder: Path) -> list[Path]:
    """Write ``textbook-claims.md`` and ``.csv``. Raises UsageError if a file cannot be written."""
    return write_page(judged, textbook_markdown(judged), folder, "textbook-claims")
