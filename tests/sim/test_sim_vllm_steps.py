"""Test steps of the vLLM contract whose size a scheduler sets."""

import pytest

from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.sequence import FINISHED
from tests.sim.sim_helpers import US
from tests.sim.test_sim_vllm import VLLMHome


class Sizing(FCFS):
    sizes_steps = True

    def __init__(self, tokens):
        super().__init__(FCFS.Params())
        self.tokens = tokens

    def step_tokens(self, running, now_s):
        return self.tokens


@pytest.mark.parametrize(
    ("tokens", "chunks"),
    [
        (40, [10, 39, 39, 22]),  # one block belongs to the running request
        (10**6, [10, 100]),  # the engine's own limit is far away
        (0, [1] * 110),  # at least one token of a prompt
    ],
)
def test_a_prompt_is_cut_to_the_step_size_of_the_scheduler(tokens, chunks):
    home = VLLMHome(Sizing(tokens))
    home.send(10, 150)
    home.send(100, 2, at_ps=25_000 * US)
    home.run()
    assert [new for _, new, _ in home.steps()] == chunks
    assert all(one.status == FINISHED for one in home.sent)
