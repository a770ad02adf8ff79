"""Test the claims on figures 8, 9 and 12 with hand-made runs."""

import pytest

from fairbench_studies.dlpm.claims import conversations, mix, trees
from fairbench_studies.kit.outcomes import Outcome
from tests.figure_helpers import cell, stored_run

HOLDS, REVERSED, UNCLEAR, _, OFF, _ = Outcome


def told(parts):
    """Return the verdict on each part."""
    return [part.outcome for part in parts]


def requests_of(responses, arrivals=(1.0, 95.0)):
    """Return one request per client at each of ``arrivals``, which takes ``responses``."""
    return [
        {"client": f"client-{number}", "arrival_s": at, "finish_s": at + response}
        for number, pair in enumerate(responses)
        for at, response in zip(arrivals, pair, strict=True)
    ]


def run_of(folder, name, responses=(), service=(), **summary):
    requests = requests_of(responses) or [{"client": "client-0"}]
    return cell(name, run=stored_run(folder / name, list(service), requests, **summary), **summary)


@pytest.mark.parametrize(
    ("vtc_floods", "lpm_good", "reformed", "expected"),
    [
        (80.0, 90.0, 5.0, [HOLDS, HOLDS, HOLDS, HOLDS]),
        (300.0, 90.0, 5.0, [HOLDS, HOLDS, OFF, HOLDS]),
        (80.0, 15.0, 5.0, [REVERSED, HOLDS, HOLDS, HOLDS]),
        (80.0, 90.0, 60.0, [HOLDS, HOLDS, HOLDS, REVERSED]),
    ],
)
def test_conversations_are_judged(tmp_path, vtc_floods, lpm_good, reformed, expected):
    by_scheduler = {
        "lpm": [(lpm_good, 1.0)] * 2 + [(90.0, 9.0)] * 2,
        "vtc": [(9.0, 1.0)] * 2 + [(vtc_floods, 9.0)] * 2,
        "d2lpm": [(10.0, 1.0)] * 2 + [(50.0, reformed), (50.0, 50.0)],
    }
    cells = [
        run_of(tmp_path, name, responses, window_end_s=100.0)
        for name, responses in by_scheduler.items()
    ]
    assert told(conversations.judge_chat(cells)) == expected


@pytest.mark.parametrize(
    ("vtc_s", "code_s", "expected"),
    [
        (200.0, 150.0, [HOLDS, HOLDS, HOLDS]),
        (120.0, 110.0, [HOLDS, HOLDS, OFF]),
        (200.0, 90.0, [HOLDS, REVERSED, HOLDS]),
        (90.0, 90.0, [REVERSED, REVERSED, OFF]),
    ],
)
def test_the_order_of_completion_is_judged(tmp_path, vtc_s, code_s, expected):
    ends_s = {"d2lpm": 100.0, "vtc": vtc_s, "preble-code": code_s}
    cells = [run_of(tmp_path, name, duration=end_s) for name, end_s in ends_s.items()]
    assert told(trees.judge_makespan(cells)) == expected


def test_response_times_of_trees_are_judged(tmp_path):
    """D2LPM takes 30 s on average, and at most 20 s for clients 1 and 2."""
    by_scheduler = {
        "d2lpm": [(50.0, 50.0), (20.0, 20.0), (20.0, 20.0)],
        "vtc": [(60.0, 60.0), (30.0, 30.0), (30.0, 30.0)],
        "lpm": [(10.0, 10.0), (90.0, 90.0), (90.0, 90.0)],
        "preble": [(10.0, 10.0), (15.0, 15.0), (15.0, 15.0)],
    }
    cells = [
        run_of(tmp_path, name, responses, duration=100.0)
        for name, responses in by_scheduler.items()
    ]
    parts = trees.judge_responses(cells)
    assert told(parts) == [HOLDS, HOLDS, REVERSED]
    assert parts[0].ours == "30 s, VTC 40 s"
    assert parts[1].ours == "at most 20 s, RR+LPM 90 s"


