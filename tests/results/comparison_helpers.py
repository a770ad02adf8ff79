"""Hand-made stored runs that have the parts which a comparison reads."""

import json

from fairbench.config import identity, to_toml
from fairbench.config.resolve import resolve
from fairbench.results.store import SCHEMA_VERSION, StoredRun, read_run


def client(number, **values):
    row = {
        "client": f"client-{number}",
        "misbehaving": number == 0,
        "service_rate_tok_s": 10.0,
        "demand_tok_s": 100.0,
        "p50_s": 4.0,
        "p99_s": 8.0,
    }
    return row | values


def summary(**values):
    made = {
        "simulated": True,
        "timing_profile": "gpu/model/tp1/x",
        "seed": 0,
        "complete": True,
        "demand_limited": False,
        "service_rate_tok_s": 30.0,
        "jain_index_actual": 0.5,
        "victim_p50_s": 4.0,
        "victim_p99_s": 8.0,
        "time_to_90pct_s": 100.0,
        "clients": [client(0), client(1), client(2)],
        "censored": [],
        "notes": {},
    }
    return made | values


def alone_row(number, **values):
    row = {"client": f"client-{number}", "latency_n": 9, "p50_s": 2.0, "p99_s": 2.0, "censored": []}
    return row | values


def stored(folder, flags, settings=None, *, complete=True, **values) -> StoredRun:
    """Store a run directory without tables, like an experiment with these flags."""
    spec = resolve({"workload": "chat", **flags}, settings or {})
    path = folder / f"{spec.scheduler}-{identity(spec)[:8]}"
    path.mkdir(parents=True)
    (path / "experiment.toml").write_text(to_toml(spec))
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "complete": complete,
        "spec_identity": identity(spec),
    }
    content = summary(seed=spec.seed, complete=complete, **values)
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "summary.json").write_text(json.dumps(content))
    return read_run(path)
