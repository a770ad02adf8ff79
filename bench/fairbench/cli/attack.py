"""``fairbench attack``: search for what an attacker gains under a scheduler, or replay attacks."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from fairbench.attack.known import KNOWN
from fairbench.attack.objective import Objective
from fairbench.cli.executor_flags import ExecutorName, RayAddress
from fairbench.cli.flags import DEFAULT_RESULT_DIR, above_0, assigned, given
from fairbench.cli.studies import study
from fairbench.errors import UsageError
from fairbench.execute.executors import LOCAL, executor_named
from fairbench.live.run_folder import run_folder
from fairbench.results.directories import check_writable

if TYPE_CHECKING:
    from fairbench.attack.search import Search
    from fairbench.attack.store import Plan
    from fairbench.config import ExperimentSpec
    from fairbench.execute.context import RunContext

QUICK_S = 60.0
LENGTHS = {"trials", "cpu_hours"}  # which a search that is resumed may be given anew


class Optimiser(StrEnum):
    """The method that chooses the next behaviours."""

    RANDOM = "random"
    TPE = "tpe"


def attack(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[NAME|FILE.toml ...]",
            help="Attacks to measure, in place of a search: " + ", ".join(KNOWN) + ", or files.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None, Option(help="Pair of router and local scheduler. [default: d2lpm]")
    ] = None,
    gateway: Annotated[
        str | None, Option(metavar="POLICY", help="Queue before the router. [default: none]")
    ] = None,
    saturation: Annotated[
        str | None,
        Option(metavar="DETECTOR", help="Saturation detector: when --gateway releases requests."),
    ] = None,
    eviction: Annotated[
        str | None,
        Option(metavar="POLICY", help="Eviction policy, see `list evictions`. [default: lru]"),
    ] = None,
    workload: Annotated[
        str | None,
        Option(metavar="NAME|FILE.toml", help="Workload of all clients. [default: judge]"),
    ] = None,
    scenario: Annotated[
        str | None,
        Option(
            help="Scenario that gives load and parameters, without heavy clients. [default: none]"
        ),
    ] = None,
    dp: Annotated[int | None, Option(help="Replicas of the model. [default: 2]")] = None,
    victims: Annotated[int | None, Option(min=1, help="Clients beside it. [default: 3]")] = None,
    multiple: Annotated[
        float | None, Option(help="The attacker sends so many times as much as one. [default: 4]")
    ] = None,
    budget: Annotated[
        float | None,
        Option(help="Tokens that it may ask for in an hour, 2 for one of output. [default: any]"),
    ] = None,
    gpu_budget: Annotated[
        float | None,
        Option(help="Seconds of GPUs that its requests may take in an hour. [default: any]"),
    ] = None,
    objective: Annotated[
        Objective | None,
        Option(help="Its useful service, or the victims' loss of it, P95 or hits. [default: harm]"),
    ] = None,
    trials: Annotated[
        int | None, Option(min=1, help="Behaviours to try. [default: 64, or 16 with --quick]")
    ] = None,
    cpu_hours: Annotated[
        float | None,
        Option(help="Search until simulations have taken so many. [default: for --trials]"),
    ] = None,
    optimiser: Annotated[
        Optimiser | None,
        Option(help="After the first 24; tpe needs the extra `attack`. [default: random]"),
    ] = None,
    num_runs: Annotated[
        int | None, Option(min=1, help="Seeds of each trial. [default: 2, or 1 with --quick]")
    ] = None,
    confirm: Annotated[
        int | None,
        Option(min=1, help="Other seeds of the worst ones. [default: 5, or 3 with --quick]"),
    ] = None,
    duration: Annotated[
        float | None,
        Option(help="Seconds of arrivals. [default: the workload's, or 60 with --quick]"),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Short simulations, few trials.")] = False,
    rediscovery: Annotated[
        bool,
        Option("--rediscover", help="Test whether the search finds six known attacks."),
    ] = False,
    seed: Annotated[int | None, Option(help="First seed. [default: 0]")] = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME.PARAM=VALUE", help="A parameter; may be repeated."),
    ] = None,
    result_dir: Annotated[
        Path, Option(help="Directory in which the search makes its own.")
    ] = DEFAULT_RESULT_DIR,
    resume: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="Go on with the search in this directory, for --trials or --cpu-hours in all.",
        ),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object, and nothing else.")
    ] = False,
    executor: ExecutorName = LOCAL,
    ray_address: RayAddress = None,
    disable_tqdm: Annotated[bool, Option("--disable-tqdm", help="No live progress.")] = False,
) -> None:
    """Search for what a client gains by cheating, and what the others lose.

    Or measure attacks that are known. Whatever the attacker does, it runs the same programs as
    often as its honest twin, with which each behaviour is compared at the same seeds. The worst are
    saved as workload files.
    """
    from fairbench.attack.search import Search
    from fairbench.attack.store import Plan, SearchStore
    from fairbench.attack.workload import Stakes
    from fairbench.cli.progress import shown_progress
    from fairbench.execute.context import run_context

    flags = {
        "scheduler": scheduler,
        "gateway": gateway,
        "saturation": saturation,
        "eviction": eviction,
        "scenario": scenario,
        "dp": dp,
        "duration": QUICK_S if quick and duration is None else duration,
        "seed": seed,
    }
    searched = given(
        {
            **{"workload": workload, "victims": victims, "multiple": multiple, "budget": budget},
            **{"objective": objective, "trials": trials, "optimiser": optimiser},
            **{"confirm": confirm, "gpu_budget": gpu_budget, "cpu_hours": cpu_hours},
        }
    )
    runs_on = executor_named(executor, ray_address)
    if rediscovery:
        if any((files, quick, settings, resume, scheduler, searched.keys() - {"trials"})):
            raise UsageError(
                "--rediscover: says itself what is sought and under which scheduler: give none"
            )
        sought_all = study("attacks.rediscover", "--rediscover").sought_all
        with run_context(shown_progress(not disable_tqdm), runs_on) as context:
            sought_all({**flags, "trials": trials, "seeds": num_runs}, result_dir, context, as_json)
        return
    if resume is not None:
        if any((files, quick, settings, num_runs, given(flags), searched.keys() - LENGTHS)):
            raise UsageError(
                f"--resume {resume}: goes on with that search as it is: "
                "only --trials or --cpu-hours may be given anew"
            )
    elif files and (scenario or searched):
        raise UsageError(f"{files[0]}: says itself who sends what: give nothing of a search")
    with run_context(shown_progress(not disable_tqdm), runs_on) as context:
        if files:
            _replay(files, flags, settings, num_runs or (1 if quick else 5), context, as_json)
            return
        if resume is not None:
            store = SearchStore(resume)
            check_writable(resume, "--resume")
            if not store.plan().keep:
                raise UsageError(f"--resume {resume}: is of --rediscover, which starts anew")
            if searched:
                with run_folder(resume, "search"):  # not while it goes on in another process
                    store.go_on_for(trials, above_0("--cpu-hours", cpu_hours))
            _check(store.spec(), store.plan())
        else:
            plan = Plan(
                objective=objective or Objective.HARM,
                optimiser=optimiser or Optimiser.RANDOM,
                trials=trials or (16 if quick else None if cpu_hours else 64),
                seeds=num_runs or (1 if quick else 2),
                confirm=confirm or (3 if quick else 5),
                keep=3,
                victims=victims or Stakes().victims,
                multiple=above_0("--multiple", multiple) or Stakes().multiple,
                budget=above_0("--budget", budget),
                scenario=scenario or "none",
                gpu_budget=above_0("--gpu-budget", gpu_budget),
                cpu_hours=above_0("--cpu-hours", cpu_hours),
            )
            spec = _experiment({**flags, "workload": workload or "judge"}, settings, plan.scenario)
            _check(spec, plan)
            store = SearchStore.create(result_dir, spec, plan)
        _search(Search(store, context), as_json)


def _check(spec: ExperimentSpec, plan: Plan) -> None:
    """Raise UsageError for what cannot be searched: the twin says why not."""
    from fairbench.attack.behaviour import HONEST
    from fairbench.attack.choose import check_optimiser
    from fairbench.attack.measure import replayed
    from fairbench.attack.workload import HONEST as HONESTLY
    from fairbench.attack.workload import Stakes, attack_workload
    from fairbench.config.resolve import check_size

    stakes = Stakes(plan.victims, plan.multiple)
    twin = attack_workload(spec.workload, plan.scenario, HONEST, stakes)
    try:
        check_size(replayed(spec, twin, HONESTLY))
    except UsageError as error:
        raise UsageError(f"multiple = {plan.multiple:g}, {error}") from None
    check_optimiser(plan.optimiser)


def _experiment(flags: dict[str, Any], settings: list[str] | None, scenario: str) -> ExperimentSpec:
    from fairbench.execute.requests import experiment

    flags = {"dp": 2, **given(flags), "scenario": scenario}
    spec = experiment(flags, assigned(settings))
    if spec.duration_s is None:
        raise UsageError("duration: an attack needs one")
    # Measurements end with the arrivals, except for latencies.
    return spec.model_copy(update={"max_drain_s": min(spec.max_drain_s, spec.duration_s)})


def _search(search: Search, as_json: bool) -> None:
    from fairbench.attack.figure import draw
    from fairbench.attack.search import result_json
    from fairbench.attack.table import attack_text, processors_text
    from fairbench.cli.output import look, print_json

    found = search.run()
    path, result = search.store.path, result_json(search, found, len(search.store.trials()))
    if find_spec("matplotlib") and find_spec("seaborn"):
        draw(search, found, [path / "attack.svg"])
    if as_json:
        print_json(dict(result))
        typer.echo(f"fairbench: saved to {path}", err=True)
        return
    colour, width = look()
    took = processors_text(result["cpu_hours"])
    title = (
        f"Worst of {result['trials']} behaviours in {took} of processors "
        f"under {result['scheduler']}, {result['workload']}, dp {result['dp']}, "
        f"by {result['objective']}; "
        f"simulated on {result['timing_profile']}, {result['confirm']} seeds each"
    )
    typer.echo(attack_text(title, result["worst"], colour=colour, width=width), nl=False)
    typer.echo(f"files  {path}")


def _replay(
    files: list[Path],
    flags: dict[str, Any],
    settings: list[str] | None,
    seeds: int,
    context: RunContext,
    as_json: bool,
) -> None:
    from fairbench.attack.known_files import named_workload
    from fairbench.attack.measure import pair
    from fairbench.attack.replay import replay
    from fairbench.attack.table import attack_text
    from fairbench.attack.workload import HONEST as HONESTLY
    from fairbench.cli.output import look, print_json
    from fairbench.config.resolve import check_size

    pairs = []
    for file in files:
        workload = named_workload(str(file))
        scenario = HONESTLY if HONESTLY in workload.scenarios else "none"  # which ``pair`` refuses
        spec = _experiment({**flags, "workload": workload}, settings, scenario)
        pairs.append(pair(spec, workload))
        for one in pairs[-1]:
            check_size(one)
    rows = [
        {"attack": str(file), "about": file.stem, **found}
        for file, found in zip(files, replay(pairs, seeds, context), strict=True)
    ]
    if as_json:
        about = {"scheduler": spec.scheduler, "dp": spec.dp, "timing_profile": spec.gpu}
        print_json({**about, "seeds": seeds, "attacks": rows})
        return
    colour, width = look()
    title = f"Attacks under {spec.scheduler}, dp {spec.dp}; simulated on {spec.gpu}, {seeds} seeds"
    typer.echo(attack_text(title, rows, colour=colour, width=width), nl=False)
