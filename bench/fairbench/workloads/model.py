"""A workload whose parts fit together."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from fairbench.workloads.consistency import check_workload
from fairbench.workloads.shape import Workload


class WorkloadSpec(Workload):
    """A whole workload file. ``params`` are those of a well-behaved client.

    What another ``workload`` says is put in when the file is read. ``settings`` are the scheduler
    parameters that suit this workload (``"dlpm.quantum" = 10000``). ``latency`` is what its latency
    columns show: a whole program, or each request's first token. ``client_names`` name the first
    clients, maybe with their tenants (``org/team/user``); the rest are ``client-N``.
    ``client_weights`` are by name, 1 where none is given; a tenant's ends in /. ``client_owners``
    say whose a client is, where somebody has several of them and names do not say it: client ->
    name of the owner, a client's or not. ``targets`` are the latencies that every client was
    promised, ``classes`` groups of clients with their own laid over them. ``arrivals`` say when
    programs come, by default a Gamma process; ``machine`` what it is made for. Times are in
    seconds.
    """

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_workload(self)
        return self
