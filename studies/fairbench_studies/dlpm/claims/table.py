"""The page of the DLPM paper's claims at the authors' and at today's settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from fairbench_studies.dlpm.fig4 import Timings
from fairbench_studies.kit.claims_page import Judged, Page, Setting, page_text, write_page
from fairbench_studies.kit.parts import Claim
from fairbench_studies.kit.provenance import provenance

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
PAGE = Page(
    "Claims of the DLPM paper",
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
    "outside. A measured number holds (is off) if four fifths of its runs are inside (outside).",
    (WHY, LEFT_OUT, MARK),
)


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
    """Return the page of all claims."""
    runs = [
        f"{setting.title}, {name}: {_basis(source)}"
        for setting in settings
        for name, source in setting.sources.items()
    ]
    return page_text(PAGE, judged, [setting.title for setting in settings], runs)


def _basis(source: Any) -> str:
    if isinstance(source, Timings):
        return f"measured on {source.host}; decode step simulated on {source.timing_profile}"
    return provenance(source)


def write(judged: Sequence[Judged], settings: Sequence[Setting], folder: Path) -> list[Path]:
    """Write ``claims.md`` and ``claims.csv``. Raises UsageError if they cannot be written."""
    text = claims_markdown(judged, settings)
    if (folder / MAP).exists():
        text += f"\nWhere each claim holds when settings change: [{MAP}]({MAP})\n"
    return write_page(judged, text, folder, "claims")
