"""Measure the cost of a central DLPM scheduler: tests/benchmarks/centralised.py [--rounds 30]

Prints a Markdown table with the time of one round (DLPM paper, section 5.1) by number of workers
and length of the global queue, and its share of a decode step of 25 sequences. The scheduler and
the messages are measured, and the decode step is simulated.
"""

import argparse

from fairbench.hardware.catalogue import resolve_profile
from fairbench_studies.dlpm.central.timing import BATCH_SIZE, time_rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--gpu", default="a100")
    parser.add_argument("--model", default="llama-3.1-8b")
    arguments = parser.parse_args()
    profile = resolve_profile(arguments.gpu, arguments.model)
    print(f"decode step of {BATCH_SIZE}: {profile.profile_id}, simulated\n")
    print("| workers | waiting | sync, ms | update, ms | match, ms | sort and DLPM, ms |", end="")
    print(" decode step, ms | overhead |\n|" + "--:|" * 8)
    for workers in (1, 2, 4, 8):
        for waiting in (50, 100, 200, 400):
            cost = time_rounds(workers, waiting, profile, rounds=arguments.rounds)
            parts_ms = (
                cost.synchronisation_ms,
                cost.update_ms,
                cost.match_ms,
                cost.dispatch_ms,
                cost.decode_step_ms,
            )
            cells = " | ".join(f"{part:.2f}" for part in parts_ms)
            print(f"| {workers} | {waiting} | {cells} | {cost.overhead_pct:.0f}% |", flush=True)


if __name__ == "__main__":
    main()
