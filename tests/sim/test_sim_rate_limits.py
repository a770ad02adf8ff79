"""Test whole engines under schedulers that delay requests on purpose, and under turns."""

from collections import Counter
from math import isnan

import pytest

from fairbench.sim.run import simulate
from tests.sim.sim_helpers import small_spec

ENGINES = ["sglang", "vllm", "lightllm"]


def run(local, engine, **settings):
    spec = small_spec(
        f"round-robin+{local}",
        "chat",
        flags={"engine": engine, "num_programs": 6, "max_drain_s": 3000.0},
        **settings,
    )
    return simulate(spec)


def rows_of(result):
    columns = {name: values.tolist() for name, values in result.requests.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("window", ["sliding", "fixed"])
@pytest.mark.parametrize("engine", ENGINES)
def test_delayed_requests_are_all_served_and_never_too_many_in_a_minute(engine, window):
    result = run("rpm", engine, rpm__limit=4, rpm__over="delay", rpm__window=window)
    assert result.summary["refused"] == 0
    assert result.summary["completed"] == result.summary["num_requests"]
    rows = rows_of(result)
    assert any(row["admitted_s"] > row["arrival_s"] + 30 for row in rows)
    if window == "fixed":
        minutes = Counter((row["client"], row["admitted_s"] // 60) for row in rows)
        assert max(minutes.values()) == 4


@pytest.mark.parametrize("engine", ENGINES)
def test_refused_requests_are_counted_and_are_in_no_latency(engine):
    result = run("rpm", engine, rpm__limit=4)
    rows = rows_of(result)
    refused = [row for row in rows if row["status"] == "refused"]
    assert result.summary["refused"] == len(refused) > 0
    assert all(isnan(row["first_token_s"]) and isnan(row["finish_s"]) for row in refused)
    for client in result.summary["clients"]:
        assert client["latency_refused"] > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_deficit_round_robin_serves_every_client(engine):
    result = run("mdrr", engine, mdrr__quantum=50)
    assert result.summary["completed"] == result.summary["num_requests"]
