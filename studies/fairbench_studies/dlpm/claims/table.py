"""The page of all claims, with their parts at each setting side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.errors import UsageError
from fairbench_studies.dlpm.claims import (
    conversations,
    fairness,
    mix,
    quanta,
    scaling,
    theorems,
    throughput,
    trees,
)
from fairbench_studies.dlpm.claims.pairs import Outcome
from fairbench_studies.dlpm.claims.parts import COUNTED, Claim, Part, score, total
from fairbench_studies.dlpm.fig4 import Timings
from fairbench_studies.kit.provenance import provenance
from fairbench_studies.kit.rows import write_rows

CLAIMS: Sequence[Claim] = sorted(
    (
        *throughput.CLAIMS,
        *fairness.CLAIMS,
        *conversations.CLAIMS,
        *trees.CLAIMS,
        *mix.CLAIMS,
        *quanta.CLAIMS,
        *scaling.CLAIMS,
        *theorems.CLAIMS,
    ),
    key=lambda claim: claim.number,
)

MAP = "claims-map.md"  # written by ``map_table``
NOT_RUN = "not run"
WHY = (
    "The authors' server had a KV pool of 20,000 tokens; in today's pool, twenty times as large, "
    "nearly all requests run at once, no scheduler orders them, and prefixes stay cached under "
    "every scheduler."
)
LEFT_OUT = (
    "long-qa is left out at the authors' settings, since their pool of 20,000 tokens holds none "
    "of its documents. [Figure 7](../docs/appendix/figures.md#figure-7-at-the-authors-settings) "
    "shows long-qa with pools of 25,000 to 305,000 tokens; these runs are not judged."
)
MARK = (
    "With the mark of a full batch (`engine.batch_is_full`), a pass that found no room is repeated "
    "only when a request has left. These runs have the mark, and whether the authors' fork had it "
    "is not known. The mark decides D2LPM's lead over Preble's code in tot s2 at four replicas: "
    "43% with it, and 5% without ([seed 0](../docs/contribute/papers.md#presets))."
)
RULE = (
    "A part is one statement of a claim. A configuration is a workload, a scenario and a "
    "number of replicas. A direction *holds* or is *reversed* in a configuration if the 95% "
    "interval of the difference, paired by seed, lies on one side of zero. Otherwise the "
    "direction is *inconclusive*. With a single seed the difference alone decides. A "
    "direction holds (is reversed) overall if it does in four fifths of the decided "
    "configurations, and if at least half of the contended configurations are decided. A "
    "configuration is contended if clients competed under every scheduler compared: queues "
    "were empty for at most 5% of the window, averaged over the seeds, and some client was "
    "short of service. A part about a course over time holds if every seed shows it, and is "
    "reversed if no seed does. A number *holds* inside the band given with it, and is *off* "
    "outside. A measured number holds (is off) if four fifths of its runs are inside (outside)."
)


class Setting(NamedTuple):
    """The source of runs: a title, and the data of each figure."""

    title: str
    sources: Mapping[str, Any]


class Judged(NamedTuple):
    """A claim, and its parts by the title of each setting that has its figure."""

    claim: Claim
    parts: Mapping[str, Sequence[Part]]


def judge_all(settings: Sequence[Setting]) -> list[Judged]:
    """Judge each claim at each setting whose figure exists."""
    return [
        Judged(
            claim,
            {
                setting.title: claim.judge(setting.sources[claim.figure])
                for setting in settings
                if claim.figure in setting.sources
            },
        )
        for claim in CLAIMS
    ]


def claims_markdown(judged: Sequence[Judged], settings: Sequence[Setting]) -> str:
    """Return the page: results in three sentences, a row per claim, a table of its parts."""
    titles = [setting.title for setting in settings]
    lines = [
        "# Claims of the DLPM paper",
        "",
        " ".join((_counted(judged, titles), _changed(judged, titles), WHY)),
        "",
        LEFT_OUT,
        "",
        MARK,
        "",
        f"| # | claim | paper | {' | '.join(titles)} |",
        f"|--:|---|---|{'---|' * len(titles)}",
        *(_row(one, titles) for one in judged),
        "",
        "## How a part is judged",
        "",
        RULE,
    ]
    for one in judged:
        if one.parts:
            lines += ["", *_details(one, titles)]
    lines += ["", "## Runs", ""]
    for setting in settings:
        bases = {name: _basis(source) for name, source in setting.sources.items()}
        lines += [f"- {setting.title}, {name}: {basis}" for name, basis in bases.items()]
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
    if any(part.outcome is not Outcome.HOLDS for title in shown for part in one.parts[title]):
        lines += ["", f"Reason for each part that does not hold: {one.claim.cause}."]
    return lines


def _cell(part: Part | None) -> str:
    if part is None:
        return NOT_RUN
    said = f"**{part.outcome}**" + (f": {part.ours}" if part.ours else "")
    differ = [f"by {name} {made}" for name, made in part.beside.items() if made is not part.outcome]
    return f"{said} ({', '.join(differ)})" if differ else said


def _basis(source: Any) -> str:
    if isinstance(source, Timings):
        return f"measured on {source.host}; decode step simulated on {source.timing_profile}"
    return provenance(source)


def write(judged: Sequence[Judged], settings: Sequence[Setting], folder: Path) -> list[Path]:
    """Write ``claims.md`` and ``claims.csv``. Raises UsageError if they cannot be written."""
    text = claims_markdown(judged, settings)
    if (folder / MAP).exists():
        text += f"\nWhere each claim holds when settings change: [{MAP}]({MAP})\n"
    markdown, table = folder / "claims.md", folder / "claims.csv"
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
