"""Panels of ``--help``: the flags of a long command in groups, the common ones first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

# Flags by their panel, in the order in which --help shows both. One table for all commands: a
# command shows those of its flags that a panel names, and the rest under "Other options".
PANELS: Mapping[str, tuple[str, ...]] = {
    "Common options": (
        *("preset", "scheduler", "schedulers", "workload", "workloads", "trace", "scenario"),
        *("scenarios", "dp", "gpu", "duration", "seed", "num_runs", "settings"),
        *("slo", "metric", "baseline"),
    ),
    "Workload": (
        *(
            "trace_format",
            "trace_map",
            "trace_line",
            "trace_block_size",
            "trace_spread",
            "clients_from",
            "misbehaving",
        ),
        *("dataset_path", "tokenizer", "clients", "weights"),
    ),
    "Load": ("num_programs", "request_rate", "burstiness", "max_concurrency", "time_scale"),
    "Scheduler": ("router", "local", "routers", "gateway", "gateways", "saturation", "saturations"),
    "Simulated cluster": (
        *("model", "engine", "mem_fraction_static", "max_total_tokens", "max_running_requests"),
        *("chunked_prefill_size", "max_prefill_tokens", "schedule_conservativeness"),
        *("timing_error", "eviction", "memory_records"),
    ),
    "Real servers": (
        *("backend", "base_url", "api", "output_lengths", "header", "api_key_file", "tp"),
        *("share_gpus", "schedule_policy", "load_format", "server_arg", "server_python"),
        *("allow_untested_release", "extra_body", "max_tokens_field", "rate_limited"),
        *("launcher", "ray_address", "hosts", "launch_command", "drivers", "driver_launcher"),
        *("ready_check_timeout_sec", "router_command"),
    ),
    "Output": (
        *("goodput", "percentiles", "window", "result_dir", "resume", "tag", "output_file"),
        *("output_details", "as_json", "disable_tqdm"),
    ),
}
OTHER = "Other options"
PANELLED = ("run", "sweep", "plan", "compare")  # commands with too many flags for one list


def panel_of(flag: str) -> str:
    """Return the panel that names a flag's parameter, ``OTHER`` if none does."""
    return next((panel for panel, names in PANELS.items() if flag in names), OTHER)


class PanelCommand(TyperCommand):
    """A command whose ``--help`` shows its flags by panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each panel that has a flag of this command."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        groups |= {panel: [] for panel in (*PANELS, OTHER)}
        for param in self._in_order(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                argument = param.param_type_name == "argument"
                panel = "Arguments" if argument else panel_of(param.name or "")
                groups[panel].append(record)
        for panel, records in groups.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records)

    def _in_order(self, ctx: Any) -> list[Any]:
        """Return the parameters as the panels order them; arguments keep their own order."""
        order = [name for names in PANELS.values() for name in names]
        places = {name: place for place, name in enumerate(order)}
        return sorted(self.get_params(ctx), key=lambda param: places.get(param.name or "", 1_000))