@pytest.mark.parametrize(
    ("busy_workers", "response_s", "expected"),
    [
        (1, 500.0, [HOLDS, HOLDS, HOLDS]),
        (1, 50.0, [HOLDS, HOLDS, OFF]),
        (3, 500.0, [REVERSED, OFF, HOLDS]),
    ],
)
@pytest.mark.parametrize("preble", ["preble", "preble-code"])
def test_preble_leaves_workers_idle(tmp_path, preble, busy_workers, response_s, expected):
    service = [
        {"client": "client-0", "worker": worker, "start_s": 0.0, "end_s": 1000.0, "steps": 1}
        for worker in range(busy_workers)
    ]
    responses = [(1.0, 1.0), (response_s, 1.0)]
    cells = [run_of(tmp_path, preble, responses, service, dp=4, duration=1000.0)]
    parts = trees.judge_stall(cells)
    assert told(parts) == expected
    assert parts[0].ours == f"{busy_workers / 4:.0%} busy in the idlest 300 s"


@pytest.mark.parametrize(
    ("extend_tokens", "input_tokens", "expected"),
    [
        ((10, 10), (50, 10), [HOLDS, HOLDS, HOLDS]),
        ((10, 6), (50, 10), [OFF, OFF, HOLDS]),
        ((10, 10), (10, 50), [HOLDS, HOLDS, REVERSED]),
    ],
)
def test_equal_computed_service_is_judged(tmp_path, extend_tokens, input_tokens, expected):
    service = [
        {"client": f"client-{number}", "worker": number, "start_s": 1.0, "end_s": 2.0, "steps": 1,
         "input_tokens": inputs, "extend_tokens": extend}
        for number, (extend, inputs) in enumerate(zip(extend_tokens, input_tokens, strict=True))
    ]  # fmt: skip
    window = {"paper_window_start_s": 0.0, "paper_window_end_s": 5.0}
    cells = [run_of(tmp_path, name, (), service, **window) for name in ("vtc", "d2lpm")]
    assert told(trees.judge_equal_service(cells)) == expected


@pytest.mark.parametrize(
    ("dlpm_s", "lpm_chat_s", "expected"),
    [
        (10.0, 90.0, [HOLDS, HOLDS, HOLDS, HOLDS]),
        (60.0, 90.0, [REVERSED, HOLDS, HOLDS, HOLDS]),
        (99.0, 1.0, [REVERSED, HOLDS, HOLDS, REVERSED]),
    ],
)
def test_a_mix_is_judged(tmp_path, dlpm_s, lpm_chat_s, expected):
    mixes = {
        "lpm": ([(lpm_chat_s, 1.0)] * 2 + [(20.0, 1.0)] * 2, 100.0, 0.90),
        "vtc": ([(50.0, 1.0)] * 4, 110.0, 0.99),
        "dlpm": ([(dlpm_s, 1.0)] * 4, 98.0, 0.98),
    }
    cells = [
        run_of(tmp_path, name, responses, duration=end_s, jain_index_actual=even)
        for name, (responses, end_s, even) in mixes.items()
    ]
    assert told(mix.judge_mix(cells)) == expected


def test_a_shape_must_occur_in_every_seed(tmp_path):
    """LPM starves the well-behaved clients in only one of two seeds."""
    cells = []
    for name, good in (("lpm", (90.0, 12.0)), ("vtc", (9.0, 9.0)), ("d2lpm", (10.0, 10.0))):
        runs = [
            stored_run(
                tmp_path / f"{name}-{seed}",
                [],
                requests_of([(good[seed], 1.0)] * 2 + [(80.0, 5.0), (80.0, 50.0)]),
                window_end_s=100.0,
            )
            for seed in (0, 1)
        ]
        cells.append(cell(name, seeds=(0, 1), runs=runs))
    starved = conversations.judge_chat(cells)[0]
    assert starved.outcome is UNCLEAR
    assert starved.ours == "LPM 51 s, VTC 9 s, D2LPM 10 s (in 1 of 2 seeds)"
