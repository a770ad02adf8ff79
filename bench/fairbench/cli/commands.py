"""The commands by name and panel. A command's module is imported only when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

from fairbench.config.flags.flag import OTHER, PANELS
from fairbench.doors import COMMAND_GROUP, Command, registered, through
from fairbench.errors import UsageError

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


# The groups of ``fairbench --help``, in this order; a door may name another one.
SIMULATE, STORED, LOGS = "Simulate and compare", "Stored results", "Logs and records"
SERVERS, CI, PAPERS = "Real servers", "Continuous integration", "Papers"


def _own(group: str, about: str, target: str) -> Command:
    return Command(group, about, f"fairbench.cli.{target}")


_OWN: Mapping[str, Command] = {
    "run": _own(
        SIMULATE, "Run one experiment; print each client's service and latency.", "run:run"
    ),
    "compare": _own(
        SIMULATE, "Compare experiments on the same seeds, with intervals.", "compare:compare"
    ),
    "sweep": _own(SIMULATE, "Run a grid of experiments and compare them.", "sweep:sweep"),
    "plan": _own(
        SIMULATE, "Find the smallest cluster that meets targets at a fixed load.", "plan:plan"
    ),
    "leaderboard": _own(
        SIMULATE,
        "Rank the schedulers of stored sweeps by what is significant.",
        "leaderboard:leaderboard",
    ),
    "workload": _own(
        SIMULATE,
        "Check a workload file: clients, rates, and a cluster's load.",
        "workload:workload",
    ),
    "profile": _own(
        SIMULATE, "Make a timing profile of a model on a GPU or a live server.", "profile:profile"
    ),
    "list": _own(
        SIMULATE, "List schedulers, workloads, profiles, engines and presets.", "list:list_names"
    ),
    "show": _own(STORED, "Print a stored run or the comparison of a sweep again.", "show:show"),
    "report": _own(
        STORED, "Write a page for a run, sweep, plan, leaderboard or log.", "report:report"
    ),
    "plot": _own(STORED, "Draw a figure of the DLPM paper, or of your own runs.", "plot:plot"),
    "recover": _own(STORED, "Save the finished requests of a run that was killed.", "show:recover"),
    "diagnose": _own(
        LOGS, "Find a log's heavy clients, whom they harm, and a remedy.", "diagnose:diagnose_log"
    ),
    "score": _own(LOGS, "Compute every fairness metric from any system's records.", "score:score"),
    "trace": _own(LOGS, "Inspect recorded traffic, or write a changed copy of it.", "trace:trace"),
    "validate": _own(
        LOGS, "Replay measured runs in the simulator; compare the results.", "validate:validate"
    ),
    "doctor": _own(
        SERVERS, "Test whether a server protects its light clients from a flood.", "doctor:doctor"
    ),
    "check": _own(CI, "Compare runs with a baseline; exit 1 if one got worse.", "check:check"),
    "baseline": _own(
        CI, "Rerun stored experiments; report or accept differences.", "baseline:baseline"
    ),
    "reproduce": Command(
        PAPERS,
        "Run what a paper's figure lacks, then draw the figure.",
        "reproduce:reproduce",
        studies=True,
    ),
}
GROUPS = (SIMULATE, STORED, LOGS, SERVERS, CI, PAPERS)


def command_names() -> list[str]:
    """Return the name of every command. Raises UsageError if a door has one of the same name."""
    added = sorted(registered(COMMAND_GROUP))
    if twice := _OWN.keys() & set(added):
        raise UsageError(f"{COMMAND_GROUP}: an installed package adds {min(twice)!r}, which exists")
    return [*_OWN, *added]


def command_named(name: str) -> Command:
    """Return one of ``command_names``; the command of a door is loaded."""
    command: Command = _OWN.get(name) or through(COMMAND_GROUP, name)
    return command


def commands() -> Mapping[str, Command]:
    """Return every command by name, in the order of ``GROUPS``."""
    every = {name: command_named(name) for name in command_names()}
    groups = dict.fromkeys([*GROUPS, *(command.group for command in every.values())])
    return {
        name: command
        for group in groups
        for name, command in every.items()
        if command.group == group
    }
