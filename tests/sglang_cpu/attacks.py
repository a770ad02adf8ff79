"""Run three attacks on real SGLang: ``python attacks.py SGLANG_PYTHON FOLDER [SEEDS]``.

Small judges run on one server with a tiny model and no GPU. The attacks are padding under SGLang's
own ``lpm``, five names under ``vtc``, and small requests under SGLang's own ``fcfs``, each repeated
under its defence. Prints the victims' remaining service and the attacker's gain over its honest
twin. Runs already in FOLDER are reused.
"""

import os
import subprocess
import sys
from pathlib import Path

from fairbench.config.resolve import read_experiment, resolve
from fairbench.results.run_facts import read_tables, run_window, stored_facts
from fairbench.results.store import read_run
from fairbench.workloads.spec import load_workload
from fairbench_attacks.behaviour import Behaviour
from fairbench_attacks.measure import combined, harm, seen_in
from fairbench_attacks.report import attack_text
from fairbench_attacks.store import attack_file
from fairbench_attacks.workload import ATTACK, HONEST, Stakes, attack_workload

DURATION_S = 40.0
RATE = 2.0  # programs per second of a victim; all four together exceed what a core serves
SMALL = {
    **{"dimensions": 2, "system_tokens": 24, "article_tokens": 300.0, "dimension_tokens": 16},
    **{"judgement_tokens": 24, "merge_tokens": 16, "merge_output_tokens": 24},
}
TENANTS = ("--set", "vtc.tenants=tree", "--set", "dlpm.tenants=tree")
CASES = {
    "padding-1k": Behaviour(padding_tokens=1000),
    "sybil": Behaviour(identities=5),
    "small-requests": Behaviour(split=8),
}
UNDER = {  # for each attack: the scheduler to which it does most harm in simulations, and a defence
    "padding-1k": (("--router", "round-robin", "--schedule-policy", "lpm"),
                   ("--router", "round-robin", "--local", "dlpm", *TENANTS[2:])),
    "sybil": (("--router", "round-robin", "--local", "vtc"),
              ("--router", "round-robin", "--local", "vtc", *TENANTS[:2])),
    "small-requests": (("--router", "round-robin", "--schedule-policy", "fcfs"),
                       ("--router", "round-robin", "--local", "vtc", *TENANTS[:2])),
}  # fmt: skip
CPU = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --dtype float32 "
    "--disable-cuda-graph"
)


def seen(python, folder, file, scenario, how, seed):
    """Return a run, which is made if it is missing."""
    name = "-".join([file.stem, scenario, *(part.strip("-") for part in how[1::2]), str(seed)])
    parent = folder / name.replace("=", "-")
    if not parent.exists():
        model = Path(python).parents[1] / "model"
        command = [sys.executable, "-m", "fairbench", "run", "--backend", "sglang", "--dp", "1"]
        command += ["--server-python", python, "--model", model, "--load-format", "dummy"]
        command += ["--server-arg", CPU, "--mem-fraction-static", "0.1"]
        command += ["--max-total-tokens", "12000", "--max-running-requests", "8"]
        command += ["--workload", file, "--scenario", scenario, "--seed", str(seed), *how]
        command += ["--request-rate", str(RATE)]
        command += ["--result-dir", parent]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(list(map(str, command)), check=True, env=environment)
    (path,) = parent.iterdir()
    run = read_run(path)
    spec = resolve({}, {}, read_experiment(path / "experiment.toml"))
    last_s = max(row for row in read_tables(run).programs.arrival_s)
    window = run_window(spec, last_s, run.summary["duration"])
    return seen_in(spec.client_plans(), read_tables(run), stored_facts(run, window))


def main(python, folder, seeds):
    folder.mkdir(parents=True, exist_ok=True)
    base = load_workload("judge")
    lasting = {"duration_s": DURATION_S, "warmup_s": 5.0, "max_drain_s": DURATION_S}
    base = base.model_copy(update={"params": {**base.params, **SMALL}, **lasting})
    rows = []
    for name, behaviour in CASES.items():
        file = folder / f"{name}.toml"
        file.write_text(attack_file(attack_workload(base, "none", behaviour, Stakes(), name=name)))
        for how in UNDER[name]:
            harms = [
                harm(*(seen(python, folder, file, which, how, seed) for which in (ATTACK, HONEST)))
                for seed in range(seeds)
            ]
            about = f"{name} under {' '.join(how[3::2])}"
            rows.append({"about": about, **combined(harms)})
    print(attack_text(f"Attacks on real SGLang, no GPU, {seeds} seeds", rows), end="")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 3)
