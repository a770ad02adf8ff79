"""Test arrivals with the gaps of a recorded trace."""

import gzip
from itertools import islice, pairwise
from statistics import fmean

import pytest

from fairbench.errors import DataError, UsageError
from fairbench.streams import stream
from fairbench.workloads.traffic import traffic_kind
from fairbench.workloads.traffic.arrivals import TrafficLoad
from fairbench.workloads.traffic.recorded import trace_gaps
from tests.workloads.workload_fakes import shared_data

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
LOAD = TrafficLoad(0, 2.0, 1.0, None, 1e9)


def trace(tmp_path, *seconds, name="trace.csv"):
    rows = [f"2023-11-16 18:17:{second:09.6f}0,100,10\n" for second in seconds]
    path = tmp_path / name
    text = HEAD + "".join(rows)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return str(path)


def azure(path):
    return traffic_kind("azure", {"path": path})


def times(source, seed, count):
    return [at_s for at_s, _ in islice(source.arrivals(stream(seed, "a")), count)]


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_gaps_are_those_of_the_file_with_a_mean_of_one(tmp_path, name):
    assert trace_gaps(trace(tmp_path, 1, 2, 2, 9, name=name)) == (1 / (8 / 3), 0.0, 7 / (8 / 3))


def test_a_client_repeats_the_trace_at_its_own_rate(tmp_path):
    # gaps of 0.5 and 1.5, which are half as long at 2/s
    source = azure(trace(tmp_path, 0, 1, 4)).usual(LOAD)
    found = times(source, 0, 9)
    gaps = [round(after - before, 9) for before, after in pairwise([0.0, *found])]
    assert gaps in ([0.25, 0.75] * 4 + [0.25], [0.75, 0.25] * 4 + [0.75])
    starts = {round(times(source, seed, 1)[0], 9) for seed in range(20)}
    assert starts == {0.25, 0.75}
    assert found == times(source, 0, 9)


def test_a_heavy_client_cycles_faster_and_ends_on_time(tmp_path):
    kind = azure(trace(tmp_path, 0, 1, 4))
    usual, faster = kind.usual(LOAD), kind.misbehaving(LOAD, 4.0, None)
    assert times(faster, 3, 50) == pytest.approx([at_s / 4 for at_s in times(usual, 3, 50)])
    assert len(times(kind.usual(LOAD._replace(until_s=10.0)), 0, 99)) in (19, 20)
    assert len(times(kind.usual(LOAD._replace(num_programs=7)), 0, 99)) == 7


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n1,2\n", "line 2: missing column 'TIMESTAMP'"),
        (HEAD + "soon,1,1\n", "line 2: 'soon' is not a time"),
        (HEAD + "2023-11-16 18:17:04,1,1\n", "must have requests at two or more different times"),
        (
            HEAD + "2023-11-16 18:17:04,1,1\n2023-11-16 18:17:03,1,1\n",
            "line 3: time .* must not be before the time of the",
        ),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, complaint):
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=complaint):
        azure(str(path)).usual(LOAD)


def test_without_a_file_there_is_an_error_and_no_burstiness(tmp_path):
    with pytest.raises(DataError, match=r"^arrivals .*: cannot be read"):
        azure(str(tmp_path / "none.csv")).usual(LOAD)
    with pytest.raises(UsageError, match=r"burstiness = 2:"):
        azure(trace(tmp_path, 0, 1)).usual(LOAD._replace(burstiness=2.0))


def test_the_trace_of_azure_has_its_burstiness():
    gaps = trace_gaps(shared_data("azure_llm_2023_code.csv.gz"))
    assert len(gaps) == 8818
    assert fmean(gaps) == pytest.approx(1)
    assert max(gaps) > 100  # bursts and pauses of the trace: a Poisson process has none above 12
