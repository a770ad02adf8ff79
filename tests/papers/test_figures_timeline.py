"""Test service over time by hand-computed examples."""

import numpy as np
import pytest

from fairbench.metrics.service import View
from fairbench_papers.timeline import busy_share, client_names, response_times, service_rates
from tests.figure_helpers import stored_run

NEVER = float("nan")


@pytest.fixture
def run(tmp_path):
    # Client 0 has a prefill of 30 cached and 10 new tokens, and 4 output tokens in 4 steps of 1 s.
    # Client 1 is in the same batch while it decodes. Worker 1 computes from 6 to 8 s.
    service = [
        {"client": "client-0", "start_s": 0.0, "end_s": 1.0, "steps": 1,
         "input_tokens": 40, "extend_tokens": 10, "output_tokens": 1},
        {"client": "client-0", "start_s": 2.0, "end_s": 6.0, "steps": 4, "output_tokens": 4},
        {"client": "client-1", "start_s": 2.0, "end_s": 6.0, "steps": 4, "output_tokens": 8},
        {"client": "client-1", "worker": 1, "start_s": 6.0, "end_s": 8.0, "steps": 1,
         "input_tokens": 5, "extend_tokens": 5, "output_tokens": 1},
    ]  # fmt: skip
    requests = [
        {"client": "client-0", "arrival_s": 0.0, "finish_s": 6.0},
        {"client": "client-0", "arrival_s": 1.0, "finish_s": 9.0},
        {"client": "client-1", "arrival_s": 4.5, "finish_s": 5.0},
        {"client": "client-1", "arrival_s": 1.0, "finish_s": NEVER},
    ]
    return stored_run(tmp_path / "run", service, requests)


def test_service_is_booked_at_its_end(run):
    edges = np.array([0.0, 4.0, 10.0])
    assert client_names(run) == ["client-0", "client-1"]
    # With cached input, 40 input tokens count at admission. Outputs count twice, and those at 4 s
    # later.
    client = [[(40 + 2 + 2) / 4, (3 * 2) / 6], [(2 * 2) / 4, (6 * 2 + 5 + 2) / 6]]
    assert service_rates(run, View.CLIENT, edges).tolist() == client
    actual = [[(10 + 2 + 2) / 4, (3 * 2) / 6], [(2 * 2) / 4, (6 * 2 + 5 + 2) / 6]]
    assert service_rates(run, View.ACTUAL, edges).tolist() == actual


def test_response_times_cover_requests_that_arrived_and_were_served(run):
    times = response_times(run, np.array([0.0, 4.0, 10.0]))
    assert times[0, 0] == 7.0
    assert times[1, 1] == 0.5
    assert np.isnan(times[0, 1])
    assert np.isnan(times[1, 0])


def test_arrivals_after_the_last_interval_are_left_out(run):
    assert np.isnan(response_times(run, np.array([0.0, 4.0]))[1, 0])


def test_a_batch_of_two_clients_is_busy_once(run):
    # Worker 0 is busy for 1 s and 4 s, and worker 1 for 2 s, of 10 s each.
    assert busy_share(run, 2, np.array([0.0, 10.0])).tolist() == [7 / 20]
    assert busy_share(run, 2, np.array([0.0, 3.0, 6.0])).tolist() == [2 / 6, 3 / 6]
