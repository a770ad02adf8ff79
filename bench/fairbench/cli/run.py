"""``fairbench run``: run one experiment on the simulated cluster, or on real servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from fairbench import config, execute, metrics, report, results
from fairbench.cli import options, output
from fairbench.cli.exits import FAILED, complain
from fairbench.config.flags import HEADER, RAY_ADDRESS, READY_S, SEEDS, RunFlags
from fairbench.config.parse_flags import OUTPUT, SERVERS, parse_assignments
from fairbench.errors import RunFailed
from fairbench.execute.executors import DEFAULT, DRIVER_LAUNCHERS, LAUNCHERS, LOCAL, LauncherFlags

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench.execute.live_runs import LiveFlags
    from fairbench.execute.tasks import RunContext
    from fairbench.metrics.tables import RunResult
    from fairbench.results.references import Reference


@options.takes(RunFlags)
def run(
    experiment_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="EXPERIMENT.toml", help="Experiment file; flags override its values."
        ),
    ] = None,
    settings: options.Settings = None,
    num_runs: Annotated[int, options.option_of(SEEDS)] = 1,
    header: Annotated[
        list[str] | None,
        options.option_of(
            HEADER, "Header sent with every request to --base-url; never stored; may be repeated."
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        options.option(
            SERVERS,
            "File with the API key of --base-url on one line; sent as Authorization: "
            "Bearer KEY, never stored.",
            metavar="FILE",
        ),
    ] = None,
    server_python: options.ServerPython = None,
    launcher: Annotated[
        str,
        options.option(
            SERVERS,
            "Place where servers start: this machine, the nodes of a Ray cluster, or --hosts.",
            metavar="|".join(LAUNCHERS),
        ),
    ] = LOCAL,
    ray_address: Annotated[
        str | None,
        options.option_of(
            RAY_ADDRESS,
            "Head of the Ray cluster of --launcher ray or --driver-launcher ray.",
            default="auto, this machine's cluster",
        ),
    ] = None,
    hosts: Annotated[
        str | None,
        options.option(
            SERVERS,
            "Hosts on which --launcher command starts servers, used in this order.",
            metavar="A,B,...",
        ),
    ] = None,
    launch_command: Annotated[
        str | None,
        options.option(
            SERVERS,
            "Command with which --launcher command runs a shell line on {host}; the line "
            f"is appended as its last word. [default: {DEFAULT}]",
            metavar="'CMD {host} ...'",
        ),
    ] = None,
    drivers: Annotated[
        int,
        options.option(
            SERVERS,
            "Number of processes that send the load; each sends for some of the clients.",
            min=1,
        ),
    ] = 1,
    driver_launcher: Annotated[
        str,
        options.option(
            SERVERS,
            "Place where the processes of --drivers run: this machine, or the nodes of a Ray "
            "cluster.",
            metavar="|".join(DRIVER_LAUNCHERS),
        ),
    ] = LOCAL,
    allow_untested_release: options.AllowUntested = False,
    ready_check_timeout_sec: options.ReadyTimeout = READY_S,
    result_dir: options.ResultDir = options.DEFAULT_RESULT_DIR,
    output_file: output.OutputFile = None,
    output_details: output.OutputDetails = False,
    explain: options.Explain = False,
    reference: Annotated[
        str | None,
        options.option(
            OUTPUT,
            "Scheduler with which the first line of the summary compares the run; the experiment "
            "is simulated under this scheduler, too. [default: fcfs, if its shares are stored]",
            metavar="SCHEDULER",
        ),
    ] = None,
    no_reference: Annotated[
        bool,
        options.option(OUTPUT, "Do not compare the run with another scheduler.", "--no-reference"),
    ] = False,
    as_json: Annotated[bool, options.json_option("the summary")] = False,
    disable_tqdm: options.NoProgress = False,
    **flags: Unpack[RunFlags],
) -> None:
    """Run one experiment; print each client's service and latency.

    The run takes place on the simulated cluster, or on real servers. Every option has a default, so
    `fairbench run` works without options.
    """
    output.check_explain(explain, single=num_runs == 1, as_json=as_json)
    spec = config.experiment(flags, parse_assignments(settings), experiment_file)
    compared = None
    if reference is not None:
        single = num_runs == 1 and not as_json and not no_reference
        compared = results.reference_spec(
            spec, reference, parse_assignments(settings), single=single
        )
    if experiment_file is not None:
        _say_old_defaults(spec, experiment_file)
    live = execute.LiveFlags(
        server_python,
        ready_check_timeout_sec,
        options.with_key(options.parse_headers(header), api_key_file),
        launcher,
        LauncherFlags(ray_address, hosts, launch_command),
        drivers,
        driver_launcher,
        allow_untested_release,
    )
    if spec.backend is not None or live != execute.NO_FLAGS:
        execute.check_live(spec, live)
    lined = output_file or output_details
    on_saved = output.run_lines(output_file, details=output_details) if lined else None
    with execute.run_context(None if disable_tqdm else report.shown_progress()) as context:
        if num_runs > 1:
            _repeatedly(spec, num_runs, live, result_dir, on_saved, context, as_json=as_json)
        else:
            result, path = execute.run_and_save(spec, live, result_dir, context)
            if on_saved:
                on_saved(path, result.summary)
            if as_json:
                output.print_json(result.summary, path)
            else:
                beside = None if no_reference else _reference(spec, compared, context)
                output.print_summary(
                    result.summary,
                    path,
                    complete=result.complete,
                    explain=explain,
                    reference=beside,
                )
            _require_whole(result, context)


def _say_old_defaults(spec: ExperimentSpec, file: Path) -> None:
    if changed := results.old_defaults(spec):
        complain(
            f"default changed since {file} was stored: {', '.join(changed)}; this run keeps the "
            "stored value, and `fairbench baseline check` judges the new default"
        )


def _reference(
    spec: ExperimentSpec, compared: ExperimentSpec | None, context: RunContext
) -> Reference | None:
    """Return the clients' shares under the scheduler with which the run is compared.

    The clients' shares come from a simulation of ``compared``, or from a stored run of an equal
    experiment if ``compared`` is None. If there is no complete run to compare with, None is
    returned.
    """
    if compared is None:
        return results.stored_reference(config.experiment_tables(spec))
    result = execute.run_unsaved(compared, execute.NO_FLAGS, context)
    return results.reference_of(result.summary) if result.complete else None


def _require_whole(result: RunResult, context: RunContext) -> None:
    """Raise Interrupted or RunFailed if the run ended before all requests were served."""
    if result.complete:
        return
    if context.interrupted():
        raise context.interrupted.ended("interrupted; the finished requests are saved")
    raise RunFailed(f"{result.summary['notes']['complete']}; the finished requests are saved")


def _repeatedly(
    spec: ExperimentSpec,
    num_runs: int,
    live: LiveFlags,
    result_dir: Path,
    on_saved: output.OnSaved | None,
    context: RunContext,
    *,
    as_json: bool,
) -> None:
    """Run several seeds and print a combined summary; raise an error if a run is incomplete."""
    repeats = execute.repeat(spec, num_runs, result_dir, live, context)
    if repeats.combined is None:
        raise context.interrupted.ended("interrupted before a run began")
    if on_saved:
        for run in repeats.runs:
            on_saved(run.path, run.summary)
    if as_json:
        output.print_json(repeats.combined, repeats.path)
    else:
        tail = metrics.shown_tail(run.summary for run in repeats.runs)
        typer.echo(
            "\n".join([*report.repeat_lines(repeats.combined, tail), f"files  {repeats.path}"])
        )
    for run in repeats.runs:
        for remark in execute.remarks_on(run.summary):
            typer.echo(f"fairbench: {remark}", err=True)
    if not repeats.combined["complete"]:
        if context.interrupted():
            raise context.interrupted.ended("interrupted; the finished requests are saved")
        raise typer.Exit(FAILED)
