"""A workload whose parts fit together."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from fairbench.workloads.consistency import check_workload
from fairbench.workloads.shape import Workload


class WorkloadSpec(Workload):
    """A whole workload file. ``params`` are those of a well-behaved client.

    The values of another ``workload`` are copied when the file is read. ``settings`` are scheduler
    parameters that suit this workload (``"dlpm.quantum" = 10000``). ``latency`` selects what
    latency columns show: a whole program, or the first token of each request. ``client_names``
    name the first clients, optionally with tenants (``org/team/user``); the rest are ``client-N``.
    ``client_weights`` are weights by name, 1 by default; names of tenants end in /.
    ``client_owners`` map clients to the name of their owner, which may be a client or not.
    ``targets`` are the latencies promised to every client, and ``classes`` are groups of clients
    with targets of their own. ``arrivals`` is the arrival process, Gamma by default. ``machine``
    is the default GPU, model and engine. Times are in seconds.
    """

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_workload(self)
        return self
