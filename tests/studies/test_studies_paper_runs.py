"""Test which runs of a paper are simulated again."""

from fairbench.config import identity
from fairbench.config.resolve import resolve
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.store import TABLES, save_run
from fairbench_studies.kit.paper_runs import stored


def test_an_interrupted_run_is_simulated_again(tmp_path):
    specs = [resolve({"seed": seed}) for seed in (1, 2)]
    for spec, complete in zip(specs, (True, False), strict=True):
        manifest = build_manifest(spec, complete=complete, watch=Stopwatch.start())
        save_run(tmp_path, spec, {name: {"worker": [0]} for name in TABLES}, {}, manifest)
    assert stored(tmp_path).keys() == {identity(specs[0])}
