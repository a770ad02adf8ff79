"""Test ServeGen's windows: the measured number of requests, burstiness and lengths."""

import json
import random
from collections import Counter
from itertools import pairwise
from math import gamma, sqrt

import numpy as np
import pytest

import fairbench
from fairbench.config.resolve import experiment
from fairbench.errors import DataError, UsageError
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench_logs.traces.facts import burstiness
from fairbench_logs.traces.servegen import RenewalWindow, times_in, weibull_shape

LENS = {"input_tokens": [[100, 200], [0.25, 0.75]], "output_tokens": [[7], [1.0]]}
LATER = {"input_tokens": [[50], [1]], "output_tokens": [[8], [1]]}
LINES = [
    {
        "client": 3,
        "windows": [[1200, 0.1, 1.0, "Gamma", 1, 1], [1800, 0.2, 2.0, "Weibull", 1, 1]],
        "lens": {"1800": LATER, "0": LENS},
    },
    {"client": 5, "windows": [[2400, 0.005, 0.0, "Gamma", 1, 1]], "lens": {"0": LENS}},
    {"client": 9, "windows": [[0, 1.0, 1.0, "Gamma", 1, 1]], "lens": {}},
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "gen.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)), encoding="utf-8")
    return str(path)


def test_windows_have_exactly_their_requests_and_lengths(path):
    read = read_trace(TraceParams(path))
    trace = read.trace
    assert (read.format, trace.clients, trace.left_out) == ("servegen", ("3", "5"), 600)
    assert trace.who_left_out == "requests of clients without tables of lengths"
    assert read.unit == "s"
    assert (trace.span_s, trace.drawn) == (1800.0, True)
    found = list(trace.programs(0, random.Random(1), 1.0))
    assert [trace.count_programs(0, at) for at in (0, 600, 900, 1e9)] == [0, 60, 120, 180]
    assert Counter(at_s < 600 for at_s, _ in found) == {True: 60, False: 120}
    assert [at_s for at_s, _ in found] == sorted(at_s for at_s, _ in found)
    lengths = Counter((item.calls[0].prompt[0].length, at_s < 600) for at_s, item in found)
    assert set(lengths) == {(100, True), (200, True), (50, False)}
    assert {item.calls[0].output_tokens for _, item in found} == {7, 8}


@pytest.mark.parametrize(
    ("starts", "counts", "span_s"),
    [((0, 300, 900), [30, 30, 30], 1200.0), ((0, 1800, 3000), [60, 60, 60], 3600.0)],
)
def test_a_window_ends_before_the_next_and_after_at_most_ten_minutes(
    tmp_path, starts, counts, span_s
):
    path = tmp_path / "gen.jsonl"
    windows = [[start_s, 0.1, 1.0, "Gamma"] for start_s in starts]
    path.write_text(json.dumps({"client": 0, "windows": windows, "lens": {"0": LENS}}))
    trace = read_trace(TraceParams(str(path))).trace
    bounds = [*starts, 1e9]
    begun = [trace.count_programs(0, at_s) for at_s in bounds]
    assert [later - before for before, later in pairwise(begun)] == counts
    assert trace.span_s == span_s


def test_a_load_too_large_to_draw_may_be_cut(tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRBENCH_READ_MIB", "1")
    path = tmp_path / "large.jsonl"
    window = [[0, 100.0, 1.0, "Gamma", 1, 1]]
    path.write_text(json.dumps({"client": 0, "windows": window, "lens": {"0": LENS}}))
    trace = read_trace(TraceParams(str(path))).trace
    with pytest.raises(DataError, match=r"60,000 requests do not fit into memory.*; use --to"):
        trace.table(0)
    assert len(trace.table(0, 6.0)) > 100


@pytest.mark.slow
def test_a_run_draws_by_its_seed_and_is_marked(path):
    flags = {"trace": path, "scheduler": "fcfs", "duration": 900.0}
    one, again, other = (fairbench.run(**flags, seed=seed) for seed in (0, 0, 1))
    assert repr(one.requests.to_pylist()) == repr(again.requests.to_pylist())
    assert one.requests["arrival_s"] != other.requests["arrival_s"]
    assert one.summary["workload"] == "trace-gen-synthetic"
    assert one.summary["synthetic"] == "times and lengths are drawn from measured windows"
    table = read_trace(TraceParams(path)).trace.table(0, until_s=900.0)
    arrivals = sorted(one.programs["arrival_s"].to_pylist())
    assert [at_s - arrivals[0] for at_s in arrivals] == pytest.approx(table.arrival_s.tolist())


def test_gaps_are_equal_if_nothing_varies(path):
    found = list(read_trace(TraceParams(path)).trace.programs(1, random.Random(0), 2.0))
    assert [at_s * 2 for at_s, _ in found] == [1200 + 150 * n for n in (1, 2, 3)]


@pytest.mark.parametrize("law", ["Gamma", "Weibull"])
@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gaps_vary_as_much_as_measured(law, cv):
    window = RenewalWindow(0.0, 1.0, 40_000, cv, law)
    times = times_in(window, random.Random(7))
    assert len(times) == 40_000
    assert 0 <= times[0] <= times[-1] <= 1
    assert burstiness(np.array(times)) == pytest.approx(cv, rel=0.06)


def test_the_shape_of_weibulls_law_equals_a_known_value():
    assert weibull_shape(1.0) == pytest.approx(1.0)
    for shape in (0.25, 0.5, 2.0):
        cv = sqrt(gamma(1 + 2 / shape) / gamma(1 + 1 / shape) ** 2 - 1)
        assert weibull_shape(cv) == pytest.approx(shape)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"windows": [[0, -1, 1, "Gamma"]]}, r"line 1: windows: \[0, -1, 1, 'Gamma'\]: must be"),
        ({"windows": [[0, 1, 1, "Gauss"]]}, "line 1: windows: .*'Gamma' or 'Weibull'"),
        ({"windows": 3}, "line 1: windows = 3: the value has the wrong type"),
        ({"windows": [[0, 1, 1, "Gamma"], [0, 1, 1, "Gamma"]]}, "windows: must be sorted by time"),
        ({"lens": {"x": LENS}}, "line 1: lens: key 'x' must be a time in seconds"),
        ({"lens": {"0": {"input_tokens": [[1], [0]]}}}, "must be .*lengths.*parts"),
        ({"client": None}, "line 1: client = None: must be a number or string"),
        ({"windows": []}, "at least one client must have entries in windows and lens"),
    ],
)
def test_errors_in_windows_are_named(tmp_path, change, complaint):
    path = tmp_path / "gen.jsonl"
    path.write_text(json.dumps(LINES[0] | change), encoding="utf-8")
    with pytest.raises(DataError, match=complaint):
        read_trace(TraceParams(str(path)))


def test_clients_in_the_file_are_kept(path):
    with pytest.raises(UsageError, match="clients: cannot be given for the format servegen, whose"):
        experiment({"trace": path, "clients": 3}, {})
