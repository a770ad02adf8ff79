"""Test the pace of a batch, and that EDF leaves out only passes that would preempt no request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Running, Setup
from fairbench.schedulers.local.edf import EDF
from fairbench.schedulers.parts.slack import Slack
from tests.schedulers.local.local_server import Server
from tests.strategies import examples

SECONDS = st.none() | st.integers(0, 30) | st.floats(0, 30)


class Costs:
    """Costs: a prefill takes 0.01 s per token, and a step 0.1 s plus 1 ms per token of context."""

    def prefill_s(self, cached_tokens, new_tokens):
        return new_tokens / 100

    def decode_step_s(self, requests, context_tokens):
        return 0.1 + context_tokens / 1000


@st.composite
def requests(draw):
    """Return requests with and without deadlines. Only some sets promise a pace."""
    paced, found = draw(st.booleans()), []
    for number in range(draw(st.integers(1, 12))):
        tokens, new = draw(st.integers(1, 40)), draw(st.integers(1, 20))
        due = {"deadline_s": draw(SECONDS), "first_token_by_s": draw(SECONDS)}
        if paced:
            due["token_every_s"] = draw(st.none() | st.floats(0.1, 2))
        client, prompt = draw(st.sampled_from("ab")), (Segment(f"p{number}", tokens),)
        at_s = draw(st.integers(0, 20))
        found.append(Request(number, client, number, 0, prompt, tokens, new, at_s, **due))
    return found


@given(requests(), st.integers(0, 25))
@examples(300)
def test_a_pass_of_a_full_server_preempts_only_if_edf_says_so(calls, steps):
    edf = EDF(EDF.Params(default_s=10.0, aging_s=15.0, rescue_s=1.0, progress=1))
    edf.prepare(Setup(costs=Costs()))
    home = Server(edf, slots=1, tokens=200)
    home.arrive(*calls)
    for _ in range(steps):
        home.run_pass()
        home.step()
        if not len(home) or not home.queue:
            continue
        says, before = edf.may_preempt(home.view, home.now_s), len(home.preempted)
        home.run_pass()
        assert says or len(home.preempted) == before


def test_a_step_is_measured_with_one_more_request():
    class PerRequest(Costs):
        def decode_step_s(self, requests, context_tokens):
            return requests / 10 + context_tokens / 1000

    slack = Slack(30.0)
    slack.prepare(Setup(costs=PerRequest()))
    call = Request(0, "a", 0, 0, (Segment("p", 40),), 40, 9, 0.0, first_token_by_s=5.0)
    slack.measure_step([])
    assert slack.step_s == pytest.approx(0.1)
    slack.measure_step([Running(call, 2, 42, 7), Running(call, 3, 58, 6)])
    assert slack.step_s == pytest.approx(0.3 + 0.1)
