"""Helpers that edit stored runs of a tiny real experiment for the gate."""

import json
from functools import cache

from fairbench.config import identity, to_toml
from fairbench.config.resolve import resolve
from fairbench.results.store import SCHEMA_VERSION
from fairbench.sim.run import simulate

TINY = {"workload": "chat", "scenario": "none", "num_programs": 1, "scheduler": "vtc"}


@cache
def _summary():
    return json.dumps(simulate(resolve(TINY)).summary)


def summary(**values):
    """Return the experiment's summary with some values replaced."""
    return json.loads(_summary()) | values


def store(path, *, complete=True, spec=None, **values):
    """Store a run directory without tables. ``spec`` are flags of the experiment."""
    resolved = resolve(TINY | (spec or {}))
    path.mkdir(parents=True)
    (path / "experiment.toml").write_text(to_toml(resolved))
    content = summary(seed=resolved.seed, dp=resolved.dp, scheduler=resolved.scheduler, **values)
    (path / "summary.json").write_text(json.dumps(content))
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "complete": complete,
        "spec_identity": identity(resolved),
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def measured(parent, metric, values, **spec):
    """Store server runs of an experiment, one per seed, which differ only in ``metric``."""
    backend = {"backend": {"base_url": "http://127.0.0.1:1"}, "scheduler": "as served"}
    for seed, value in enumerate(values):
        flags = {**backend, "seed": seed, **spec}
        edited = {"simulated": False, "served": "a server", metric: value}
        store(parent / f"run{seed}", spec=flags, **edited)
    return parent
