"""Tell whether two sweeps have the same results, byte for byte.

fairbench sweep fig7 --name here
fairbench sweep fig7 --name there --executor ray
python tests/execute/same_sweep.py results/runs/here results/runs/there
"""

import json
import sys
from pathlib import Path


def results(store):
    """Return all results of a sweep without times and paths, by experiment and file."""
    found = {("alone", path.name): path.read_bytes() for path in (store / "alone").glob("*.json")}
    for run in (store / "runs").iterdir():
        experiment = json.loads((run / "manifest.json").read_text())["spec_identity"]
        for path in run.iterdir():
            if path.name != "manifest.json":
                assert (experiment, path.name) not in found, (
                    f"{run.name}: a second run of the same experiment"
                )
                found[experiment, path.name] = path.read_bytes()
    return found


if __name__ == "__main__":
    here, there = (results(Path(name)) for name in sys.argv[1:])
    every = here.keys() | there.keys()
    differ = sorted(f"{name}" for name in every if here.get(name) != there.get(name))
    print(f"{len(here)} and {len(there)} files, {len(differ)} differ", *differ[:20], sep="\n  ")
    sys.exit(bool(differ) or not here)
