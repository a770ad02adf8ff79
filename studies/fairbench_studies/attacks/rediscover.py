"""``fairbench attack --rediscover``: test whether a search finds the known attacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from fairbench.cli.exits import FAILED
from fairbench.cli.options import given_options
from fairbench.cli.output import print_json
from fairbench.config.resolve import experiment
from fairbench.execute.tasks import RunContext
from fairbench_attacks.flags import Objective, Optimiser
from fairbench_attacks.report import processors_text
from fairbench_attacks.search import Search
from fairbench_attacks.store import SearchPlan, SearchStore
from fairbench_attacks.workload import Stakes
from fairbench_studies.attacks.rediscovery import by_scheduler, rediscover

# ``DURATION_S`` is two periods of the attack ``bursts``.
TRIALS, DURATION_S = 192, 120.0


def sought_all(
    given_flags: Mapping[str, Any], result_dir: Path, context: RunContext, as_json: bool
) -> None:
    """Search for attacks under each scheduler, and print the results.

    Exits with code 1 if a known attack was not found.
    """
    flags: dict[str, Any] = {"dp": 2, "workload": "judge", "scenario": "none"}
    flags |= {"duration": DURATION_S, "trials": TRIALS, "seeds": 1} | given_options(
        dict(given_flags)
    )
    plan = SearchPlan(
        objective=Objective.HARM, optimiser=Optimiser.RANDOM, trials=flags.pop("trials"),
        seeds=flags.pop("seeds"), confirm=0, keep=0, victims=Stakes().victims,
        multiple=Stakes().multiple, budget=None, scenario=flags["scenario"],
    )  # fmt: skip
    rows: list[Mapping[str, Any]] = []
    cpu_s = 0.0
    for scheduler, sought in by_scheduler():
        spec = experiment({**flags, "scheduler": scheduler}, {})
        spec = spec.model_copy(update={"max_drain_s": min(spec.max_drain_s, spec.duration_s or 0)})
        search = Search(SearchStore.create(result_dir, spec, plan), context)
        rows += rediscover(search, sought)
        cpu_s += search.spent.cpu_s
    if as_json:
        print_json({"cpu_hours": cpu_s / 3600, "attacks": rows})
    else:
        for row in rows:
            typer.echo(_line(row))
        typer.echo(f"processors  {processors_text(cpu_s / 3600)}")
    if not all(row["found"] for row in rows):
        raise typer.Exit(FAILED)


def _line(row: Mapping[str, Any]) -> str:
    head = (
        f"{row['attack']} under {row['scheduler']} takes {row['loss']:.3f} of the victims' service"
    )
    if row["its_loss"] is None:
        return f"{head}: no attack of this kind in {row['trials']} trials"
    found = "found" if row["found"] else "not found"
    what = f"{row['about']} ({row['its_loss']:.3f}, trial {row['trial'] + 1} of {row['trials']})"
    return f"{head}: {found}: {what}"
