"""The effect of charging rules for shared prefixes on clients' shares and incentives.

    fairbench sweep results/tables/sharing.toml
    python studies sharing results/runs/sharing

The script writes results/tables/sharing.csv. In scenario s1, the prompts of all clients begin with
a common description of tools. In scenario s2, the last client has its own description of tools and
shares no prefix.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from fairbench.results.store import StoredRun, Summary, runs_in
from fairbench_studies.kit.table_store import write

SCHEDULERS = ("lpm", "vtc", "dlpm", "d2lpm")
RULES = {
    "uncached": "first user",
    "split": "split",
    "owner": "owner",
    "input": "each",
    "each": "each",
}
"""Names of charging rules, by value of the settings ``charge`` and ``sharing``."""
Seeds = Sequence[Summary]


def rule_of(run: StoredRun) -> str:
    """Return the rule by which a run charged clients for shared prefixes."""
    settings = tomllib.loads((run.path / "experiment.toml").read_text(encoding="utf-8"))["settings"]
    match run.summary["scheduler"]:
        case "lpm":
            return "nobody"
        case "d2lpm":
            return RULES[settings["d2lpm"]["charge"]]
        case local:
            return RULES[settings[local].get("sharing", "uncached")]


def rates(summary: Summary) -> list[float]:
    """Return the service of each client in k tok/s, including cached input."""
    return [client["service_rate_tok_s"] / 1000 for client in summary["clients"]]


def row(scheduler: str, rule: str, shared: Seeds, alone: Seeds) -> dict[str, str]:
    """Return a row that compares two cases: all clients share a prefix, or all except the last."""
    last = [rates(summary)[-1] for summary in shared]
    own = [rates(summary)[-1] for summary in alone]
    others = [mean(rates(a)[:-1]) / mean(rates(s)[:-1]) for s, a in zip(shared, alone, strict=True)]
    return {
        "scheduler": scheduler,
        "who pays": rule,
        "all share: k tok/s": _range([sum(rates(one)) for one in shared]),
        "of a client": " to ".join(
            f"{mean(pick(rates(one)) for one in shared):.1f}" for pick in (min, max)
        ),
        "Jain": _range([one["jain_index"] for one in shared], 3),
        "Jain, one leaves": _range([one["jain_index"] for one in alone], 3),
        "leaver's service": _range([a / b for a, b in zip(own, last, strict=True)], 2),
        "others' service": _range(others, 2),
    }


def _range(values: Sequence[float], digits: int = 1) -> str:
    ends = dict.fromkeys(f"{pick(values):.{digits}f}" for pick in (min, max))
    return " to ".join(ends)


def table(runs: Iterable[StoredRun]) -> list[dict[str, str]]:
    """Return a table row for each scheduler and charging rule."""
    found: dict[tuple[str, str], dict[str, dict[int, Summary]]] = {}
    for run in runs:
        of = found.setdefault((run.summary["scheduler"], rule_of(run)), {})
        of.setdefault(run.summary["scenario"], {})[run.summary["seed"]] = run.summary
    rules = ["nobody", *dict.fromkeys(RULES.values())]
    order = sorted(found, key=lambda key: (SCHEDULERS.index(key[0]), rules.index(key[1])))
    return [
        row(*key, *(_by_seed(found[key][scenario]) for scenario in ("s1", "s2"))) for key in order
    ]


def _by_seed(of: Mapping[int, Summary]) -> Seeds:
    return [of[seed] for seed in sorted(of)]


def main(folder: str) -> None:
    """Read the folder with the runs, and write the table of service by charging rule."""
    write("sharing", table(runs_in(Path(folder) / "runs")))
