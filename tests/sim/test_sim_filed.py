"""Test that a long service log in files gives the same tables, summary and Parquet files."""

from itertools import pairwise

import pytest

from fairbench.engine import logs
from fairbench.metrics import arrays
from fairbench.metrics.tables import FiledService
from fairbench.results.store import save_run
from fairbench.sim import records
from fairbench.sim.records import tables_of
from fairbench.sim.run import Simulation, simulate
from tests.sim.sim_helpers import small_spec
from tests.slow_params import slow


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(arrays, "PART_ROWS", 50)
    monkeypatch.setattr(logs, "ROWS_PER_BLOCK", 7)
    monkeypatch.setattr(records, "AT_ONCE", 3)


@pytest.mark.parametrize("scheduler", ["d2lpm", *slow("fcfs", "vtc")])
def test_a_run_is_the_same_with_its_log_in_files(tmp_path, scheduler):
    spec = small_spec(scheduler, "tot", dp=2, pool=9_000)
    folder = tmp_path / "records"
    folder.mkdir()
    there, here = simulate(spec, folder=folder), simulate(spec)
    assert list(folder.glob("service.start_s"))
    assert there.summary == here.summary
    saved = [save_run(tmp_path / "runs", spec, run.tables(), {}, {}) for run in (there, here)]
    for name in ("requests", "programs", "service"):
        files = [(path / f"{name}.parquet").read_bytes() for path in saved]
        assert files[0] == files[1]


def test_no_part_divides_an_instant_and_the_parts_have_all_rows():
    spec = small_spec("fcfs", "tot", dp=2, pool=9_000)
    simulation = Simulation(spec, spec.client_plans(), None)
    simulation.run()
    simulation.cluster.settle()
    log = tables_of(simulation.cluster.clients, simulation.logs).service
    parts = list(log.parts())
    assert len(parts) > 2
    assert not isinstance(log, FiledService)
    assert sum(map(len, parts)) == len(log)
    assert all(one.start_s[-1] < later.start_s[0] for one, later in pairwise(parts))
