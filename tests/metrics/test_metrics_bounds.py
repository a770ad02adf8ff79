from dataclasses import replace

from fairbench.core import ServiceBound, ServiceWeights
from fairbench.metrics.bounds import (
    dlpm_unit,
    largest_input,
    largest_remaining_output,
    theorem_bound,
    vtc_unit,
)
from fairbench.metrics.records import REFUSED
from tests.metrics.metrics_helpers import facts, log, requests

WEIGHTS = ServiceWeights()


def test_units_equal_a_hand_computation():
    assert dlpm_unit(300, 1000, WEIGHTS) == 300 + 2 * 1000
    assert vtc_unit(300, 1000, WEIGHTS) == 2000
    assert vtc_unit(5000, 1000, WEIGHTS) == 5000
    # 900 future output tokens and a prompt of 300 are 2,100 units, more than the pool's 2,000
    assert vtc_unit(300, 1000, WEIGHTS, 900) == 2100
    assert vtc_unit(300, 1000, WEIGHTS, 800) == 2000
    assert dlpm_unit(300, 1000, ServiceWeights(3, 5)) == 3 * 300 + 5 * 1000


def test_vtc_on_an_a10g_has_the_bound_of_its_paper():
    # [VTC] §5: 2 * max(input, 2 * 10,000) = 40,000
    assert theorem_bound(ServiceBound("client", 0, ""), 1024, 10_000) == 40_000


def test_dlpm_adds_the_quantum_and_multiplies_by_workers():
    bound = ServiceBound("actual", 500, "")
    # 2 * (300 + 2000 + 500) = 5,600, and 22,400 on four workers
    assert theorem_bound(bound, 300, 1000) == 5_600
    assert theorem_bound(replace(bound, workers=4), 300, 1000) == 22_400
    assert theorem_bound(bound, 300, 1000, remaining=900) == 5_600
    assert theorem_bound(bound, 300, 1000, remaining=1200) == 2 * (300 + 2400 + 500)
    assert theorem_bound(ServiceBound("actual", 0, "", workers=4), 300, 1000) == 16_000
    heavy = replace(bound, weights=ServiceWeights(10, 2))
    assert theorem_bound(heavy, 300, 1000) == 2 * (10 * 300 + 2 * 1000 + 500)


def test_with_weights_the_bound_is_that_of_the_two_lightest_clients():
    bound = ServiceBound("actual", 500, "", workers=3)
    # 3 * (2 * 500 + 2300 / 0.5 + 2300 / 2), with an overdraft of 300 + 2 * 1000
    assert theorem_bound(bound, 300, 1000, [2, 9, 0.5]) == 3 * (1000 + 4600 + 1150)
    assert theorem_bound(bound, 300, 1000, [1, 1, 1]) == theorem_bound(bound, 300, 1000)
    vtc = ServiceBound("client", 0, "")
    assert theorem_bound(vtc, 300, 1000, [4, 4]) == 2 * 2000 / 4
    assert theorem_bound(vtc, 300, 1000, [4]) == 2 * 2000 / 4  # no other client to compare with


def test_the_largest_input_is_that_of_an_admitted_request():
    table = requests(
        {"input_tokens": 70, "admitted_s": 1},
        {"input_tokens": 9000, "status": REFUSED},
        {"input_tokens": 80, "admitted_s": 2},
    )
    assert largest_input(table) == 80
    assert largest_input(requests()) == 0


ADMITTED = (
    {"client": 0, "admitted_s": 0, "output_tokens": 10, "input_tokens": 7},
    {"client": 0, "admitted_s": 4, "output_tokens": 8},
    {"client": 1, "admitted_s": 0, "output_tokens": 3},
    {"client": 0, "worker": 1, "admitted_s": 0, "output_tokens": 13},
)
# On worker 0, client 0 gets one token at each of 1, 2, 3, 4, and two at each of 5 .. 11. With the
# 10 + 8 tokens due, 14 remain after the first 4.
MADE = log(
    {"client": 0, "end_s": 4, "steps": 4, "output_tokens": 4},
    {"client": 0, "start_s": 4, "end_s": 11, "steps": 7, "output_tokens": 14},
    {"client": 0, "worker": 1, "end_s": 13, "steps": 13, "output_tokens": 13},
)


def test_remaining_outputs_are_counted_per_client_and_worker_after_each_admission():
    # 10 remain at 0 s. At 4 s, after 4 tokens, 10 - 4 + 8 = 14 remain, more than worker 1's 13.
    assert largest_remaining_output(requests(*ADMITTED), MADE, facts(workers=2)) == 14
    assert largest_remaining_output(requests(*ADMITTED), MADE, facts(workers=1)) == 14
    assert largest_remaining_output(requests(*ADMITTED[2:]), MADE, facts(workers=2)) == 13


def test_overcommitted_memory_lets_a_client_decode_more_than_the_pool():
    # With M = 1000, four requests in lockstep with outputs of 250, 333, 500 and 1000 hold at most
    # 1000 tokens at any time, and produce 2,083 without a new admission.
    table = requests(*({"admitted_s": 0, "output_tokens": n} for n in (250, 333, 500, 1000)))
    held = max(sum(step for n in (250, 333, 500, 1000) if step <= n) for step in range(1, 1001))
    assert held <= 1000
    assert largest_remaining_output(table, log(), facts()) == 2083


def test_without_admissions_no_outputs_remain():
    assert largest_remaining_output(requests(), log(), facts()) == 0
    assert largest_remaining_output(requests(), MADE, facts(workers=2)) == 0
