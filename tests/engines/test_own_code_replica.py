"""Test a replica's process in which the engine's own code decides, on a stand-in for the engine."""

import json
import socket

import pytest

from fairbench.errors import RunFailed
from fairbench_engines.replica.inside.replicas import ClockedReplica
from fairbench_engines.replica.inside.virtual_time import PS_PER_S, VirtualTime
from fairbench_engines.replica.process import Channel


class Worker:
    """A stand-in whose requests are [number, tokens produced, tokens to produce]."""

    def __init__(self, clock):
        self.requests, self.batch, self.times, self._clock = [], [], [], clock

    def submit(self, *request):
        self.requests.append(list(request))

    def turn(self, *, whole):
        self.times.append(self._clock.seconds())
        self.batch = list(self.requests)
        return {"decode": [len(self.batch), 0]}

    def complete(self):
        self.times.append(self._clock.seconds())
        for request in self.batch:
            request[1] += 1
        done = [one for one in self.batch if one[1] == one[2]]
        self.requests = [one for one in self.requests if one not in done]
        return {"finished": [(one[0], one[1]) for one in done]}

    def unfinished(self):
        return self.requests

    def batch_requests(self):
        return self.batch

    @staticmethod
    def number(request):
        return request[0]

    @staticmethod
    def produced_by(request):
        return request[1]


@pytest.fixture
def replica():
    clock = VirtualTime()
    return ClockedReplica(Worker(clock), clock, charges_pass=False)


def test_a_batch_that_has_not_ended_in_the_simulation_does_not_count(replica):
    replica.turn(0, [(0, 0, 2), (1, 0, 3)], True)
    replica.complete(PS_PER_S)
    assert dict(replica.produced(False)) == {0: 1, 1: 1}
    assert dict(replica.produced(True)) == {0: 0, 1: 0}
    replica.turn(PS_PER_S, [(2, 0, 9)], True)
    assert replica.complete(2 * PS_PER_S) == {"finished": [(0, 2)]}
    # Request 0 has ended in the engine, but not before the end of the batch.
    assert dict(replica.produced(True)) == {0: 1, 1: 1, 2: 0}
    assert dict(replica.produced(False)) == {1: 2, 2: 1}


def test_the_engine_reads_the_time_of_each_operation(replica):
    replica.turn(3 * PS_PER_S, [(0, 0, 2)], True)
    replica.complete(5 * PS_PER_S)
    replica.turn(5 * PS_PER_S, [], True)
    first, second, third = replica._worker.times
    assert (first, second) == (3.0, 5.0)
    assert third == pytest.approx(5.0)
    assert third > second


class Process:
    """A stand-in for the process of the engine's Python."""

    def read(self, line):
        return json.loads(line)

    def ended_of(self, replica):
        return RunFailed(f"replica {replica} has ended")


def test_a_message_may_be_sent_before_the_former_is_answered():
    ours, theirs = socket.socketpair()
    channel = Channel(ours, 3, Process())
    theirs.sendall(b"true\n")
    assert channel.receive() is True
    channel.send("complete", 7)
    channel.send("produced", True)
    assert channel.unanswered == 2
    messages = theirs.makefile("rb")
    assert [json.loads(messages.readline()) for _ in range(2)] == [
        ["complete", 7],
        ["produced", True],
    ]
    theirs.sendall(b'{"finished":[]}\n[]\n')
    assert channel.receive() == {"finished": []}
    assert channel.receive() == []
    assert channel.unanswered == 0
    messages.close()
    theirs.close()
    channel.send("turn", 0, [], True)
    with pytest.raises(RunFailed, match="replica 3 has ended"):
        channel.receive()
    assert channel.unanswered == 1
    channel.close()
