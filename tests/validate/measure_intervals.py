"""Count how often the intervals of ``validate --predict`` contain the measured values.

    python tests/validate/measure_intervals.py FILE...

prints a line for each kind of profile and metric. Runs to which a profile was fitted do not count.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from fairbench.errors import DataError
from fairbench_studies.validation.overview.points import default_profile
from fairbench_studies.validation.serving.files import read_serving
from fairbench_studies.validation.serving.predict import metrics_of, predict


def counted(runs):
    """Yield (kind of profile, metric, whether the interval contains the measured value)."""
    for run in runs:
        if run.fitted:
            continue
        try:
            found = predict(run, default_profile(run))
        except DataError as error:
            print(f"left out: {run.name}: {error}", file=sys.stderr)
            continue
        kind = "measured" if "/measured" in found["timing_profile"] else "other"
        measured = metrics_of(run, np.ones(len(run), bool))
        for name, interval in found["metrics"].items():
            if None not in interval.values() and measured[name] == measured[name]:
                held = interval["low"] <= measured[name] <= interval["high"]
                yield kind, name.split("/")[0], held


def main():
    runs = [run for file in sys.argv[1:] for run in read_serving(Path(file))[0]]
    every, held = Counter(), Counter()
    for kind, metric, inside in counted(runs):
        every[kind, metric] += 1
        held[kind, metric] += inside
    for kind, metric in sorted(every):
        print(f"{kind} {metric}: {held[kind, metric]} of {every[kind, metric]}")


if __name__ == "__main__":
    main()
