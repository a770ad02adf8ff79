"""Numbered invariants of preemption between two events, for a worker of any engine."""


class Preemptions:
    """A count of a worker's computed tokens, kept apart from the worker's own bookkeeping."""

    def __init__(self, worker) -> None:
        self.worker = worker
        self._seen = None  # number of the last counted iteration
        self._reached = {}  # sequence -> number of its tokens that were ever computed or cached
        self._fresh, self._again = {}, {}

    def check(self) -> None:
        """Check INV-19 to 21, then count."""
        self.check_host()
        self.check_everyone_is_somewhere_once()
        self.count()
        self.check_recomputed_is_counted()

    def check_host(self) -> None:
        """INV-19: the host holds the swapped KV of waiting requests, up to its capacity."""
        host, worker = self.worker.host, self.worker
        waiting = [worker.waiting.sequence_of(one) for one in worker.waiting.queue_order()]
        assert host.used == sum(sequence.host_tokens for sequence in waiting)
        assert 0 <= host.used <= host.capacity
        for sequence in waiting:
            assert sequence.host_tokens == 0 or sequence.host_tokens < sequence.total
        assert not any(sequence.host_tokens for sequence in worker._running())

    def check_everyone_is_somewhere_once(self) -> None:
        """INV-20: a request either waits or runs, and is in only one place."""
        everyone = self.worker.in_flight()
        assert len(everyone) == len(set(everyone))

    def count(self) -> None:
        """Count the tokens of the current iteration that were computed before."""
        prefills = getattr(self.worker, "_chunks", None) or getattr(self.worker, "_prefills", [])
        if prefills is self._seen or not prefills:
            return
        self._seen = prefills
        for sequence, cached, tokens, *_ in prefills:
            # A produced token counts as computed, although the last one has no KV yet.
            done = sequence.request.input_tokens + sequence.produced if sequence.produced else 0
            reached = max(done, self._reached.get(sequence, 0))
            fresh = max(cached + tokens - max(cached, reached), 0)
            self._fresh[sequence] = self._fresh.get(sequence, 0) + fresh
            self._again[sequence] = self._again.get(sequence, 0) + tokens - fresh
            self._reached[sequence] = max(reached, cached + tokens)

    def check_recomputed_is_counted(self) -> None:
        """INV-21: recomputed tokens equal the request's ``recompute_tokens``.

        Tokens that were computed for the first time are at most its ``extend_tokens``.
        """
        for sequence in [one for one in self._fresh if one.finish_ps >= 0]:
            assert sequence.recompute_tokens == self._again.pop(sequence)
            assert self._fresh.pop(sequence) <= sequence.extend_tokens


def watch_fairness(scheduler) -> list:
    """Check INV-28 at every preemption by this scheduler. Return the checked requests.

    INV-28: under ``preempt=fair``, the client that loses memory is at least as far ahead as every
    other running client. So a client below its share never loses memory to a client above it.
    """
    seen, on_retract = [], scheduler.on_retract

    def checked(request, view, now_s) -> None:
        ahead, others = scheduler.account.ahead, {one.request.client for one in view.running}
        assert all(ahead(request.client) >= ahead(other) for other in others)
        seen.append(request)
        on_retract(request, view, now_s)

    scheduler.on_retract = checked
    return seen


def watch_preemptions(clock, workers) -> None:
    """Check after every event of the clock."""
    counted, step = [Preemptions(worker) for worker in workers], clock.step

    def checked() -> None:
        step()
        for one in counted:
            one.check()

    clock.step = checked
