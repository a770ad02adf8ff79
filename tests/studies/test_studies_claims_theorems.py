"""Test the claims on theorems: bounds against measurements of figure 7's runs."""

from dataclasses import fields

import numpy as np
import pytest

import fairbench
from fairbench.metrics.records import Requests, Service
from fairbench.metrics.waiting import Backlog
from fairbench.results.store import read_run
from fairbench_studies.dlpm.claims.leads import (
    idle_shares,
    largest_wait,
    lead_over,
    shortfall_everywhere,
)
from fairbench_studies.dlpm.claims.sharing import (
    computed_index,
    judge_computed_service,
    judge_idle_workers,
)
from fairbench_studies.dlpm.claims.tested import CLAIMS, FOLDER, STATEMENTS, TESTS, ByTests
from fairbench_studies.dlpm.claims.theorems import (
    judge_as_printed,
    judge_bound,
    judge_round_robin,
    service_gap,
    shortfall,
)
from fairbench_studies.kit.leads import largest_lead
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.rows import ROOT
from fairbench_studies.kit.seeds import JudgedRun
from tests.figure_helpers import cell, stored_run
from tests.metrics.metrics_helpers import facts

NEVER = float("nan")


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


def requests_of(*waits, **more):
    """Return one request per wait: client, arrival, admission. ``more`` are further columns."""
    clients, arrivals, admissions = zip(*waits, strict=True)
    nothing = {column.name: [0] * len(waits) for column in fields(Requests)}
    never = dict.fromkeys(("retracted_s", "readmitted_s"), [NEVER] * len(waits))
    del nothing["routed_s"]
    given = {"client": clients, "arrival_s": arrivals, "admitted_s": admissions}
    return Requests.from_columns({**nothing, **never, **given, **more})


def service_of(*rows, **more):
    """Return one row per stretch: client, start, end, charged prompt tokens, output tokens."""
    columns = zip(*rows, strict=True)
    names = ("client", "start_s", "end_s", "extend_charged_tokens", "output_tokens")
    others = ("worker", "steps", "step_growth_s", "batch_size", "context_tokens", "input_tokens",
              "extend_tokens", "recompute_tokens")  # fmt: skip
    nothing = {name: [0] * len(rows) for name in others}
    return Service.from_columns({**nothing, **dict(zip(names, columns, strict=True)), **more})


def test_a_lead_over_a_backlogged_client_equals_a_hand_computation():
    """Client 0 waits from 2 to 8. Meanwhile, client 1 gets 100 + 2 x 5 tokens, client 0 gets 30."""
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
    assert shortfall_everywhere(read_run(result.path)) == lead  # the run has one worker


def test_a_lead_on_several_workers_counts_only_while_every_queue_holds_the_client():
    """Client 0 waits from 2 to 8 at worker 0 and from 4 to 9 at worker 1. Only 4 to 8 counts."""
    requests = requests_of((0, 2.0, 8.0), (0, 4.0, 9.0), (1, 0.0, 0.0), worker=[0, 1, 0])
    service = service_of((1, 3.0, 3.5, 900, 0), (1, 5.0, 6.0, 70, 0), (0, 6.0, 7.0, 20, 5),
                         (1, 7.0, 7.5, 40, 0), worker=[0, 1, 0, 0])  # fmt: skip
    backlog = Backlog.of_requests(requests, facts(workers=2))
    assert lead_over(backlog, service, 2) == 70 - 20 - 2 * 5 + 40  # 5 outputs end at 7
    alone = Backlog.of_requests(requests_of((0, 2.0, 8.0)), facts(workers=2))
    assert np.isnan(lead_over(alone, service, 2))


def test_the_wait_of_a_newcomer_is_counted_in_the_service_of_the_others():
    """Client 0 is idle until 2 and from 9 to 20. Its request at 5 does not follow an idle time."""
    requests = requests_of(
        (0, 2.0, 4.0), (0, 5.0, 8.0), (0, 20.0, 22.0), (1, 0.0, 0.0), (2, 0.0, 0.0),
        finish_s=[6.0, 9.0, 25.0, 30.0, 30.0],
    )  # fmt: skip
    service = service_of(
        (1, 0.5, 1.0, 10, 0),  # before
        (1, 3.0, 3.5, 100, 0), (2, 3.0, 3.8, 7, 4), (0, 5.0, 5.5, 999, 0),
        (1, 7.0, 7.5, 5000, 0),  # while the request of 5 waits
        (2, 21.0, 21.5, 60, 0),
    )  # fmt: skip
    assert largest_wait(requests, service, 3, 30.0) == 100 + 7 + 2 * 4
    assert largest_wait(requests_of((0, 0.0, 0.0), finish_s=[9.0]), service, 3, 30.0) == 0.0


def test_of_requests_sent_together_the_first_admitted_counts_and_one_never_admitted_waits():
    service = service_of((1, 3.0, 3.5, 100, 0), (1, 6.0, 6.5, 30, 0), (1, 29.0, 30.0, 4, 0))
    both = requests_of((0, 2.0, 7.0), (0, 2.0, 4.0), finish_s=[9.0, 9.0])
    assert largest_wait(both, service, 2, 30.0) == 100.0
    never = requests_of((0, 2.0, NEVER), finish_s=[NEVER])
    assert largest_wait(never, service, 2, 30.0) == 134.0


