"""What the simulator expects of examples/sglang-cpu.toml: that sweep with an A100's steps, slower.

    python tests/sglang_cpu/simulated.py 2.4 [KEY=VALUE ...]

prints a line a scheduler. The factor is the one by which the slowest scheduler needs about as long
as on the real servers. KEY=VALUE replaces a setting of the sweep.
"""

import sys
import tomllib
from pathlib import Path

from fairbench.config.resolve import resolve
from fairbench.sim.run import Simulation, no_collector, source_of

SWEEP = Path(__file__).parents[2] / "examples/sglang-cpu.toml"
OF_REAL_ONES = "engine.mem_fraction_static"  # of a CPU's memory; the pool is given in tokens
SHOWN = "service_rate_tok_s", "min_entitlement_ratio", "victim_p99_s"
SHOWN += "time_to_50pct_s", "time_to_90pct_s", "time_to_100pct_s"


def simulated(spec, slowdown):
    """The summary of one experiment whose iterations take so many times as long."""
    source = source_of(spec)
    simulation = Simulation(spec, spec.client_plans(), source, slowdown=slowdown)
    with no_collector():
        complete = simulation.run()
    return simulation.result(complete, source).summary


def main(slowdown, *changed):
    sweep = tomllib.loads(SWEEP.read_text())
    base, settings = sweep["base"], {}
    for part, own in base.pop("settings").items():
        settings |= {f"{part}.{name}": value for name, value in own.items()}
    settings |= {key: int(value) for key, _, value in (one.partition("=") for one in changed)}
    del base["backend"], settings[OF_REAL_ONES]
    for scheduler in sweep["grid"]["scheduler"]:
        summary = simulated(resolve({**base, "scheduler": scheduler}, settings), float(slowdown))
        print(scheduler, *(f"{name} {summary[name]:.4g}" for name in SHOWN), sep="  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
