"""Test decode runs, sums of a batch and the new-token ratio against plain loops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.engine.batch import DecodeRun, RunningBatch
from fairbench.engine.sequence import Sequence
from fairbench.engine.sglang import NewTokenRatio
from fairbench.hardware.gpu_time import Decoding

times = st.integers(0, 10**6)


@st.composite
def runs(draw):
    steps = draw(st.integers(1, 60))
    growth = draw(st.sampled_from([0, 1, 7, 1000]) | st.integers(0, 10**9))
    return DecodeRun(draw(times), draw(st.integers(1, 10**9)), growth, steps)


def ends(run):
    """Return the end of each step, one by one."""
    at, length, made = run.start_ps, run.first_ps, []
    for _ in range(run.steps):
        at += length
        length += run.growth_ps
        made.append(at)
    return made


@given(runs())
def test_the_end_of_k_steps_is_their_sum(run):
    assert [run.end_ps(k) for k in range(1, run.steps + 1)] == ends(run)
    assert run.end_ps(0) == run.start_ps


@given(runs(), st.data())
def test_steps_before_a_time_end_strictly_before_it(run, data):
    made = ends(run)
    near = st.sampled_from(made).flatmap(lambda end: st.integers(end - 2, end + 2))
    time = data.draw(near | st.integers(0, made[-1] + 10))
    over = [run.start_ps, *(end for end in made if end < time)]
    assert run.steps_before(time) == (len(over) - 1, over[-1])


@given(runs(), st.data())
def test_the_rest_of_a_run_ends_unchanged(run, data):
    made = ends(run)
    steps = data.draw(st.integers(0, run.steps))
    run.advance(steps, run.end_ps(steps))
    assert ends(run) == made[steps:]


def sequence(number, inputs, output, max_new, produced=0, client="x"):
    request = Request(number, client, 0, 0, (Segment("in", inputs),), inputs, max_new)
    made = Sequence(request, Segment(f"out-{number}", output), 0, lambda _: None)
    made.produced = produced
    return made


@st.composite
def sequences(draw, number):
    output = draw(st.integers(2, 40))
    max_new = draw(st.integers(output, 60) | st.integers(4090, 4200) | st.just(10_000))
    produced = draw(st.integers(1, output - 1))
    inputs = draw(st.integers(1, 50))
    return sequence(number, inputs, output, max_new, produced, draw(st.sampled_from("xy")))


@given(st.data())
def test_sums_over_the_batch_equal_a_walk(data):
    batch, running = RunningBatch(), {}  # sequence -> number of tokens produced
    for number in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["join", "leave", "steps"]))
        if action == "join":
            new = data.draw(sequences(number))
            running[new] = new.produced
            batch.join(new)
        elif running and action == "leave":
            gone = data.draw(st.sampled_from(list(running)))
            before = gone.produced
            produced = running.pop(gone)
            assert batch.remove_sequence(gone) == produced - before
            assert gone.produced == produced
        elif running:
            batch.steps += data.draw(st.integers(1, batch.steps_to_finish()))
            steps = {s: batch.produced(s) - n for s, n in running.items()}
            assert len(set(steps.values())) == 1
            running = {s: n + steps[s] for s, n in running.items()}
            done = batch.finished()
            assert done == [s for s in done if s.output.length == running[s]]
            assert set(done) == {s for s, n in running.items() if s.output.length == n}
            for one in done:
                batch.remove_sequence(one)
                del running[one]
        assert list(batch.sequences) == list(running)
        assert batch.context_tokens == sum(s.request.input_tokens + n for s, n in running.items())
        to_go = [min(s.request.max_new_tokens - n, 4096) for s, n in running.items()]
        assert batch.reserved_tokens() == sum(to_go)
        clients = [s.request.client for s in running]
        assert batch.per_client == {client: clients.count(client) for client in clients}
        assert batch.decoding() == {
            client: Decoding(
                clients.count(client),
                sum(
                    s.request.input_tokens + n
                    for s, n in running.items()
                    if s.request.client == client
                ),
            )
            for client in clients
        }
        if running:
            left = [s.output.length - n for s, n in running.items()]
            assert batch.steps_to_finish() == min(left)


def test_a_reservation_above_4096_shrinks_only_below_it():
    batch = RunningBatch()
    batch.join(sequence(0, 10, 5000, 4100, produced=1))
    assert batch.reserved_tokens() == 4096  # 4,099 tokens to go
    batch.steps += 3
    assert batch.reserved_tokens() == 4096
    batch.steps += 1
    assert batch.reserved_tokens() == 4095


def test_fewest_outputs_then_longest_input_is_retracted_first():
    batch = RunningBatch()
    shapes = [(10, 5), (30, 3), (20, 3), (40, 7), (20, 5)]  # (input, produced)
    for number, (inputs, produced) in enumerate(shapes):
        batch.join(sequence(number, inputs, 50, 50, produced=produced))
    popped = [s.request.request_id for s in reversed(batch.retraction_order())]
    assert popped == [1, 2, 4, 0, 3]


def test_a_retracted_sequence_that_returns_finishes_once():
    batch, one = RunningBatch(), sequence(0, 10, 8, 8, produced=1)
    batch.join(one)
    batch.steps += 2
    batch.remove_sequence(one)
    one.produced += 1  # the token of its second prefill
    batch.join(one)
    assert batch.steps_to_finish() == 4
    batch.steps += 4
    assert batch.finished() == [one]
    assert batch.finished() == []


@pytest.mark.parametrize("conservativeness", [0.3, 1.0, 2.0])
def test_the_ratio_decays_step_by_step_to_its_minimum(conservativeness):
    ratio = NewTokenRatio(conservativeness, full_reservation=False)
    start = min(0.7 * conservativeness, 1.0)
    value, least = start, 0.14 * start
    for step in range(700):
        assert ratio.ratio_after(step) == pytest.approx(value, abs=1e-9)
        value = max(value - (start - least) / 600, least)
    assert ratio.ratio_after(650) == pytest.approx(least)
    ratio.reset(650)
    assert ratio.ratio_after(650) == start
    assert ratio.ratio_after(651) == pytest.approx(start - (start - least) / 600)


def test_full_reservation_keeps_the_ratio_at_one():
    ratio, batch = NewTokenRatio(1.0, full_reservation=True), RunningBatch()
    batch.join(sequence(0, 10, 50, 100, produced=5))
    ratio.after_retraction(batch)
    assert [ratio.ratio_after(step) for step in (0, 100, 1000)] == [1.0, 1.0, 1.0]


def test_after_a_retraction_the_ratio_follows_from_the_remaining_requests():
    ratio, batch = NewTokenRatio(1.0, full_reservation=False), RunningBatch()
    batch.steps = 40
    batch.join(sequence(0, 10, 50, 100, produced=5))
    batch.join(sequence(1, 10, 50, 60, produced=9))
    ratio.after_retraction(batch)
    after = (5 + 9 + 2 * 20) / (100 + 60 + 1)
    assert (
        ratio.ratio_after(40) == ratio.ratio_after(41) == after
    )  # the current step does not count
    assert ratio.ratio_after(42) == pytest.approx(after - (0.7 - 0.098) / 600)
    few = RunningBatch()
    few.join(sequence(2, 10, 5, 6, produced=4))
    ratio.after_retraction(few)
    assert ratio.ratio_after(1) == 1.0  # (4 + 20) / 7 is above 1
