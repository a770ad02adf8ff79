"""The page of a paper's claims, with their parts at each setting side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.errors import UsageError
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import COUNTED, Claim, Part, score, total
from fairbench_studies.kit.rows import write_rows

NOT_RUN = "not run"
HERE = "here"  # the title of a single setting
RULE = (
    "A part is one statement of a claim. A direction *holds* or is *reversed* if the 95% interval "
    "of the difference, paired by seed, lies on one side of zero, or of the factor or margin that "
    "the part names. Otherwise the direction is *inconclusive*. With a single seed the difference "
    "alone decides. A direction at several loads holds (is reversed) if it does at four fifths of "
    "the decided loads, and if at least half of the loads are decided. An order of several values "
    "holds if every step holds, and is reversed if a step is. A statement about each run holds if "
    "every seed shows it, and is reversed if no seed does. A number *holds* inside the band given "
    "with it, and is *off* outside. Numbers are means over the seeds."
)


class Page(NamedTuple):
    """A title, the rule of judging a part, and remarks: the first follows the counts."""

    title: str
    rule: str = RULE
    remarks: Sequence[str] = ()


class Setting(NamedTuple):
    """The source of runs: a title, and the data of each figure."""

    title: str
    sources: Mapping[str, Any]


class Judged(NamedTuple):
    """A claim, and its parts by the title of each setting that has its runs."""

    claim: Claim
    parts: Mapping[str, Sequence[Part]]


def page_text(
    page: Page, judged: Sequence[Judged], titles: Sequence[str], runs: Sequence[str]
) -> str:
    """Return the page: results in a few sentences, a row per claim, a table of its parts.

    Args:
        titles: The settings, in the order of their columns.
        runs: A line about the runs of each source.
    """
    said = (_counted(judged, titles), _changed(judged, titles), *page.remarks[:1])
    lines = [
        f"# {page.title}",
        "",
        " ".join(filter(None, said)),
        *(line for remark in page.remarks[1:] for line in ("", remark)),
        "",
        f"| # | claim | paper | {' | '.join(titles)} |",
        f"|--:|---|---|{'---|' * len(titles)}",
        *(_row(one, titles) for one in judged),
        "",
        "## How a part is judged",
        "",
        page.rule,
    ]
    for one in judged:
        if one.parts:
            lines += ["", *_details(one, titles)]
    lines += ["", "## Runs", "", *(f"- {run}" for run in runs)]
    return "\n".join(lines) + "\n"


def _counted(judged: Sequence[Judged], titles: Sequence[str]) -> str:
    """Return how many parts have each outcome at each setting, as a sentence."""
    said = []
    for title in titles:
        counts = total([part for one in judged for part in one.parts.get(title, ())])
        tested = sum(counts[outcome] for outcome in COUNTED)
        rest = ", ".join(f"{counts[one]} {one}" for one in COUNTED[1:])
        said.append(f"{title} {counts[Outcome.HOLDS]} of {tested} parts hold ({rest})")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _changed(judged: Sequence[Judged], titles: Sequence[str]) -> str:
    """Return a sentence on how many parts hold at only one of two settings."""
    if len(titles) != 2:
        return ""
    pairs = [
        tuple(part.outcome is Outcome.HOLDS for part in both)
        for one in judged
        if len(one.parts) == 2
        for both in _same(*(one.parts[title] for title in titles))
        if all(part.outcome in COUNTED for part in both)
    ]
    first, second = (pairs.count(which) for which in ((True, False), (False, True)))
    return (
        f"Of the {len(pairs)} parts that are judged at both, {first} hold {titles[0]} only and "
        f"{second} {titles[1]} only."
    )


def _same(first: Sequence[Part], second: Sequence[Part]) -> list[tuple[Part, Part]]:
    """Return the pairs of parts whose text is equal."""
    others = {part.text: part for part in second}
    return [(part, others[part.text]) for part in first if part.text in others]


def _row(one: Judged, titles: Sequence[str]) -> str:
    claim = one.claim
    cells = [score(one.parts[title]) if title in one.parts else NOT_RUN for title in titles]
    return (
        f"| {claim.number} | {claim.text} ({claim.source}) | {claim.paper} | {' | '.join(cells)} |"
    )


def _details(one: Judged, titles: Sequence[str]) -> list[str]:
    """Return the parts of a claim as a table, a column per setting, with reasons."""
    shown = [title for title in titles if title in one.parts]
    texts = dict.fromkeys(part.text for title in shown for part in one.parts[title])
    by_text = {title: {part.text: part for part in one.parts[title]} for title in shown}
    lines = [
        f"### {one.claim.number}. {one.claim.text}",
        "",
        f"| part | {' | '.join(shown)} |",
        f"|---|{'---|' * len(shown)}",
        *(
            f"| {text} | {' | '.join(_cell(by_text[title].get(text)) for title in shown)} |"
            for text in texts
        ),
    ]
    if one.claim.cause and any(
        part.outcome is not Outcome.HOLDS for title in shown for part in one.parts[title]
    ):
        lines += ["", f"Reason for each part that does not hold: {one.claim.cause}."]
    return lines


def _cell(part: Part | None) -> str:
    if part is None:
        return NOT_RUN
    said = f"**{part.outcome}**" + (f": {part.ours}" if part.ours else "")
    differ = [f"by {name} {made}" for name, made in part.beside.items() if made is not part.outcome]
    return f"{said} ({', '.join(differ)})" if differ else said


def write_page(judged: Sequence[Judged], text: str, folder: Path, stem: str) -> list[Path]:
    """Write the text as ``STEM.md`` and the parts as ``STEM.csv``; return the files.

    Raises UsageError if they cannot be written.
    """
    markdown, table = folder / f"{stem}.md", folder / f"{stem}.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        markdown.write_text(text, encoding="utf-8")
        write_rows(table, list(_rows(judged)))
    except OSError as error:
        raise UsageError(f"claims_dir {folder}: cannot be written: {error.strerror}") from None
    return [markdown, table]


def _rows(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    return [
        {
            "number": one.claim.number,
            "claim": one.claim.text,
            "source": one.claim.source,
            "paper": one.claim.paper,
            "figure": one.claim.figure,
            "setting": title,
            "part": part.text,
            "outcome": str(part.outcome),
            "ours": part.ours,
            "beside": "; ".join(f"{name}: {made}" for name, made in part.beside.items()),
            "elsewhere": part.elsewhere,
        }
        for one in judged
        for title, parts in one.parts.items()
        for part in parts
    ]
