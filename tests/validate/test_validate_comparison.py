"""Test measured against simulated runs: errors, targets, order, table, files and figure."""

import csv
import json
from math import nan

import numpy as np
import pytest
from rich.cells import cell_len

from fairbench.errors import UsageError
from fairbench.report.table import MAX_WIDTH
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.kit.trace import Trace
from fairbench_studies.validation.slora import files as validation_files
from fairbench_studies.validation.slora.compare import RunComparison, compare_run, groups
from fairbench_studies.validation.slora.files import as_json_object, check_output, write_files
from fairbench_studies.validation.slora.order import scheduler_orders
from fairbench_studies.validation.slora.table import validation_text
from fairbench_studies.validation.windows import TTFT, Window

SETTINGS = {"timing_profile": "some/profile", "fitted": {"c_T_ms": 0.2}}


def comparison(name="VTC/overload", *, fitted=False, **changes):
    """Return a run without a miss, except for some changed numbers: (simulated, measured)."""
    numbers = {
        "throughput": (900, 880),
        "max_gap": (10_000, 8_000),
        "jain": (0.9, 0.91),
        "refused": (0, 0),
        "p50_s": (1.1, 1.0),
        "p99_s": (11, 10),
        "least_ttft_s": (0.131, 0.13),
    } | changes
    pairs = {key: Pair(*map(float, value)) for key, value in numbers.items()}
    ttft = TTFT("client 0", pairs.pop("p50_s"), pairs.pop("p99_s"))
    rates = {0: Pair(450, 440), 1: Pair(455, 440)}
    window = Window(0.0, 60.0, rates, pairs.pop("jain"))
    return RunComparison(
        name=name,
        scenario=name.split("/")[-1],
        fitted=fitted,
        requests=100,
        windows=(window,),
        ttft=(ttft,),
        **pairs,
    )


def trace(*, scale=1.0, clients=2, refused=()):
    """Return four requests per client. TTFT is 2 s and latency 4 s, times ``scale``."""
    owner = np.repeat(np.arange(clients), 4)
    n = len(owner)
    ttft, latency = np.full(n, 2.0 * scale), np.full(n, 4.0 * scale)
    ttft[list(refused)] = latency[list(refused)] = nan
    arrival = np.arange(n, dtype=float)
    return Trace(owner, np.full(n, 10), np.full(n, 1 + owner), arrival, ttft, latency)


@pytest.mark.parametrize(
    ("simulated", "measured", "error"),
    [(110, 100, 10), (90, 100, -10), (0, 0, 0), (1, 0, None), (nan, 1, None), (1, nan, None)],
)
def test_errors_are_percent_of_the_measured_value(simulated, measured, error):
    pair = Pair(simulated, measured)
    assert pair.error_pct == (None if error is None else pytest.approx(error))
    assert pair.within(10.001) == (error is not None)
    assert not Pair(111, 100).within(10)


def test_both_sides_are_computed_by_the_same_functions():
    run = compare_run("a/b", "b", trace(), trace(scale=2.0), fitted=False)
    tokens = 4 * 11 + 4 * 12
    assert run.throughput == Pair(tokens / (7 + 8), tokens / (7 + 4))
    assert run.ttft[0] == TTFT("client 0", Pair(4, 2), Pair(4, 2))
    assert run.refused == Pair(0, 0)
    assert run.least_ttft_s == Pair(4, 2)


def test_a_run_with_refusals_is_compared():
    run = compare_run("a/b", "b", trace(refused=[0, 1, 2, 3]), trace(refused=[7]), fitted=False)
    assert run.refused == Pair(1, 4)
    assert run.service_rates[0].measured == 0
    assert run.service_rates[0].error_pct is None
    assert np.isnan(run.ttft[0].p50_s.measured)
    assert run.as_dict()["ttft"][0]["p50_s"]["measured"] is None
    json.dumps(run.as_dict(), allow_nan=False)


def test_few_clients_are_shown_individually_and_many_by_halves():
    assert groups(trace(clients=3)) == {f"client {i}": [i] for i in range(3)}
    # The higher its number, the more service a client requests.
    assert groups(trace(clients=5)) == {"light half": [0, 1, 2], "heavy half": [3, 4]}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"throughput": (925, 880)}, ["throughput"]),
        ({"throughput": (830, 880)}, ["throughput"]),
        ({"refused": (94, 100)}, ["refused"]),
        ({"refused": (1, 0)}, ["refused"]),
        ({"p50_s": (1.4, 1.2)}, ["TTFT P50 of client 0"]),
        ({"p50_s": (1.14, 1.0)}, []),  # above 1 s
        ({"p50_s": (0.84, 1.0)}, ["TTFT P50 of client 0"]),
        ({"least_ttft_s": (0.1, 0.13)}, ["least TTFT"]),
        ({"least_ttft_s": (0.1, 0.2)}, []),  # measured on a busy server
        ({"jain": (0.93, 0.91)}, []),
        ({"jain": (0.94, 0.91)}, ["Jain"]),
        ({"jain": (nan, nan)}, []),
        ({"jain": (nan, 0.91)}, ["Jain"]),
        ({"p99_s": (12.1, 10)}, ["TTFT P99 of client 0"]),
        ({"p99_s": (11.9, 10)}, []),
        ({"max_gap": (12_001, 8_000)}, ["max gap"]),
        ({"max_gap": (8_000, 12_001)}, ["max gap"]),
        ({"max_gap": (0, 0)}, []),
    ],
)
def test_targets_decide_hits_and_misses(changes, missed):
    run = comparison(**changes)
    assert [miss.split(":")[0] for miss in run.misses] == missed


