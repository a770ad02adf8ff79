"""Helpers that make the cells and runs that figures read."""

from statistics import fmean

import pyarrow as pa
import pyarrow.parquet as pq

from fairbench.results.comparison import ComparedRun, SchedulerResults
from fairbench.results.store import StoredRun

PROFILE = "gpu/model/tp1/x"


def interval(value, spread=0.0, **bounds):
    """Return a metric as ``intervals.combine`` does. None stays undefined."""
    if value is None:
        return None
    return {"mean": value, "low": value - spread, "high": value + spread, "runs": 1} | bounds


def cell(
    scheduler, *, workload="tot", scenario="s1", dp=1, clients=3, settings=None, run=None, runs=(),
    seeds=(0,), at_least=(), spread=0.0, contended=True, window=None, **metrics,
):  # fmt: skip
    """Return the results of a scheduler. A metric in ``at_least`` is only a lower bound.

    A metric is one value, or one for each of ``seeds``. ``runs`` are the stored runs of each seed.
    """
    labels = {"scheduler": scheduler, "workload": workload, "scenario": scenario, "dp": dp}
    combined = labels | {"clients": [{"client": f"client-{n}"} for n in range(clients)]}
    for name, value in metrics.items():
        bound = {"lower_bound": True} if name in at_least else {}
        several = isinstance(value, tuple) and None not in value
        mean = fmean(value) if several else of_seed(value, 0)
        combined[name] = interval(mean, spread, **bound)
    basis = {"simulated": True, "timing_profile": PROFILE, "duration": 1000.0, "unfinished": 0}
    basis |= {
        "queue_empty_share": 0.0 if contended else 1.0,
        "notes": {},
        "censored": list(at_least),
    }
    members = tuple(
        ComparedRun(
            one,
            {"settings": settings or {}} | ({"window": window} if window else {}),
            {**UNDEFINED, **labels, **basis, "seed": seed}
            | {name: of_seed(value, number) for name, value in metrics.items()},
        )
        for number, (seed, one) in enumerate(zip(seeds, runs or [run] * len(seeds), strict=True))
    )
    return SchedulerResults(f"{workload} {scenario} dp {dp}", scheduler, members, combined)


def of_seed(value, number):
    """Return the value of a metric at one seed."""
    return value[number] if isinstance(value, tuple) else value


# a value that a test does not give is unknown
UNDEFINED = dict.fromkeys(
    (
        "service_rate_tok_s", "output_rate_tok_s", "time_to_100pct_s", "jain_index",
        "jain_index_paper_window", "victim_p50_s", "victim_p99_s",
    )
)  # fmt: skip


def stored_run(folder, service, requests, **summary):
    """Store a run with tables of the given rows, which are dicts. Missing columns are 0."""
    folder.mkdir(parents=True)
    _write(folder / "service.parquet", service, SERVICE)
    _write(folder / "requests.parquet", requests, ("arrival_s", "finish_s"))
    names = sorted({row["client"] for row in [*service, *requests]})
    basis = {"simulated": True, "timing_profile": PROFILE, "seed": 0, "unfinished": 0}
    rows = [{"client": name} for name in names]
    return StoredRun(folder, basis | {"clients": rows} | summary, {})


SERVICE = (
    "worker", "start_s", "end_s", "steps", "step_growth_s", "batch_size", "context_tokens",
    "input_tokens", "extend_charged_tokens", "extend_tokens", "recompute_tokens", "output_tokens",
)  # fmt: skip


def _write(path, rows, columns):
    table = {name: [row.get(name, 0) for row in rows] for name in columns}
    names = pa.array([row["client"] for row in rows]).dictionary_encode()
    pq.write_table(pa.table(table | {"client": names}), path)
