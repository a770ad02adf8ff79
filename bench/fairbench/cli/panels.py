"""Panels of ``--help``: the flags of a long command in groups, the common ones first."""

from __future__ import annotations

from typing import Any

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
