"""Test VTC-artifact's measures: hand-computed values, and sums over requests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import ServiceWeights
from fairbench_studies.kit.trace import Trace
from fairbench_studies.vtc.artifact import (
    accumulated,
    accumulated_difference,
    demand_rates,
    differences,
    even_points,
    response_times,
    service_rates,
    table_points,
    windowed_difference,
)


def trace(rows):
    """Return rows of (client, prompt, output, arrival, TTFT, latency). None means refused."""
    columns = list(zip(*rows, strict=True))
    floats = [[np.nan if one is None else one for one in column] for column in columns[3:]]
    return Trace(*(np.array(column) for column in columns[:3]), *map(np.array, floats))


TWO = trace(
    [
        (0, 100, 50, 0.0, 10.0, 30.0),  # 200 units from 10 to 30
        (1, 20, 40, 5.0, 5.0, 15.0),  # 100 units from 10 to 20
        (1, 20, 40, 50.0, None, None),
    ]
)


def test_service_is_spread_from_the_first_token_to_the_last():
    points = np.array([10.0, 15.0, 25.0, 40.0])
    found = service_rates(TWO, points, window_s=10.0)
    assert found.tolist() == [[5.0, 10.0, 10.0, 0.0], [5.0, 10.0, 0.0, 0.0]]
    assert accumulated(TWO, np.array([15.0, 30.0])).tolist() == [[50.0, 200.0], [50.0, 100.0]]
    assert accumulated(TWO, np.array([30.0]), start_s=15.0).tolist() == [[150.0], [50.0]]
    assert accumulated_difference(TWO, np.array([15.0, 30.0])).tolist() == [0.0, 100.0]


def test_demand_counts_arrivals_that_were_not_refused():
    found = demand_rates(TWO, np.array([0.0, 5.0, 50.0]), window_s=10.0)
    assert found.tolist() == [[20.0, 20.0, 0.0], [10.0, 10.0, 0.0]]


def test_the_lack_of_a_client_is_limited_by_its_demand():
    # Around 25 s, client 0 gets 10, client 1 gets 0, and neither asked for service.
    assert windowed_difference(TWO, np.array([25.0]), window_s=10.0).tolist() == [0.0]
    # Around 10 s (from 5 to 15 s), each client gets 5. Client 0 asked for 0, client 1 for 10.
    assert windowed_difference(TWO, np.array([10.0]), window_s=10.0).tolist() == [0.0]
    late = trace([(0, 100, 50, 0.0, 1.0, 21.0), (1, 100, 50, 0.0, 50.0, 70.0)])
    # Around 10 s, client 0 gets 10 a second. Client 1 gets 0, although it asked for 20.
    assert windowed_difference(late, np.array([10.0]), window_s=20.0).tolist() == [9.5]


def test_response_times_are_means_by_the_time_of_the_first_token():
    found = response_times(TWO, np.array([10.0, 60.0]), window_s=10.0)
    assert found[:, 0].tolist() == [10.0, 5.0]
    assert np.isnan(found[:, 1]).all()


def test_measuring_points():
    assert table_points()[[0, -1]].tolist() == pytest.approx([58.5, 571.5])
    assert len(table_points()) == 19
    assert even_points(100.0, 4).tolist() == [25.0, 50.0, 75.0]


def plain_lack(rows, point, window):
    """Compute the windowed difference in plain loops."""
    low, high = point - window / 2, point + window / 2
    service, demand = {}, {}
    for client, prompt, output, arrival, first, end in rows:
        cost = prompt + 2 * output
        start, last = arrival + first, arrival + end
        overlap = max(0.0, min(high, last) - max(low, start))
        part = cost * overlap / (last - start) / window
        service[client] = service.get(client, 0.0) + part
        demand[client] = demand.get(client, 0.0) + (low <= arrival <= high) * cost / window
    most = max(service.values())
    return sum(min(most - service[c], abs(demand[c] - service[c])) for c in service)


lengths = st.integers(1, 500)
requests = st.tuples(
    st.integers(0, 3), lengths, lengths, st.floats(0, 600), st.floats(0.1, 60), st.floats(1, 60)
).map(lambda r: (*r[:5], r[4] + r[5]))


@given(st.lists(requests, min_size=1, max_size=20))
def test_tables_equal_plain_loops(rows):
    measured = trace(rows)
    expected = [plain_lack(rows, point, 60.0) for point in table_points()]
    found = differences(measured)
    assert found.largest == pytest.approx(max(expected), abs=1e-6)
    assert found.mean == pytest.approx(np.mean(expected), abs=1e-6)
    assert found.variance == pytest.approx(np.var(expected), abs=1e-6)
    refused = trace([*rows, (0, 9, 9, 1.0, None, None)])
    kept = [client for client, *_ in rows]
    if 0 in kept:
        assert differences(refused)[:3] == found[:3]


def test_other_weights():
    found = accumulated(TWO, np.array([100.0]), weights=ServiceWeights(3, 1))
    assert found.tolist() == [[350.0], [100.0]]
