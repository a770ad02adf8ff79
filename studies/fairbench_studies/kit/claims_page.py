"""The results page of a paper's claims, with one column of verdicts for each setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fairbench.errors import UsageError
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import COUNTED, Claim, Part, score, total
from fairbench_studies.kit.rows import write_rows

NOT_RUN = "not run"
HERE = "here"  # heading of the results column, if there is only one setting
UNDER = "holds under"
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
    """The fixed texts of a claims page: title, rule and remarks.

    ``rule`` explains how the parts of a claim are judged. The page shows the first remark after the
    summary of verdicts, and each other remark as its own paragraph.
    """

    title: str
    rule: str = RULE
    remarks: Sequence[str] = ()


class Setting(NamedTuple):
    """A group of runs, such as the runs with the paper's settings: its title and its data."""

    title: str
    sources: Mapping[str, Any]


class Judged(NamedTuple):
    """A claim, and the claim's judged parts by the title of the settings of their runs."""

    claim: Claim
    parts: Mapping[str, Sequence[Part]]


def page_text(
    page: Page, judged: Sequence[Judged], titles: Sequence[str], runs: Sequence[str]
) -> str:
    """Return the page of judged claims: a summary, a row per claim, and tables of claims' parts.

    Args:
        titles: The titles of the settings, in the order of the page's columns.
        runs: For each setting, a text that says how the runs were made.
    """
    said = (
        _counted(judged, titles),
        _changed(judged, titles),
        _steady(judged, titles),
        *page.remarks[:1],
    )
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
    said = []
    for title in titles:
        counts = total([part for one in judged for part in one.parts.get(title, ())])
        tested = sum(counts[outcome] for outcome in COUNTED)
        rest = ", ".join(f"{counts[one]} {one}" for one in COUNTED[1:])
        said.append(f"{title} {counts[Outcome.HOLDS]} of {tested} parts hold ({rest})")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _changed(judged: Sequence[Judged], titles: Sequence[str]) -> str:
    """Return a sentence on the parts of claims that hold in only one of the columns ``titles``."""
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


def steady(parts: Iterable[Part]) -> tuple[int, int]:
    """Count the parts of claims that hold under every reading of the paper.

    A reading is an interpretation of an unclear point of a paper. The second result counts parts
    that hold under the default reading and have other readings.
    """
    tried = [part for part in parts if part.under and part.outcome is Outcome.HOLDS]
    every = [part for part in tried if set(part.under.values()) == {Outcome.HOLDS}]
    return len(every), len(tried)


def _steady(judged: Sequence[Judged], titles: Sequence[str]) -> str:
    said = []
    for title in titles:
        every, tried = steady(part for one in judged for part in one.parts.get(title, ()))
        if tried:
            said.append(f"{every} of {tried} {title}")
    if not said:
        return ""
    return (
        "Of the parts that hold and were also judged under another reading of the paper, "
        f"{' and '.join(said)} hold under every reading."
    )


def _same(first: Sequence[Part], second: Sequence[Part]) -> list[tuple[Part, Part]]:
    others = {part.text: part for part in second}
    return [(part, others[part.text]) for part in first if part.text in others]


def _row(one: Judged, titles: Sequence[str]) -> str:
    claim = one.claim
    cells = [score(one.parts[title]) if title in one.parts else NOT_RUN for title in titles]
    return (
        f"| {claim.number} | {claim.text} ({claim.source}) | {claim.paper} | {' | '.join(cells)} |"
    )


def _details(one: Judged, titles: Sequence[str]) -> list[str]:
    shown = [title for title in titles if title in one.parts]
    texts = dict.fromkeys(part.text for title in shown for part in one.parts[title])
    by_text = {title: {part.text: part for part in one.parts[title]} for title in shown}
    under = {text: _under(text, by_text) for text in texts}
    columns = [*shown, UNDER] if any(under.values()) else shown
    lines = [
        f"### {one.claim.number}. {one.claim.text}",
        "",
        f"| part | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
    ]
    for text in texts:
        cells = [_cell(by_text[title].get(text)) for title in shown]
        cells += [under[text] or "-"] if len(columns) > len(shown) else []
        lines.append(f"| {text} | {' | '.join(cells)} |")
    if one.claim.cause and any(
        part.outcome is not Outcome.HOLDS for title in shown for part in one.parts[title]
    ):
        lines += ["", f"Reason for each part that does not hold: {one.claim.cause}."]
    return lines


def _under(text: str, by_text: Mapping[str, Mapping[str, Part]]) -> str:
    said = {title: readings(parts[text].under) for title, parts in by_text.items() if text in parts}
    several = len(by_text) > 1
    return "; ".join(
        f"{title.removeprefix('at ')}: {words}" if several else words
        for title, words in said.items()
        if words
    )


def readings(under: Mapping[str, Outcome]) -> str:
    """Return as text under which readings (interpretations) of the paper a claim holds.

    Examples: ``all (a, b)``, ``a; not b``, ``none (a, b)``.
    """
    holds = [name for name, made in under.items() if made is Outcome.HOLDS]
    fails = [name for name in under if name not in holds]
    if not under:
        return ""
    if holds and fails:
        return f"{', '.join(holds)}; not {', '.join(fails)}"
    return f"{'all' if holds else 'none'} ({', '.join(under)})"


def _cell(part: Part | None) -> str:
    if part is None:
        return NOT_RUN
    said = f"**{part.outcome}**" + (f": {part.ours}" if part.ours else "")
    differ = [f"by {name} {made}" for name, made in part.beside.items() if made is not part.outcome]
    return f"{said} ({', '.join(differ)})" if differ else said


def write_page(
    judged: Sequence[Judged],
    text: str,
    folder: Path,
    stem: str,
    bases: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> list[Path]:
    """Write the page to ``STEM.md`` and the parts of its claims to ``STEM.csv``; return both paths.

    For each setting and figure, ``bases`` names the runs on which the figure is based. Raises
    UsageError if a file cannot be written.
    """
    markdown, table = folder / f"{stem}.md", folder / f"{stem}.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        markdown.write_text(text, encoding="utf-8")
        write_rows(table, list(_rows(judged, bases)))
    except OSError as error:
        raise UsageError(f"claims_dir {folder}: cannot be written: {error.strerror}") from None
    return [markdown, table]


def _rows(judged: Sequence[Judged], bases: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
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
            "interval": part.interval,
            "beside": _named(part.beside),
            "elsewhere": part.elsewhere,
            "under": _named(part.under),
            "basis": bases.get((title, one.claim.figure), ""),
        }
        for one in judged
        for title, parts in one.parts.items()
        for part in parts
    ]


def _named(outcomes: Mapping[str, Outcome]) -> str:
    return "; ".join(f"{name}: {made}" for name, made in outcomes.items())
