"""Measure the cost of a centralised DLPM: python tests/benchmarks/centralised.py [--rounds 30]

Prints, as a Markdown table, the time of one round of the strawman of section 5.1 of the D2LPM paper
by number of workers and length of the global queue, and the overhead as a share of one decode step
of 25 sequences. Scheduler and messages are measured, the decode step is simulated.
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
