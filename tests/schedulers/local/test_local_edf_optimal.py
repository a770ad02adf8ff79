"""Test preemptive EDF against every schedule on a machine that serves one request at a time."""

from math import inf

from hypothesis import assume, given
from hypothesis import strategies as st

from fairbench.schedulers.local.edf import EDF
from tests.schedulers.local.one_at_a_time import best, served
from tests.strategies import examples

JOBS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(1, 12)).map(
        lambda job: (job[0], job[1], job[0] + max(job[1], job[2]))
    ),
    min_size=1,
    max_size=4,
)


def edf(preempt="recompute"):
    return EDF(EDF.Params(aging_s=inf, rescue_s=inf, progress=0, preempt=preempt))


@given(JOBS)
@examples(300)
def test_every_feasible_set_is_met_with_free_preemption(jobs):
    assume(best(jobs) == len(jobs))
    assert served(edf(), jobs) == len(jobs)