def test_idle_seconds_are_counted_by_the_queue_in_which_a_request_waits():
    """Worker 1 computes from 0 to 3, worker 0 from 0 to 7. A request waits from 2 to 8."""
    service = service_of((0, 0.0, 7.0, 1, 0), (0, 0.0, 3.0, 1, 0), worker=[0, 1])
    at_0 = idle_shares(requests_of((0, 2.0, 8.0), worker=[0]), service, 2, 10.0)
    assert at_0 == pytest.approx((1 / 20, 5 / 20))
    at_1 = idle_shares(requests_of((0, 2.0, 8.0), worker=[1]), service, 2, 10.0)
    assert at_1 == pytest.approx((5 / 20, 1 / 20))


def judged_run(number, derived, **summary):
    clients = [{"client": f"client-{number}"} for number in range(4)]
    facts = {"seed": number, "clients": clients, "service_gap_bound": 100.0} | summary
    return JudgedRun(ROOT, facts, {}, derived)


@pytest.mark.parametrize(("most", "expected"), [(300.0, Outcome.HOLDS), (301.0, Outcome.REVERSED)])
def test_a_newcomers_wait_is_bounded_by_the_bound_times_the_other_clients(most, expected):
    known = {"scheduler": "dlpm", "bound_source": "DLPM Theorem 4.1"}
    runs = [judged_run(0, {"newcomer wait": most}, **known)]
    cells = [cell("dlpm", runs=runs)]
    joined = cell("dlpm", runs=[judged_run(0, {"newcomer wait": 999.0}, **known)],
                  settings={"dlpm": {"join": "quantum"}})  # fmt: skip
    (part,) = judge_as_printed([*cells, joined])
    assert part.outcome is expected
    assert f"the others receive at most {most:.0f} tokens, 100% of its bound" in part.ours


def test_round_robin_keeps_twice_the_bound_against_clients_that_are_not_backlogged():
    known = {"scheduler": "vtc", "bound_source": "VTC Theorem A.6", "max_service_gap": 101.0}
    cells = [cell("vtc", runs=[judged_run(0, {"shortfall everywhere": 199.0}, **known)])]
    backlogged, others = judge_round_robin(cells)
    assert (backlogged.outcome, others.outcome) == (Outcome.REVERSED, Outcome.HOLDS)
    assert backlogged.text != others.text


def sharing_cell(name, scenario, *services):
    """Return results of four clients with the given computed services while all are active."""
    runs = [
        judged_run(seed, {"service while all are active": [service, service]},
                   paper_window_start_s=0.0)
        for seed, service in enumerate(services)
    ]  # fmt: skip
    seeds = tuple(range(len(runs)))
    return cell(name, dp=4, scenario=scenario, runs=runs, seeds=seeds, clients=4)


EQUAL, ONE_OF_TWO, ONE_OF_FOUR = [3.0] * 4, [2.0, 2.0, 0.0, 0.0], [8.0, 0.0, 0.0, 0.0]
"""Computed services whose Jain indices are 1, 1/2 and 1/4."""


def test_computed_service_is_compared_with_d2lpms_in_each_configuration():
    cells = [
        sharing_cell("lpm", "s1", ONE_OF_FOUR), sharing_cell("d2lpm", "s1", EQUAL),
        sharing_cell("lpm", "s2", EQUAL), sharing_cell("d2lpm", "s2", ONE_OF_TWO),
    ]  # fmt: skip
    (part,) = judge_computed_service(cells)
    assert part.outcome is Outcome.INCONCLUSIVE
    assert part.ours == "in 1 of 2 (reversed in 1), median gap of Jain's index +0.125"
    assert part.elsewhere == "reversed: tot s2 at 4"
    (fair,) = judge_computed_service(cells[:2])
    assert fair.outcome is Outcome.HOLDS


def test_computed_service_is_paired_by_seed_and_unknown_without_a_common_window():
    paired = [
        sharing_cell("lpm", "s1", ONE_OF_TWO, ONE_OF_FOUR),
        sharing_cell("d2lpm", "s1", EQUAL, ONE_OF_TWO),
    ]
    (part,) = judge_computed_service(paired)
    assert "median gap of Jain's index +0.375" in part.ours  # 0.5 and 0.25
    never = judged_run(0, {}, paper_window_start_s=None)
    assert np.isnan(computed_index(never))


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((0.0, 0.001), Outcome.HOLDS), ((0.0, 0.2), Outcome.INCONCLUSIVE),
     ((0.1, 0.2), Outcome.REVERSED)],
)  # fmt: skip
def test_no_worker_idles_if_four_fifths_of_the_configurations_show_it(shares, expected):
    cells = [
        cell("d2lpm", dp=4, scenario=f"s{number}",
             runs=[judged_run(0, {"idle while waiting": [0.0, share]})])
        for number, share in enumerate(shares)
    ]  # fmt: skip
    own, another = judge_idle_workers([*cells, cell("d2lpm"), cell("vtc", dp=4)])
    assert (own.outcome, another.outcome) == (Outcome.HOLDS, expected)
    assert f"{shares[1]:.1%} of the worker seconds in tot s1 at 4" in another.ours
    assert judge_idle_workers([cell("vtc", dp=4)]) == []


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda one: one.test)
def test_a_claim_that_tests_decide_names_a_test_of_this_project(statement):
    file, _, name = statement.test.partition("::")
    assert f"def {name}(" in (ROOT / FOLDER / file).read_text()
    (claim,) = [one for one in CLAIMS if one.judge(ByTests()) == [statement.part]]
    assert claim.figure == TESTS
    assert statement.test in statement.part.ours
