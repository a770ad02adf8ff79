"""Test which prompt tokens of a preempted request count as computed again, by hand."""

from fairbench.core import Request, Segment
from fairbench.engine.sequence import Sequence
from fairbench.engine.vllm_running import Booking
from fairbench.schedulers.local.fcfs import FCFS


def sequence_of(tokens):
    request = Request(0, "x", 0, 0, (Segment("p", tokens),), tokens, 9)
    return Sequence(request, Segment("o", 9), 0, lambda sequence: None)


def test_tokens_that_any_earlier_admission_computed_count_as_computed_again():
    """A prompt of 100 gets to 80, then from 16 to 32, and then from 16 to its end."""
    booking, scheduler, one = Booking(), FCFS(FCFS.Params()), sequence_of(100)
    one.filled = 0
    booking.admit(one, scheduler, 1)
    for reached, again in ((80, 0), (32, 32 - 16)):
        one.filled = reached
        booking.preempt(one, decoding=False)
        one.retractions += 1
        assert one.recompute_tokens == again
        one.filled = 16
        booking.admit(one, scheduler, 2)
    assert one.extend_tokens == 100
    assert one.recompute_tokens == (32 - 16) + (80 - 16)
