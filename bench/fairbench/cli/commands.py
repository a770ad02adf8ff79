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
    """A command: its one-line description, and ``MODULE:NAME`` unless both are the command's name.

    The module is in this package, or for a command of the ``studies`` in theirs.
    """

    about: str
    target: str = ""
    studies: bool = False


COMMANDS: Mapping[str, Entry] = {
    "run": Entry("Run one experiment and print the service and latency of each client."),
    "list": Entry(
        "List schedulers, routers, gateways, evictions, workloads, profiles, engines or presets.",
        "list:list_names",
    ),
    "show": Entry("Print the summary of a stored run, or the comparison of a sweep, again."),
    "recover": Entry("Save the finished requests of a run that was killed.", "show:recover"),
    "validate": Entry("Replay measured runs in the simulator, and compare the results."),
    "profile": Entry("Make a timing profile of any model on any GPU, or of a live server."),
    "sweep": Entry("Run a grid of experiments and compare them."),
    "compare": Entry("Compare experiments on the same seeds: better, worse or inconclusive."),
    "plan": Entry(
        "Find the smallest cluster that meets latency and fairness targets at a fixed load."
    ),
    "attack": Entry(
        "Search for the attack by which a client gains most, or harms the other clients most."
    ),
    "leaderboard": Entry(
        "Rank the schedulers of stored sweeps, and mark differences that are not significant."
    ),
    "emulate": Entry("Serve SGLang's HTTP API with the simulated engine, in real time."),
    "serve": Entry(
        "Route requests of clients to workers, with OpenAI's APIs and SGLang's /generate."
    ),
    "doctor": Entry(
        "Say if fairbench's scheduler is active in a server, and if a flood leaves others unharmed."
    ),
    "trace": Entry("Inspect recorded traffic, or write a changed copy of it."),
    "workload": Entry(
        "Check a workload file: its clients, their rates, and the load of a cluster."
    ),
    "check": Entry("Compare runs with a baseline; exit 1 if one got worse."),
    "score": Entry("Compute every fairness metric from request records of any serving system."),
    "diagnose": Entry(
        "Find the heavy clients of an access log, the clients they harm, and a remedy.",
        "diagnose:diagnose_log",
    ),
    "report": Entry(
        "Write a report page for a run, its repeats, a sweep, a plan, a leaderboard or a log."
    ),
    "plot": Entry("Draw a figure of the DLPM paper, or of your own runs, from stored runs."),
    "reproduce": Entry(
        "Run the missing simulations of a figure of the DLPM paper, then draw it.", studies=True
    ),
    "baseline": Entry("Rerun stored experiments, and report or accept differences."),
}
