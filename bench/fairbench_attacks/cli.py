"""``fairbench attack``: search for attacks on a scheduler, or measure known attacks."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer
from typer import Option

from fairbench.cli import options
from fairbench.config.flags import RESUME, SEEDS
from fairbench.config.parse_flags import parse_assignments, value_or_default
from fairbench.doors import STUDY_GROUP, through
from fairbench.errors import UsageError
from fairbench.execute.executors import LOCAL, executor_named
from fairbench.results.new_directories import check_writable, run_folder
from fairbench_attacks.behaviour import KNOWN
from fairbench_attacks.flags import ATTACK, ATTACKED, AttackFlags

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench.execute.tasks import RunContext
    from fairbench_attacks.search import Search
    from fairbench_attacks.store import SearchPlan

QUICK_S = 60.0  # seconds during which requests arrive with ``--quick``
LENGTHS = {"trials", "cpu_hours"}  # options that can be combined with ``--resume``


@options.takes(AttackFlags)
def attack(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[NAME|FILE.toml ...]",
            help=f"Attacks to measure: files, or names ({', '.join(KNOWN)}). If no attack is "
            "named, the command searches for new attacks.",
        ),
    ] = None,
    num_runs: Annotated[
        int | None,
        options.option_of(SEEDS, "Number of seeds of each trial.", default="2, or 1 with --quick"),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Run short simulations and few trials.")] = False,
    rediscovery: Annotated[
        bool,
        Option(
            "--rediscover", help="Test whether the search finds six attacks that are already known."
        ),
    ] = False,
    settings: options.Settings = None,
    result_dir: options.ResultDir = options.DEFAULT_RESULT_DIR,
    resume: Annotated[
        Path | None,
        options.option_of(
            RESUME,
            "Directory of an interrupted search to continue. --trials and --cpu-hours "
            "count from its start.",
        ),
    ] = None,
    as_json: Annotated[bool, options.json_option(panel=None)] = False,
    executor: options.ExecutorName = LOCAL,
    ray_address: options.RayAddress = None,
    disable_tqdm: options.NoProgress = False,
    **flags: Unpack[AttackFlags],
) -> None:
    """Find the attack that harms others or benefits the attacker most.

    If the user names attacks or files of attacks, the command measures these attacks and does not
    search. Each attack is compared with an honest run, in which an honest client runs the
    attacker's programs with the same seeds. The worst attacks found are saved as workload files.
    """
    from fairbench.execute.tasks import run_context
    from fairbench.report.progress import shown_progress
    from fairbench_attacks.search import Search
    from fairbench_attacks.store import SearchPlan, SearchStore
    from fairbench_attacks.workload import Stakes

    searched = flags.keys() - ATTACKED.keys()
    attacked = {name: value for name, value in flags.items() if name in ATTACKED}
    value = partial(value_or_default, flags, ATTACK)
    if quick:
        attacked = {"duration": QUICK_S} | attacked
    trials, cpu_hours = flags.get("trials"), flags.get("cpu_hours")
    runs_on = executor_named(executor, ray_address)
    if rediscovery:
        if any((files, quick, settings, resume, flags.get("scheduler"), searched - {"trials"})):
            raise UsageError(
                "--rediscover cannot be combined with attacks, a scheduler, --set, "
                "--resume, --quick or options of the search; --rediscover sets all of these"
            )
        sought_all = through(STUDY_GROUP, "attacks", "--rediscover").sought_all
        with run_context(None if disable_tqdm else shown_progress(), runs_on) as context:
            sought_all(
                {**attacked, "trials": trials, "seeds": num_runs}, result_dir, context, as_json
            )
        return
    if resume is not None:
        if any((files, quick, settings, num_runs, attacked, searched - LENGTHS)):
            raise options.only_resumed(resume, "search", "only --trials and --cpu-hours can")
    elif files and ("scenario" in flags or searched):
        raise UsageError(
            f"{files[0]}: an attack was given, so the command does not search for attacks; leave "
            "out --scenario and all options of the search, such as --victims and --trials"
        )
    with run_context(None if disable_tqdm else shown_progress(), runs_on) as context:
        if files:
            _replay(files, attacked, settings, num_runs or (1 if quick else 5), context, as_json)
            return
        if resume is not None:
            store = SearchStore(resume)
            check_writable(resume, "--resume")
            if not store.plan().keep:
                raise UsageError(
                    f"--resume {resume}: this directory was made by --rediscover, which "
                    "cannot be continued; run --rediscover again"
                )
            if searched:
                # A lock on the directory prevents two processes from continuing one search.
                with run_folder(resume, "search"):
                    store.go_on_for(trials, options.above_0("--cpu-hours", cpu_hours))
            _check_plan(store.spec(), store.plan())
        else:
            plan = SearchPlan(
                objective=value("objective"),
                optimiser=value("optimiser"),
                trials=trials or (16 if quick else None if cpu_hours else 64),
                seeds=num_runs or (1 if quick else 2),
                confirm=flags.get("confirm") or (3 if quick else 5),
                keep=3,
                victims=flags.get("victims") or Stakes().victims,
                multiple=options.above_0("--multiple", flags.get("multiple")) or Stakes().multiple,
                budget=options.above_0("--budget", flags.get("budget")),
                scenario=value("scenario"),
                gpu_budget=options.above_0("--gpu-budget", flags.get("gpu_budget")),
                cpu_hours=options.above_0("--cpu-hours", cpu_hours),
            )
            spec = _experiment(attacked | {"workload": value("workload")}, settings, plan.scenario)
            _check_plan(spec, plan)
            store = SearchStore.create(result_dir, spec, plan)
        _search(Search(store, context), as_json)


def _check_plan(spec: ExperimentSpec, plan: SearchPlan) -> None:
    from fairbench.config.resolve import check_size
    from fairbench_attacks.behaviour import HONEST
    from fairbench_attacks.measure import replayed
    from fairbench_attacks.search import check_optimiser
    from fairbench_attacks.workload import HONEST as HONESTLY
    from fairbench_attacks.workload import Stakes, attack_workload

    stakes = Stakes(plan.victims, plan.multiple)
    twin = attack_workload(spec.workload, plan.scenario, HONEST, stakes)
    try:
        check_size(replayed(spec, twin, HONESTLY))
    except UsageError as error:
        raise UsageError(f"--multiple {plan.multiple:g}: {error}") from None
    check_optimiser(plan.optimiser)


def _experiment(flags: dict[str, Any], settings: list[str] | None, scenario: str) -> ExperimentSpec:
    from fairbench.config.resolve import experiment

    flags = {"dp": ATTACK["dp"].default, **flags, "scenario": scenario}
    spec = experiment(flags, parse_assignments(settings))
    if spec.duration_s is None:
        raise UsageError("duration: missing; an attack needs a duration in seconds")
    # ``max_drain_s``, the time after the last arrival, affects only latencies, so it is shortened.
    return spec.model_copy(update={"max_drain_s": min(spec.max_drain_s, spec.duration_s)})


def _search(search: Search, as_json: bool) -> None:
    from fairbench.cli.output import print_json, show
    from fairbench_attacks.report import attack_text, draw, processors_text
    from fairbench_attacks.search import result_json

    found = search.run()
    path, result = search.store.path, result_json(search, found, len(search.store.trials()))
    if find_spec("matplotlib") and find_spec("seaborn"):
        draw(search, found, [path / "attack.svg"])
    if as_json:
        print_json(result, path)
        return
    took = processors_text(result["cpu_hours"])
    title = (
        f"Worst of {result['trials']} behaviours in {took} of CPU time "
        f"under {result['scheduler']}, {result['workload']}, dp {result['dp']}, "
        f"by {result['objective']}; "
        f"simulated on {result['timing_profile']}, {result['confirm']} seeds each"
    )
    show(attack_text, title, result["worst"])
    typer.echo(f"files  {path}")


def _replay(
    files: list[Path],
    flags: dict[str, Any],
    settings: list[str] | None,
    seeds: int,
    context: RunContext,
    as_json: bool,
) -> None:
    from fairbench.cli.output import print_json, show
    from fairbench.config.resolve import check_size
    from fairbench_attacks.measure import pair
    from fairbench_attacks.report import attack_text
    from fairbench_attacks.simulate import replay
    from fairbench_attacks.store import named_workload
    from fairbench_attacks.workload import HONEST as HONESTLY

    pairs = []
    for file in files:
        workload = named_workload(str(file))
        # If the workload has no scenario ``honest``, ``pair`` raises UsageError.
        scenario = HONESTLY if HONESTLY in workload.scenarios else "none"
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
    title = f"Attacks under {spec.scheduler}, dp {spec.dp}; simulated on {spec.gpu}, {seeds} seeds"
    show(attack_text, title, rows)
