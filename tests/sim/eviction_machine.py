"""The part of the tests of eviction that does not depend on the layout of memory."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairbench.schedulers.eviction.policies import ClientEviction

picks = st.integers(0, 99)


class EvictionMachine(RuleBasedStateMachine):
    """Random steps, ends and retractions in a ``pool``, with records of the policy's choices."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.choices = []
        self.audited = (0, 0.0)  # broken assumptions and lost tokens before the last step
        policy = pool.cache.claims.policy
        if isinstance(policy, ClientEviction):
            chosen = policy.choose

            def choose(claimants):
                everyone = list(claimants)
                self.choices.append((everyone, chosen(everyone)))
                return self.choices[-1][1]

            policy.choose = choose

    @rule()
    def decode(self):
        self.pool.decode()

    @rule(pick=picks)
    def finish(self, pick):
        if self.pool.running:
            self.pool.finish(pick % len(self.pool.running))

    @rule(pick=picks)
    def retract(self, pick):
        if self.pool.running:
            self.pool.retract(pick % len(self.pool.running))

    @invariant()
    def clients_within_their_share_lose_nothing_in_a_step_that_keeps_the_assumption(self):
        audit = self.pool.cache.claims.audit
        beyond, lost = self.audited
        assert audit.beyond > beyond or audit.lost_tokens == lost
        self.audited = (audit.beyond, audit.lost_tokens)

    @invariant()
    def nobody_below_its_entitlement_is_chosen_while_another_is_above(self):
        entitled = getattr(self.pool.cache.claims.policy, "entitled", None)
        for everyone, victim in self.choices:
            above = [one.client for one in everyone if one.held + one.wanted > entitled(one.client)]
            assert victim in above or not above
        self.choices.clear()