def test_one_more_refusal_is_a_miss_of_throughput_and_refusals():
    measured, simulated = trace(), trace(refused=[4])
    (miss, *_) = compare_run("a/b", "b", measured, simulated, fitted=False).misses
    assert miss.startswith("throughput")
    names = [
        m.split(":")[0] for m in compare_run("a/b", "b", measured, simulated, fitted=False).misses
    ]
    assert "refused" in names


def test_schedulers_are_ordered_if_measurements_differ_enough():
    better, worse = comparison("VTC/x"), comparison("FCFS/x", max_gap=(99_000, 90_000))
    (order,) = scheduler_orders([worse, better, comparison("VTC/alone")])
    assert (order.scenario, order.runs) == ("x", ("FCFS/x", "VTC/x"))
    # The gaps differ. Throughput, two rates, Jain, two latencies and refusals are equal.
    assert (order.same, order.close, order.inverted) == (1, 7, ())


def test_an_inverted_pair_is_named_with_its_numbers():
    one, other = comparison("A/x", throughput=(900, 800)), comparison("B/x", throughput=(890, 880))
    (order,) = scheduler_orders([one, other])
    (inversion,) = order.inverted
    assert (inversion.column, inversion.first, inversion.second) == ("throughput", "A/x", "B/x")
    assert (inversion.measured, inversion.simulated) == ((800, 880), (900, 890))
    text = validation_text([one, other], [order], "")
    assert "! throughput, A and B: measured 800, 880; simulated 900, 890" in text


def test_two_that_are_simulated_as_equal_are_inverted_if_measured_apart():
    one, other = comparison("A/x", throughput=(900, 800)), comparison("B/x", throughput=(900, 880))
    assert len(scheduler_orders([one, other])[0].inverted) == 1


def test_the_table_marks_fitted_runs_and_misses():
    runs = [comparison(fitted=True), comparison("FCFS/real", throughput=(1_000, 880))]
    text = validation_text(runs, scheduler_orders(runs), "fitted, to some runs only: everything")
    lines = text.splitlines()
    assert "fitted, to some runs only: everything" in lines
    fitted, missed = (line for line in lines if "900/880" in line or "1,000/880" in line)
    assert fitted.startswith("VTC/overload*")
    assert "!" not in fitted
    assert missed.split()[:3] == ["FCFS/real", "1,000/880", "+13.6%!"]
    assert "  ! FCFS/real: throughput: 1000 against 880, +13.6% (target 5%)" in lines


def test_the_table_keeps_to_its_width_and_cuts_nothing():
    long = comparison(
        "FCFS/poisson_short_long", fitted=True, throughput=(21_500, 11_476),
        max_gap=(999_999, 100_000), refused=(1_000, 1_342), p50_s=(1_234.5, 123.4),
    )  # fmt: skip
    checks = [
        {"what": "a " * 60, "published": 1_234.0, "unit": "req/min", "predicted": 9_999.0,
         "error_pct": 700.0, "quoted": ""},
        {"what": "b " * 60, "quoted": "c " * 90},
    ]  # fmt: skip
    text = validation_text([long], [], "basis " * 40, checks)
    assert max(cell_len(line) for line in text.splitlines()) <= MAX_WIDTH
    assert "…" not in text
    assert "+700.0%" in text
    assert text.count("c ") + text.count("c\n") == 90


def test_files_are_written(tmp_path):
    pytest.importorskip("matplotlib", reason="the figure needs the plot extra")
    runs = [comparison(fitted=True), comparison("FCFS/real", p50_s=(nan, nan))]
    whole = as_json_object(runs, scheduler_orders(runs), SETTINGS, None)
    written = []
    for name in "ab":
        check_output(tmp_path / name)
        assert write_files(tmp_path / name, whole, runs, "an A10G", "basis; fitted")
        written.append({p.name: p.read_bytes() for p in sorted((tmp_path / name).iterdir())})
    assert written[0] == written[1]
    assert sorted(written[0]) == [f"validation.{x}" for x in ("csv", "json", "png", "svg")]
    assert json.loads(written[0]["validation.json"]) == json.loads(json.dumps(whole))
    rows = list(csv.DictReader(written[0]["validation.csv"].decode().splitlines()))
    assert rows[0] == {"run": "VTC/overload", "fitted": "yes", "number": "throughput",
                       "simulated": "900", "measured": "880", "error_pct": "2.2727"}  # fmt: skip
    assert [row["measured"] for row in rows if row["number"] == "TTFT P50 of client 0"] == ["1", ""]
    svg = written[0]["validation.svg"].decode()
    for words in ("VTC/overload (fitted)", "FCFS/real", "open: fitted to this run", "simulated"):
        assert words in svg


def test_without_matplotlib_numbers_are_written_nevertheless(tmp_path, monkeypatch):
    monkeypatch.setattr(validation_files, "find_spec", lambda name: None)
    check_output(tmp_path / "new")
    whole = as_json_object([comparison()], [], SETTINGS, None)
    assert not write_files(tmp_path / "new", whole, [comparison()], "an A10G", "")
    written = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert written == ["validation.csv", "validation.json"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"output_dir .*file"):
        check_output(tmp_path / "file")


def test_json_holds_cross_checks_only_if_there_were_any():
    assert "crosschecks" not in as_json_object([], [], SETTINGS, None)
    assert as_json_object([], [], SETTINGS, [])["crosschecks"] == []
    run = as_json_object([comparison()], [], SETTINGS, None)["runs"][0]
    assert run["name"] == "VTC/overload"
    assert run["fitted"] is False
    assert run["throughput_error_pct"] == pytest.approx(100 * 20 / 880)
    assert run["service_rate_worst_error_pct"] == pytest.approx(100 * 15 / 440)
    assert run["service_rate_mean_error_pct"] == pytest.approx(100 * 12.5 / 440)
