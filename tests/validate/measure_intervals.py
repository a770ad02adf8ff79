"""Measure the factors by which ``validate --predict`` widens its intervals, and what they contain.

    python tests/validate/measure_intervals.py FILE...
    python tests/validate/measure_intervals.py --intervals FILE...

The first command replays the runs of the files with three profiles: the one that ``--predict``
uses, the roofline of the GPU, and this roofline calibrated with one run of the server. Runs to
which a profile was fitted, and the runs of calibrations, do not count. For each grade of profile
and each metric, a line states the factor, and how many measured values lie within the factor (and
``ROOM_S`` of a TTFT) around the simulated value. In the last two columns, the factor of a run is
measured on all other servers, and the factors are those of ``predict.FACTORS``.

The second command counts the measured values inside the intervals of ``--predict``, for runs with
the default profile. These contain more values, because they begin with a range of simulations.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from fairbench.errors import DataError, UsageError
from fairbench_calibration.profiling import calibrated, decoded, derive
from fairbench_studies.validation.overview.points import default_profile
from fairbench_studies.validation.serving.compare import throughput_tok_s
from fairbench_studies.validation.serving.files import read_serving
from fairbench_studies.validation.serving.predict import (
    FACTORS,
    METRICS,
    ROOM_S,
    grade_of,
    metrics_of,
    predict,
)
from fairbench_studies.validation.serving.profiles import gpu_name, with_host_cost
from fairbench_studies.validation.serving.replay import replay
from fairbench_studies.validation.serving.unanswered import with_unanswered

PERCENT = 95.0
GOAL = 0.1  # relative error that a goal of the project allows
# Runs of this release of vLLM count, but set no factor, because its queue is not modelled.
OLD = "0.8"
FEWEST_RUNS = 3  # fewest runs of a server whose profile is calibrated with one of them


def server_of(run):
    """Return the engine, GPU, model, tensor parallelism and scheduler of a run's server."""
    old = OLD if run.engine == "vllm" and run.engine_version.startswith(OLD) else ""
    return run.engine, gpu_name(run.gpu), run.model, run.tp, run.policy, old


def profiles_of(runs):
    """Yield each profile with which the runs of a server are replayed, and these runs."""
    yield default_profile(runs[0]), [run for run in runs if not run.fitted]
    one = runs[0]
    if one.policy:
        return
    try:
        roofline = derive(one.model, gpu_name(one.gpu), tp=one.tp, engine=one.engine, roofline=True)
    except UsageError:
        return
    if default_profile(one).profile_id != roofline.profile.profile_id:
        yield roofline.profile, runs
    if len(runs) >= FEWEST_RUNS:
        middle = sorted(runs, key=throughput_tok_s)[len(runs) // 2]
        others = [run for run in runs if run is not middle]
        yield calibrated_with(middle, roofline.profile), others


def calibrated_with(run, start):
    """Return the profile calibrated with one measured run."""
    kept = run.served & (run.output_tokens > 1)
    prompt, output = (
        column[kept].astype(float) for column in (run.prompt_tokens, run.output_tokens)
    )
    first, last = ((run.submit_s + column)[kept] for column in (run.ttft_s, run.latency_s))
    seen = decoded(first, last, prompt, prompt, output)
    return calibrated(seen, start, mixed=run.engine == "vllm")


def errors_of(run, profile):
    """Yield the simulated and the measured value of each metric of a run."""
    sent, recorded = with_unanswered(run)
    simulated = metrics_of(replay(sent, with_host_cost(profile, run.policy)), recorded)
    measured = metrics_of(run, np.ones(len(run), bool))
    for name, value in simulated.items():
        metric = name.split("/")[0]
        if metric in METRICS and value > 0 and measured[name] > 0:
            yield metric, value, measured[name]


def measured_errors(files):
    """Return lists of simulated and measured values, by (grade, metric) and by server."""
    servers = defaultdict(list)
    for file in files:
        for run in read_serving(Path(file))[0]:
            servers[server_of(run)].append(run)
    found = defaultdict(lambda: defaultdict(list))
    for server, runs in servers.items():
        for profile, some in profiles_of(runs):
            for run in some:
                try:
                    errors = list(errors_of(run, profile))
                except DataError as error:
                    print(f"left out: {run.name}: {error}", file=sys.stderr)
                    continue
                for metric, simulated, measured in errors:
                    found[grade_of(profile), metric][server].append((simulated, measured))
    return found


def interval_hits(files):
    """Return, by (grade, metric), whether each measured value lies in its prediction interval."""
    found = defaultdict(list)
    for run in (run for file in files for run in read_serving(Path(file))[0] if not run.fitted):
        profile = default_profile(run)
        try:
            predicted = predict(run, with_host_cost(profile, run.policy))["metrics"]
        except DataError as error:
            print(f"left out: {run.name}: {error}", file=sys.stderr)
            continue
        measured = metrics_of(run, np.ones(len(run), bool))
        for name, interval in predicted.items():
            metric = name.split("/")[0]
            if metric in METRICS and interval["simulated"] and measured[name] > 0:
                held = interval["low"] <= measured[name] <= interval["high"]
                found[grade_of(profile), metric].append(held)
                if not held:
                    print(f"outside: {run.name}: {name}", file=sys.stderr)
    return found


def factor_of(metric, simulated, measured):
    """Return the factor by which a simulated value is off, apart from the room of a TTFT."""
    room_s = ROOM_S.get(metric, 0.0)
    return max(1.0, (measured - room_s) / simulated, simulated / (measured + room_s))


def largest(servers):
    """Return the largest of the servers' 95th percentiles. ``servers`` has lists of factors."""
    logs = (np.percentile(np.log(factors), PERCENT) for factors in servers)
    return float(np.exp(max(logs, default=np.nan)))


def line_of(grade, metric, values):
    """Return the line of the table for a grade and a metric."""
    off = {
        server: np.array([factor_of(metric, *pair) for pair in pairs])
        for server, pairs in values.items()
    }
    known = {server: some for server, some in off.items() if server[-1] != OLD}
    limit = largest(known.values())
    own = alone = stated = 0
    for server, some in off.items():
        own += (some <= limit).sum()
        alone += (some <= largest(v for other, v in known.items() if other != server)).sum()
        stated += (some <= FACTORS[grade][metric]).sum()
    every = sum(map(len, off.values()))
    near = sum(abs(ours / real - 1) <= GOAL for pairs in values.values() for ours, real in pairs)
    return (
        f"{grade} {metric}: {len(off)} servers, within 10% {near} of {every}, "
        f"factor {limit:.2f} holds {own}, "
        f"of other servers {alone}, stated {FACTORS[grade][metric]:g} holds {stated}"
    )


def main():
    if sys.argv[1] == "--intervals":
        for (grade, metric), hits in sorted(interval_hits(sys.argv[2:]).items()):
            print(f"{grade} {metric}: intervals hold {sum(hits)} of {len(hits)}")
        return
    for (grade, metric), values in sorted(measured_errors(sys.argv[1:]).items()):
        print(line_of(grade, metric, values))


if __name__ == "__main__":
    main()
