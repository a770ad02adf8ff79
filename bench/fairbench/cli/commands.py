"""The commands by name and panel. A command's module is imported only when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from typer.core import TyperCommand

from fairbench.config.flags.flag import OTHER, PANELS

# The common flags in the order in which --help shows them; others come as they are declared.
FIRST = (
    *("preset", "scheduler", "schedulers", "workload", "workloads", "trace", "scenario"),
    *("scenarios", "dp", "prefill", "decode", "gpu", "duration", "seed", "num_runs", "settings"),
)
PANELLED = ("run", "sweep", "plan", "compare")  # commands with too many flags for one list


def panel_of(param: Any) -> str:
    """Return the panel of a command's parameter, ``OTHER`` if it names none."""
    return getattr(param, "rich_help_panel", None) or OTHER


class PanelCommand(TyperCommand):
    """A command whose ``--help`` shows its flags by panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each panel that has a flag of this command."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        groups |= {panel: [] for panel in PANELS}
        for param in self._in_order(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                argument = param.param_type_name == "argument"
                groups["Arguments" if argument else panel_of(param)].append(record)
        for panel, records in groups.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records)

    def _in_order(self, ctx: Any) -> list[Any]:
        """Return the parameters with the common flags first."""
        places = {name: place for place, name in enumerate(FIRST)}
        return sorted(self.get_params(ctx), key=lambda param: places.get(param.name or "", 1_000))


class Entry(NamedTuple):
    """A command: ``MODULE:NAME`` in this package, and its description in a line.

    The module of a command of the ``studies`` is in their package.
    """

    target: str
    about: str
    studies: bool = False


COMMANDS: Mapping[str, Entry] = {
    "run": Entry("run:run", "Run one experiment and print the service and latency of each client."),
    "list": Entry(
        "list:list_names",
        "List schedulers, routers, gateways, evictions, workloads, profiles, engines or presets.",
    ),
    "show": Entry(
        "show:show", "Print the summary of a stored run, or the comparison of a sweep, again."
    ),
    "recover": Entry("show:recover", "Save the finished requests of a run that was killed."),
    "validate": Entry(
        "validate:validate", "Replay measured runs in the simulator, and compare the results."
    ),
    "profile": Entry(
        "profile:profile", "Make a timing profile of any model on any GPU, or of a live server."
    ),
    "sweep": Entry("sweep:sweep", "Run a grid of experiments and compare them."),
    "compare": Entry(
        "compare:compare", "Compare experiments on the same seeds: better, worse or inconclusive."
    ),
    "plan": Entry(
        "plan:plan",
        "Find the smallest cluster that meets latency and fairness targets at a fixed load.",
    ),
    "attack": Entry(
        "attack:attack",
        "Search for the attack by which a client gains most, or harms the other clients most.",
    ),
    "leaderboard": Entry(
        "leaderboard:leaderboard",
        "Rank the schedulers of stored sweeps, and mark differences that are not significant.",
    ),
    "emulate": Entry(
        "emulate:emulate", "Serve SGLang's HTTP API with the simulated engine, in real time."
    ),
    "serve": Entry(
        "serve:serve",
        "Route requests of clients to workers, with OpenAI's APIs and SGLang's /generate.",
    ),
    "trace": Entry("trace:trace", "Inspect recorded traffic, or write a changed copy of it."),
    "workload": Entry(
        "workload:workload",
        "Check a workload file: its clients, their rates, and the load of a cluster.",
    ),
    "check": Entry("check:check", "Compare runs with a baseline; exit 1 if one got worse."),
    "score": Entry(
        "score:score", "Compute every fairness metric from request records of any serving system."
    ),
    "diagnose": Entry(
        "diagnose:diagnose_log",
        "Find the heavy clients of an access log, the clients they harm, and a remedy.",
    ),
    "report": Entry(
        "report:report",
        "Write a report page for a run, its repeats, a sweep, a plan, a leaderboard or a log.",
    ),
    "plot": Entry(
        "plot:plot", "Draw a figure of the DLPM paper, or of your own runs, from stored runs."
    ),
    "reproduce": Entry(
        "reproduce:reproduce",
        "Run the missing simulations of a figure of the DLPM paper, then draw it.",
        studies=True,
    ),
    "baseline": Entry(
        "baseline:baseline", "Rerun stored experiments, and report or accept differences."
    ),
}
