"""Deficit Longest Prefix Match ([DLPM] Alg. 1), with its gaps closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from fairbench.core import NoBound, Request, ServiceBound, ServiceWeights
from fairbench.errors import UsageError
from fairbench.schedulers.base import LocalScheduler, Read, Scan, Selection, Setup, WaitingView
from fairbench.schedulers.decoded import Decoded
from fairbench.schedulers.gpu_charges import GPU_TIME, GPUCharges, gpu_charges
from fairbench.schedulers.quanta import rounds_to_credit
from fairbench.schedulers.sharing import SharedCharges, Sharing
from fairbench.tenants import ROOT, Tenants, parent_of


class DLPM(LocalScheduler):
    """LPM order, but only clients in credit; when no waiting client is, all get a quantum.

    Where Algorithm 1 is silent or never ends: a full pass without progress ends the selection
    (line 17), refills that leave everybody in debt are summed in closed form (line 7), and a
    client leaves the list (lines 4-7, 12) only when it is idle and in credit, so that going away
    neither erases a debt nor saves up credit.
    """

    name = "dlpm"
    cache_aware = True
    refunds_tokens = True

    @dataclass(frozen=True)
    class Params:
        """``quantum`` is Q^u in service units (tokens; an output token counts ``output_weight``).

        It is that of a client of weight 1; one of weight 2 gets twice as much.
        ``no_room``: ``stop`` ends the pass as SGLang does, ``skip`` tries the next request as
        Algorithm 1 reads. ``refill``: ``relaxed`` does not let a client whose request did not fit
        hold up the refill (only with ``skip``; it breaks Theorem 4.1). ``rejoin``: ``keep`` as
        above; ``min0`` lets every idle client go and keeps its debt frozen; ``paper_zero`` resets
        to 0 as the proof of Theorem A.2 does, which erases debt. ``charge_recompute``: charge the
        second prefill of a retracted request too. ``sharing``: who pays for a prefix that clients
        share, as in ``SharedCharges``, by default who computes it; a charge or refund may reach a
        client that is away. ``charge``: ``gpu-time`` is what iterations take, as in ``GPUCharges``,
        in place of tokens; a quantum is then the time of so many computed tokens. ``tenants``:
        ``tree`` keeps credits at every level of ``org/team/user`` and grants quanta level by level.
        """

        quantum: Annotated[int, Gt(0)] = 10_000
        refill: Literal["strict", "relaxed"] = "strict"
        no_room: Literal["stop", "skip"] = "stop"
        rejoin: Literal["keep", "min0", "paper_zero"] = "keep"
        charge_recompute: bool = False
        sharing: Sharing | None = None
        charge: Literal["gpu-time"] | None = None
        tenants: Tenants | None = None
        extend_weight: Annotated[int, Gt(0)] = 1
        output_weight: Annotated[int, Gt(0)] = 2

    def __init__(self, params: Params) -> None:
        self.params = params
        self.quantum = params.quantum  # Q^u, of a client of weight 1
        self._credit: dict[str, float] = {}  # q_i; its keys are the client list l
        self._frozen: dict[str, float] = {}  # debts of clients that left, under rejoin=min0
        self._outstanding: Counter[str] = Counter()
        self._shared = None if params.sharing is None else SharedCharges(params.sharing)
        self.times_steps = self.times_steps or params.charge == GPU_TIME
        self.wants_costs = self.wants_costs or self.times_steps
        self._time: GPUCharges | None = None
        self._tree = params.tenants is not None
        self._decoded = Decoded(self._credit, -params.output_weight)

    @property
    def credit(self) -> dict[str, float]:
        """The credits of the clients that are on the list."""
        self._decoded.settle_all()
        return self._credit

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        if self.times_steps:
            if self._shared is not None:
                raise UsageError(f"{self.name}.charge = {GPU_TIME!r}: not with sharing")
            self._time = gpu_charges(self.name, setup)

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        for node in self._nodes(request.client) if self._tree else (request.client,):
            self._outstanding[node] += 1
            if node not in self._credit:
                self._join(node)

    def _nodes(self, client: str) -> tuple[str, ...]:
        """Whose credit a client needs, and spends: its tenants' and its own."""
        return self.setup.lineage(client) if self._tree else (client,)

    def _join(self, node: str) -> None:
        if node not in self._credit:
            self._credit[node] = self._frozen.pop(node, 0)

    def _charge(self, client: str, cost: float) -> None:
        if not self._tree:
            self._credit[client] -= cost
            return
        for node in self.setup.lineage(client):
            self._credit[node] -= cost

    def on_prompt_time(self, request: Request, gpu_ps: int, complete: bool) -> None:
        if self._time is not None:
            self._charge(request.client, self._time.computed(request, gpu_ps, complete))

    def on_gpu_time(self, client: str, gpu_ps: int) -> None:
        self._charge(client, gpu_ps)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._decoded.changed.add(request.client)
        self._give_back(request)

    def _give_back(self, request: Request) -> None:
        """Of GPU time that was charged ahead."""
        if self._time is not None:
            self._charge(request.client, self._time.over(request))

    def on_finish(self, request: Request) -> None:
        self._decoded.changed.add(request.client)
        if self._time is not None:
            self._give_back(request)
        for node in self._nodes(request.client) if self._tree else (request.client,):
            self._outstanding[node] -= 1
            if not self._outstanding[node]:
                self._let_go(node)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        if self._time is not None:
            self._charge(request.client, self._time.admitted(request, extend_tokens))
            return
        if recompute and not self.params.charge_recompute:
            return
        if self._shared is None:
            cost = self.params.extend_weight * extend_tokens
            if self._tree:
                self._charge(request.client, cost)
            else:
                self._credit[request.client] -= cost
            return
        for client, tokens in self._shared.charges(request, extend_tokens).items():
            for node in self._nodes(client):
                self._join(node)
                self._credit[node] -= self.params.extend_weight * tokens
                self._let_go(node)

    def on_read(self, request: Request, read: Read) -> None:
        if self._shared is None:  # else others may have paid for it
            more = read.input_tokens - read.cached_tokens - request.input_tokens
            self._charge(request.client, self.params.extend_weight * more)

    def on_tokens(self, client: str, tokens: int) -> None:
        if self._time is not None:
            return
        self._decoded.changed.add(client)
        if tokens < 0:
            self._refund(client, self.params.output_weight * -tokens)
        else:
            self._charge(client, self.params.output_weight * tokens)

    def _refund(self, client: str, charged: float) -> None:
        """Quanta granted since must not lift a credit above what it can be."""
        for node in self._nodes(client):
            credit = self._credit[node]
            self._credit[node] = max(credit, min(credit + charged, self._quantum(node)))

    def on_steps(self, steps: int, running: Mapping[str, int]) -> None:
        apart = self._time is not None or bool(self._tree)
        if apart or type(self).on_tokens is not DLPM.on_tokens:
            super().on_steps(steps, running)
            return
        if self.setup.weights or self._shared is not None:  # fractions: sums depend on the order
            credit, each = self._credit, self.params.output_weight * steps
            for client, count in running.items():
                credit[client] -= each * count
        else:
            self._decoded.on_steps(steps, running)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._decoded.settle(view.clients())
        blocked: set[str] = set()  # clients whose request did not fit, under refill=relaxed
        known: dict[str, bool] = {}  # of each tenant, whether someone in it who waits is in credit
        progressed, refresh = True, True
        while progressed and len(view):
            progressed = False
            scan = self._scan(view, now_s, refresh)
            refresh = False
            for request in scan:
                client = request.client
                for node in self._nodes(client) if self._tree else (client,):
                    if self._credit[node] > 0:
                        continue
                    tenant = parent_of(node) if self._tree else ROOT
                    if tenant not in known:
                        known[tenant] = self._someone_in_credit(view, blocked, tenant)
                    if known[tenant]:
                        scan.skip(client)
                        if not self._tree:  # nor need the others in debt be asked one by one
                            scan.skip_debtors(self._credit)
                        break
                    if not self._may_refill(view, tenant):
                        if tenant == ROOT:
                            return
                        scan.skip(client)
                        break
                    progressed = self._refill(view, blocked, tenant) or progressed
                    known.clear()
                    if self._credit[node] <= 0:
                        break
                else:
                    if known:
                        known.clear()
                    if (yield request):
                        progressed = True
                    elif self.params.no_room == "stop":
                        return
                    elif self.params.refill == "relaxed":
                        blocked.add(client)
                    if not self._shares_stand(client, view, blocked):
                        scan.unskip_all()

    def _scan(self, view: WaitingView, now_s: float, refresh: bool) -> Scan:
        """The order among clients in credit (line 17)."""
        return view.match_order(refresh=refresh)

    def _someone_in_credit(self, view: WaitingView, blocked: set[str], tenant: str = ROOT) -> bool:
        """Whether someone who waits is in credit, of the clients of a tenant or tenants in it."""
        if self._tree:
            return any(self._credit[node] > 0 for node in self._siblings(view, blocked, tenant))
        return any(self._credit[c] > 0 and c not in blocked for c in view.clients())

    def _in_credit(self, client: str) -> bool:
        return all(self._credit[node] > 0 for node in self._nodes(client))

    def _siblings(self, view: WaitingView, blocked: set[str], tenant: str) -> Collection[str]:
        clients = [c for c in view.clients() if c not in blocked]
        return self.setup.children_of(tenant, clients) if self._tree else clients

    def _shares_stand(self, client: str, view: WaitingView, blocked: set[str]) -> bool:
        """Whether, now that it was this client's turn, whoever was passed over stays so."""
        if not self._tree:
            # Mostly it is the client itself, who has more requests and credit left.
            itself = self._credit[client] > 0 and client in view.clients() and client not in blocked
            return itself or self._someone_in_credit(view, blocked)
        return all(
            self._someone_in_credit(view, blocked, parent_of(node))
            for node in self.setup.lineage(client)
        )

    def _may_refill(self, view: WaitingView, tenant: str = ROOT) -> bool:
        """Whether quanta are granted now that no one who waits is in credit, of a tenant's."""
        return True

    def _refill(self, view: WaitingView, blocked: set[str], tenant: str = ROOT) -> bool:
        """Repeat lines 6-7 until someone who waits is in credit, in closed form."""
        waiting = self._siblings(view, blocked, tenant)
        if not waiting:
            return False
        self._decoded.settle_all()
        rounds = min(rounds_to_credit(self._credit[c], self._quantum(c)) for c in waiting)
        for node, credit in list(self._credit.items()):
            if credit <= 0 and not (self._tree and parent_of(node) != tenant):
                quantum = self._quantum(node)
                self._credit[node] += min(rounds, rounds_to_credit(credit, quantum)) * quantum
                self._let_go(node)
        return True

    def _quantum(self, node: str) -> float:
        # Not rounded: quanta out of proportion would let clients drift apart without limit.
        quantum = self.quantum * self.setup.weight(node)
        return quantum if self._time is None else quantum * self._time.token_ps()

    def _let_go(self, node: str) -> None:
        """Take an idle client off the list, by the rule of ``rejoin``."""
        if self._outstanding[node]:
            return
        self._decoded.settle((node,))
        credit = self._credit[node]
        if self.params.rejoin == "keep" and credit <= 0:
            return
        del self._credit[node]
        if self.params.rejoin == "min0" and credit < 0:
            self._frozen[node] = credit

    def balances(self) -> Mapping[str, float]:
        return self.credit

    def service_bound(self) -> ServiceBound | NoBound:
        params = self.params
        if self.times_steps:
            return NoBound(f"{self.name} charges GPU time, which service does not count")
        if self._shared is not None:
            return NoBound(f"{self.name} charges by sharing, which is not the service of a client")
        if self._tree:
            return NoBound(f"{self.name} bounds the difference of siblings among its tenants")
        if params.refill == "relaxed" or params.rejoin == "paper_zero" or params.charge_recompute:
            return NoBound(f"{self.name} bounds no service difference in this form")
        weights = ServiceWeights(params.extend_weight, params.output_weight)
        return ServiceBound("actual", self.quantum, "DLPM Theorem 4.1", weights)
