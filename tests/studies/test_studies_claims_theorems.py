"""Test the claims on theorems: the bound against measurements of figure 7's runs."""

import numpy as np
import pytest

import fairbench
from fairbench.results.store import read_run
from fairbench_studies.dlpm.claims import theorems
from fairbench_studies.dlpm.claims.theorems import judge_bound, service_gap, shortfall
from fairbench_studies.kit.leads import largest_lead
from fairbench_studies.kit.outcomes import Outcome
from tests.figure_helpers import cell, stored_run
from tests.studies.service_helpers import requests_of, service_of


def run(tmp_path, gap, bound, source="DLPM Theorem 4.1", scheduler="d2lpm"):
    facts = {"max_service_gap": gap, "service_gap_bound": bound, "bound_source": source}
    made = stored_run(
        tmp_path / f"{scheduler}-{gap}-{bound}", [], [{"client": "client-0"}], **facts
    )
    made.summary["scheduler"] = scheduler
    return made


@pytest.mark.parametrize(
    ("gaps", "expected"), [((10.0, 60.0), Outcome.HOLDS), ((10.0, 101.0), Outcome.REVERSED)]
)
def test_a_bound_is_held_in_every_run_or_not(tmp_path, gaps, expected):
    runs = [run(tmp_path, gap, 100.0) for gap in gaps]
    others = [
        run(tmp_path, 999.0, 100.0, "D2LPM Theorem 5.1"),
        run(tmp_path, 9.0, 1.0, scheduler="vtc"),
    ]
    cells = [cell("d2lpm", seeds=(0, 1, 2, 3), runs=[*runs, *others])]
    (part,) = judge_bound(cells, theorem="DLPM Theorem 4.1", measured=service_gap)
    assert part.outcome is expected
    assert (
        f"the largest difference is {max(gaps):,.0f} tokens, {max(gaps):.0f}% of its bound"
        in part.ours
    )


def test_without_a_joint_backlog_nothing_is_tested(tmp_path):
    cells = [cell("d2lpm", runs=[run(tmp_path, None, 100.0)])]
    (part,) = judge_bound(cells, theorem="DLPM Theorem 4.1", measured=service_gap)
    assert part.outcome is Outcome.UNCONTENDED


def test_a_lead_over_a_backlogged_client_equals_a_hand_computation():
    """Client 0 waits from 2 to 8; meanwhile client 1 gets 100 and 2 x 5 tokens, and client 0 gets
    30.
    """
    requests = requests_of((0, 2.0, 8.0), (1, 0.0, 0.0))
    service = service_of(
        (1, 0.0, 1.0, 500, 0),  # before
        (1, 3.0, 4.0, 100, 0),
        (0, 5.0, 6.0, 30, 0),
        (1, 6.0, 7.0, 0, 5),
        (1, 9.0, 10.0, 900, 0),  # after
    )
    assert largest_lead(requests, service, 2, 20.0) == 100.0
    later = service_of((1, 3.0, 4.0, 100, 0), (0, 3.5, 4.5, 30, 0), (1, 6.0, 7.0, 0, 25))
    assert largest_lead(requests, later, 2, 20.0) == 100 - 30 + 2 * 25


def test_dlpm_keeps_theorem_4_2_in_a_contended_run(tmp_path):
    flags = {"preset": "dlpm-paper", "workload": "judge", "scheduler": "d2lpm", "num_programs": 6}
    result = fairbench.run(result_dir=tmp_path, **flags)
    lead = shortfall(read_run(result.path))
    assert 0 < lead <= result.summary["service_gap_bound"]
    assert np.isfinite(lead)
    assert len(theorems.CLAIMS) == 3
