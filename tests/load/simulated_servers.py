"""Predict a sweep on real servers by simulating a slowed A100, without a GPU.

    python tests/load/simulated_servers.py sglang 2.4 [KEY=VALUE ...]
    python tests/load/simulated_servers.py vllm 1.2

prints a line per scheduler of examples/sglang-cpu.toml or vllm-cpu.toml. Choose the factor so that
runs take about as long as on the real servers. KEY=VALUE replaces a setting of the sweep.
"""

import sys
import tomllib
from pathlib import Path

from fairbench.config.resolve import resolve
from fairbench.sim.run import Simulation, no_collector

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = "service_rate_tok_s", "min_entitlement_ratio", "victim_p95_s", "victim_p99_s"
SHOWN += "time_to_50pct_s", "time_to_90pct_s", "time_to_100pct_s"


def simulated(spec, slowdown):
    """Return the summary of an experiment whose iterations take ``slowdown`` times as long."""
    source = spec.source()
    with no_collector():
        simulation = Simulation(spec, spec.client_plans(), source, slowdown=slowdown)
        complete = simulation.run()
        return simulation.result(complete, source).summary


def settings_of(engine, base):
    """Translate the sweep's settings to the simulated engine. ``base`` keeps the others."""
    named = base.pop("settings").items()
    settings = {f"{part}.{name}": value for part, own in named for name, value in own.items()}
    flags = base.pop("backend")["server_args"]
    if engine == "sglang":
        # this is a fraction of a CPU's memory, but the pool is given in tokens
        del settings["engine.mem_fraction_static"]
        return settings
    base["engine"] = engine
    settings["vllm.max_num_seqs"] = settings.pop("engine.max_running_requests")
    for flag in ("block-size", "num-gpu-blocks-override"):
        value = flags[flags.index(f"--{flag}") + 1]
        settings[f"vllm.{flag.replace('-', '_')}"] = int(value)
    return settings


def main(engine, slowdown, *changed):
    sweep = tomllib.loads((EXAMPLES / f"{engine}-cpu.toml").read_text())
    base = sweep["base"]
    settings = settings_of(engine, base)
    settings |= {key: float(value) for key, _, value in (one.partition("=") for one in changed)}
    for scheduler in sweep["grid"]["scheduler"]:
        summary = simulated(resolve({**base, "scheduler": scheduler}, settings), float(slowdown))
        print(scheduler, *(f"{name} {summary[name]:.4g}" for name in SHOWN), sep="  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
