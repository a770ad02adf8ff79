"""The page on the DLPM paper's claims, judged with the preset dlpm-paper and with defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbench.errors import DataError
from fairbench_studies.dlpm.claims import (
    conversations,
    fairness,
    mix,
    quanta,
    scaling,
    sharing,
    tested,
    theorems,
    throughput,
    trees,
)
from fairbench_studies.dlpm.claims.places import AT_FOUR, on_four_replicas
from fairbench_studies.dlpm.claims.readings import (
    LONG_QA_QUANTUM,
    RERUN_NAMES,
    Tried,
    at_rerun,
    in_long_qa,
    with_long_qa,
    with_readings,
)
from fairbench_studies.dlpm.claims.tested import TESTS, ByTests
from fairbench_studies.dlpm.fig4 import Timings, read_values
from fairbench_studies.kit.claims_page import Judged, Page, Setting, page_text, write_page
from fairbench_studies.kit.parts import Claim
from fairbench_studies.kit.provenance import provenance
from fairbench_studies.kit.seeds import read_seeds

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
        *sharing.CLAIMS,
        *tested.CLAIMS,
    ),
    key=lambda claim: claim.number,
)

MAP = "claims-map.md"  # file that ``map_table`` writes
AUTHORS = "dlpm-paper"  # preset with which claims are judged by default
AT_RERUN, AT_DEFAULTS = "at the rerun's settings", "at fairbench's defaults"
TIMED = "fig4"  # the only figure that shows measured times instead of simulations
SEEDS = "seeds"  # folder of per-seed values, in the same folder as the page
WHY = (
    "The rerun's server had a KV pool of 20,000 tokens; in fairbench's default pool, twenty times "
    "as large, nearly all requests run at once, no scheduler orders them, and prefixes stay cached "
    "under every scheduler."
)
RERUN = (
    "The rerun's settings are the flags with which a third party ran the authors' benchmark again "
    "([presets](../docs/reference/papers.md#presets)); the paper itself names few settings. The "
    "rerun sends programs at even intervals, where the paper says a Gamma process without its "
    "coefficient of variation."
)
LEFT_OUT = (
    "long-qa is left out at the rerun's settings, since the pool of 20,000 tokens holds none "
    "of its documents. [Figure 7](../docs/appendix/figures.md#figure-7-at-the-reruns-settings) "
    'shows long-qa with pools of 25,000 to 305,000 tokens. The column "holds under" says what '
    "changes with long-qa in a pool of 305,000 tokens (four replicas; decided only where the "
    "intervals of the two means do not overlap)."
)
READINGS = (
    "Claims depend on four readings of what the paper leaves open. *Without the mark*: "
    "with the mark of a full batch (`engine.batch_is_full`), a pass that found no room is repeated "
    "only when a request has left; the rerun has the mark, and whether the authors' fork had the "
    "mark is not known. *Poisson arrivals*: a Gamma process with coefficient of variation 1 "
    "instead of even intervals. *Prefix as a mean*: Table 2's prefix of 546 tokens as the mean "
    "over the four levels of a tree (root 117) instead of the root itself. *Q^w 400,000 in "
    "long-qa*: the quantum of about twenty mean requests, as [gaps] B3 says, instead of the "
    "default of 4,000,000."
)
TRIED = (
    'The column "holds under" has an outcome for each of these readings that was tried, with seed '
    "0: the mark and the arrivals in `tot` and `judge` on four replicas, the prefix in `tot` on "
    "four replicas, for the parts that have the same outcome there as over all configurations; Q^w "
    "in long-qa s1 on eight replicas, beside the configurations of the other workloads as judged."
)
NOT_TRIED = (
    "Not judged, because values of these runs are not stored: {}. Run `python studies seeds` "
    "with `results/tables/readings.toml` and `results/tables/readings-long-qa.toml`, then "
    "`fairbench reproduce claims --from results`."
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
    (WHY, RERUN, LEFT_OUT, READINGS),
)


def judge_all(settings: Sequence[Setting], seeds: Path | None = None) -> list[Judged]:
    """Judge each claim at each setting for which the figure's runs exist.

    Verdicts for other interpretations of the paper come from the per-seed values in ``seeds``.
    """
    found = {one.title: _readings(one, seeds) for one in settings} if seeds else {}
    judged = []
    for claim in CLAIMS:
        parts = {
            one.title: with_readings(claim.number, made, found.get(one.title, {}))
            for one in settings
            if claim.figure in one.sources and (made := claim.judge(one.sources[claim.figure]))
        }
        judged.append(Judged(claim, parts))
    return judged


def _readings(setting: Setting, seeds: Path) -> Mapping[str, Tried]:
    cells = setting.sources.get("fig7")
    if cells is None:
        return {}
    if setting.title == AT_RERUN:
        return {**at_rerun(CLAIMS, seeds), **with_long_qa(CLAIMS, cells)}
    return in_long_qa(CLAIMS, cells, seeds)


def claims_markdown(judged: Sequence[Judged], settings: Sequence[Setting]) -> str:
    """Return the Markdown page of all claims."""
    runs = [
        f"{setting.title}, {name}: {_basis(source)}"
        for setting in settings
        for name, source in setting.sources.items()
    ]
    page = PAGE._replace(remarks=(*PAGE.remarks, *_remarks(judged)))
    return page_text(page, judged, [setting.title for setting in settings], runs)


def _remarks(judged: Sequence[Judged]) -> list[str]:
    tried = {name for one in judged for of in one.parts.values() for p in of for name in p.under}
    names = [*sorted(RERUN_NAMES), LONG_QA_QUANTUM.name]
    missing = [name for name in names if name not in tried]
    remarks = [TRIED] if len(missing) < len(names) else []
    return [*remarks, NOT_TRIED.format(", ".join(missing))] if missing else remarks


def _bases(settings: Sequence[Setting]) -> dict[tuple[str, str], str]:
    return {
        (setting.title, name): _basis(source)
        for setting in settings
        for name, source in setting.sources.items()
    }


def _basis(source: Any) -> str:
    if isinstance(source, ByTests):
        return source.basis
    if isinstance(source, Timings):
        return f"measured on {source.host}; decode step simulated on {source.timing_profile}"
    return provenance(source)


def write(judged: Sequence[Judged], settings: Sequence[Setting], folder: Path) -> list[Path]:
    """Write ``claims.md`` and ``claims.csv``. Raises UsageError if a file cannot be written."""
    text = claims_markdown(judged, settings)
    if (folder / MAP).exists():
        text += f"\nWhere each claim holds when settings change: [{MAP}]({MAP})\n"
    return write_page(judged, text, folder, "claims", _bases(settings))


def stored_settings(folder: Path) -> list[Setting]:
    """Read each figure's per-seed values, with the preset dlpm-paper and with default settings.

    Raises DataError if the folder has no folder of per-seed values.
    """
    if not (folder / SEEDS).is_dir():
        raise DataError(f"{folder}: has no folder {SEEDS}; run `fairbench reproduce claims` first")
    figures = dict.fromkeys(
        claim.figure for claim in CLAIMS if claim.figure not in (AT_FOUR, TESTS)
    )
    names = {AT_RERUN: f"{{}}-{AUTHORS}.csv", AT_DEFAULTS: "{}.csv"}
    found = {
        title: {one: folder / SEEDS / name.format(one) for one in figures}
        for title, name in names.items()
    }
    return with_tests(
        [
            Setting(
                title,
                with_four({one: _stored(one, path) for one, path in of.items() if path.exists()}),
            )
            for title, of in found.items()
        ]
    )


def with_four(sources: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``sources`` with an additional entry for figure 7's runs on four replicas."""
    if "fig7" not in sources:
        return sources
    return {**sources, AT_FOUR: on_four_replicas(sources["fig7"])}


def with_tests(settings: Sequence[Setting]) -> list[Setting]:
    """Add the tests as a source of claims to the default settings, and return all ``settings``."""
    return [
        one._replace(sources={**one.sources, TESTS: ByTests()}) if one.title == AT_DEFAULTS else one
        for one in settings
    ]


def _stored(figure: str, path: Path) -> Any:
    return read_values(path) if figure == TIMED else read_seeds(path)
