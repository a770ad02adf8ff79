"""Deficit credits of DLPM, which limit the service that a client uses in a turn.

The class ``Turns`` applies the credits in an admission pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fairbench.schedulers.accounts.account import Account, UnbookedTokens, rounds_to_credit
from fairbench.schedulers.views import Scan, WaitingView
from fairbench.tenants import ROOT, Tenants

if TYPE_CHECKING:
    from fairbench.schedulers.peers import CreditChange, SharedCredit

# The ranks of a server report charges to each other under this worker number.
HERE = 0
# A debt of fewer weighted tokens than ``ROUNDING`` is a rounding error.
ROUNDING = 1e-6
Rejoin = Literal["keep", "min0", "paper_zero"]
"""The rule by which idle clients leave the list of clients with credits.

Under ``keep``, an idle client leaves the client list once its credit is positive, so no debt is
erased. Under ``min0``, a client leaves the client list as soon as it is idle; its debt is kept, but
positive credit is lost. Under ``paper_zero``, a client leaves the client list as soon as it is
idle, and loses its debt or credit; no fairness theorem holds.
"""


class Credits(Account):
    """The credits q_i and the client list l of [DLPM] Alg. 1, refilled in quanta.

    A client joins the list with its first request (Alg. 1 line 12), and the rule ``rejoin`` decides
    when an idle client leaves. ``quantum`` is the paper's Q^u: the weighted tokens that a client of
    weight 1 receives at a refill.

    If ``welcomes`` is set, a client joins the client list with a quantum of credit. A client that
    left the list after the last refill gets back the credit with which it left. Joining the client
    list adds at most one quantum between two refills, so [DLPM] Theorems 4.1 and 4.2 still hold.

    With ``tenants``, a client has positive credit only if all its tenants have positive credit. All
    children of a tenant are refilled at the same time.
    """

    def __init__(
        self,
        quantum: float,
        output_weight: int,
        rejoin: Rejoin = "keep",
        tenants: Tenants | None = None,
        *,
        welcomes: bool = False,
    ) -> None:
        super().__init__(tenants)
        self.quantum = quantum
        self.rejoin = rejoin
        self.welcomes = welcomes
        # ``_left`` maps each tenant to the credits of children that left after the last refill.
        self._left: dict[str, dict[str, float]] = {}
        if rejoin == "paper_zero":
            self.no_bound = "bounds no service difference in this form"
        # ``of`` holds the credits q_i of [DLPM]; its keys are the client list l.
        self.of: dict[str, float] = {}
        # ``_debts`` maps clients that have left the client list to their debts.
        self._debts: dict[str, float] = {}
        # ``requests`` maps each client or tenant to its number of waiting and running requests.
        self.requests: Counter[str] = Counter()
        self.decoded = UnbookedTokens(self.of, -output_weight)
        # In a server with several ranks, ``shared`` holds the charges of all ranks.
        self.shared: SharedCredit | None = None
        # ``loans`` maps this rank's clients to temporary credits. All loans end once a client of
        # this rank has credit without a loan, or no client at another rank has credit.
        self.loans: dict[str, float] = {}
        # ``_granted`` maps each node to the number of quanta that it received. The number of a new
        # node starts at its tenant's ``_most`` minus 1.
        self._granted: dict[str, float] = {}
        # ``_most`` maps each tenant to the number of quanta of the child that was granted most.
        self._most: dict[str, float] = {}

    def begin_request(self, client: str) -> None:
        """Count an arrived request, and add its client to the client list (Alg. 1 line 12)."""
        for node in self.nodes(client):
            self.requests[node] += 1
            if node not in self.of:
                self.add_to_list(node)
                if self.welcomes:
                    self._welcome(node)

    def _welcome(self, node: str) -> None:
        """Grant a joining client or tenant a quantum, or restore its credit.

        The credit is restored if the client or tenant left after the last refill.
        """
        left = self._left.get(self.tenant_of(node), {}).pop(node, None)
        self._granted[node] += 1
        credit = self.quantum_of(node) if left is None else left
        self.of[node] += credit
        if self.shared is not None:
            self.shared.grant(node, credit / self.quantum_of(node))

    def end_request(self, client: str) -> None:
        """Record the end of a request; a client that becomes idle may leave the client list."""
        for node in self.nodes(client):
            self.requests[node] -= 1
            if not self.requests[node]:
                self.drop_if_idle(node)
                del self.requests[node]

    def forget(self, client: str) -> None:
        """Delete the credit and the debt of a client that has no requests."""
        # In a tree of tenants, ``requests`` also counts the requests of clients below this client.
        if client not in self.requests:
            self.decoded.forget(client)
            self.of.pop(client, None)
            self._debts.pop(client, None)
            self._granted.pop(client, None)
            for left in self._left.values():
                left.pop(client, None)

    def charge(self, client: str, amount: float) -> None:
        nodes = self.nodes(client)
        if nodes[-1] not in self.of:
            # A decode worker may report outputs of a client that has no request left at this
            # prefill worker.
            self.charge_absent(client, amount)
            return
        for node in nodes:
            self.of[node] -= amount
            if self.shared is not None:
                self.shared.spend(node, HERE, amount)

    def charge_absent(self, client: str, amount: float) -> None:
        for node in self.nodes(client):
            self.add_to_list(node)
        self.charge(client, amount)
        for node in self.nodes(client):
            self.drop_if_idle(node)

    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        if self.books_late and not (self.setup.weights or self.shares):
            self.decoded.count_steps(steps, running)
        else:
            # Charges that are fractions are added immediately, because the order of additions
            # changes their sum.
            self.charge_each(each, steps, running)

    def refund(self, client: str, amount: float) -> None:
        """Refund a charge made in advance, up to a credit of one quantum."""
        for node in self.nodes(client):
            credit = self.of[node]
            self.of[node] = max(credit, min(credit + amount, self.quantum_of(node)))
            if self.shared is not None:
                self.shared.spend(node, HERE, credit - self.of[node])

    def in_credit(self, client: str) -> bool:
        return self.of[client] > 0 if not self.in_tree else self._all_in_credit(client)

    def _all_in_credit(self, client: str) -> bool:
        return all(self.of[node] > 0 for node in self.nodes(client))

    def members(self, tenant: str) -> dict[str, float]:
        """Return the credits of a tenant's children, including charges for all decoded tokens."""
        members = self.balances()
        if not self.in_tree:
            return members
        return {node: left for node, left in members.items() if self.tenant_of(node) == tenant}

    def refill(self, tenant: str, clients: Collection[str]) -> bool:
        """Grant quanta until a waiting child has positive credit (Alg. 1 lines 6-7).

        Return False if no client in ``clients`` belongs to the tenant. Several quanta may be
        granted at once. Clients that wait at other data-parallel ranks also count as waiting. If a
        client that waits at another rank has positive credit, the clients of this rank get loans,
        which are credits that only this rank knows.
        """
        waiting = self.siblings(tenant, clients)
        if not waiting:
            return False
        self._left.pop(tenant, None)
        lends = self._lends()
        everyone = waiting
        if self.elsewhere and not lends:
            everyone = {*waiting, *self._waiting_elsewhere()}
        rounds = min(rounds_to_credit(self.of[c], self.quantum_of(c)) for c in everyone)
        for client in list(waiting if lends else self.members(tenant)):
            if (credit := self.of[client]) <= 0:
                quantum = self.quantum_of(client)
                granted = min(rounds, rounds_to_credit(credit, quantum))
                self.of[client] += granted * quantum
                if lends:
                    self.loans[client] = self.loans.get(client, 0) + granted * quantum
                elif self.shared is not None:
                    self.shared.grant(client, granted)
                self._granted[client] = self._granted.get(client, 0) + granted
                self._most[tenant] = max(self._most.get(tenant, 0), self._granted[client])
                self.drop_if_idle(client)
        return True

    def _waiting_elsewhere(self) -> Collection[str]:
        return [client for client, waits in self.elsewhere.items() if waits]

    def _lends(self) -> bool:
        """Return whether a client that waits at another rank has credit, not counting loans."""
        return any(self._without_loan(client) > 0 for client in self._waiting_elsewhere())

    def _without_loan(self, client: str) -> float:
        return self.of[client] - self.loans.get(client, 0)

    def call_in(self, waiting: Collection[str]) -> None:
        """Cancel all loans of credit unless only clients at other ranks have their own credit."""
        if not self.loans:
            return
        if not self._lends() or any(self._without_loan(client) > 0 for client in waiting):
            for client in list(self.loans):
                self.of[client] -= self.loans.pop(client)

    def apply_remote(self, client: str, change: CreditChange) -> None:
        """Apply a change of the client's credit that another rank has reported."""
        self.add_to_list(client)
        quanta = change.rounds * self.quantum_of(client)
        self.of[client] += quanta - sum(change.charged.values()) - change.waived
        self.drop_if_idle(client)

    def look_elsewhere(self, elsewhere: Mapping[str, bool]) -> None:
        """Record the clients with requests at other ranks, and update the client list."""
        gone = self.elsewhere.keys() - elsewhere.keys()
        self.elsewhere = elsewhere
        for client in elsewhere:
            self.add_to_list(client)
        for client in sorted(gone & self.of.keys()):
            # If another rank has deleted a client's credit, rounding may leave it just below 0.
            self.drop_if_idle(client, above=-ROUNDING)

    def quantum_of(self, client: str) -> float:
        """Return the client's quantum, in proportion to its weight, in the unit of the charges."""
        # The quantum is not rounded, because clients' service would otherwise drift apart without
        # limit.
        quantum = self.quantum * self.setup.weight(client)
        return quantum if self.unit_of_time is None else quantum * self.unit_of_time()

    def add_to_list(self, client: str) -> None:
        if client not in self.of:
            self.of[client] = self._debts.pop(client, 0)
            # A new client starts one quantum behind the sibling that has received the most quanta.
            self._granted[client] = self._most.get(self.tenant_of(client), 0) - 1

    def drop_if_idle(self, client: str, above: float = 0.0) -> None:
        """Remove an idle client from the client list if the rule ``rejoin`` allows.

        Under the rule ``keep``, a client leaves the client list only if its credit is higher than
        ``above``.
        """
        if self.requests[client] or client in self.elsewhere:
            return
        self.decoded.book((client,))
        self.of[client] -= self.loans.pop(client, 0)
        if self.rejoin == "keep" and self.of[client] <= above:
            return
        credit = self.of.pop(client)
        self._granted.pop(client, None)
        if credit > 0 and self.shared is not None:
            self.shared.waive(client, credit)
        if self.rejoin == "min0" and credit < 0:
            self._debts[client] = credit
        elif self.welcomes and credit >= 0:
            self._left.setdefault(self.tenant_of(client), {})[client] = credit

    def lead(self, node: str) -> float:
        """Return how many quanta a node has spent, as if it had joined at the start of the run."""
        self.decoded.book((node,))
        return self._granted.get(node, 0) - self.of.get(node, 0.0) / self.quantum_of(node)

    def balances(self) -> dict[str, float]:
        self.decoded.book_all()
        return self.of


MayRefill = Callable[[WaitingView, str], bool]
"""A function that returns whether a tenant's clients may get quanta if none of them has credit."""


@dataclass
class Turns:
    """The procedure CHECKREFILL of [DLPM] Alg. 1 (lines 3-8) for one admission pass.

    If no client has credit and ``may_refill`` forbids quanta, ``over`` becomes true and the
    admission pass ends. With ``stops``, the pass also ends at the first request that does not fit
    into memory.
    """

    bounded = True
    credits: Credits
    view: WaitingView
    may_refill: MayRefill
    stops: bool = True
    over: bool = False
    _refilled: bool = False
    # ``_known`` maps each tenant to true if any waiting client under the tenant has credit left.
    _known: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.credits.book_decoded(self.view.clients())
        self.credits.call_in(self.view.clients())

    def check_refill(self, client: str, scan: Scan) -> None:
        """Grant quanta at each level where the client is in debt and no sibling has credit.

        The ``scan`` skips a client in debt while a sibling has positive credit.
        """
        credits = self.credits
        for node in credits.nodes(client):
            if credits.of[node] > 0:
                continue
            tenant = credits.tenant_of(node)
            if (known := self._known.get(tenant)) is None:
                known = self._known[tenant] = self.someone_in_credit(tenant)
            # [DLPM] Alg. 1 line 5: skip a client without credit while a sibling has credit left
            if known:
                scan.skip(client)
                # Without tenants, all clients are siblings, so the scan skips all clients without
                # credit.
                if not credits.in_tree:
                    scan.skip_debtors(credits.of)
                return
            if not self.may_refill(self.view, tenant):
                self.over = tenant == ROOT
                scan.skip(client)
                return
            # [DLPM] Alg. 1 lines 6-7: no sibling has credit left
            self._refilled = self.refill(tenant) or self._refilled
            self._known.clear()
            if credits.of[node] <= 0:
                return

    def take_refilled(self) -> bool:
        """Return whether a quantum was granted since the last call of ``take_refilled``."""
        refilled, self._refilled = self._refilled, False
        return refilled

    def waiting_clients(self) -> Collection[str]:
        return self.view.clients()

    def someone_in_credit(self, tenant: str = ROOT) -> bool:
        """Return whether a waiting client below the tenant has credit (Alg. 1 lines 4-5)."""
        of, siblings = self.credits.of, self.credits.siblings(tenant, self.waiting_clients())
        return any(of[client] > 0 for client in siblings)

    def refill(self, tenant: str = ROOT) -> bool:
        """Grant rounds of quanta until a waiting client has credit.

        Return False if no client waits.
        """
        return self.credits.refill(tenant, self.waiting_clients())

    def ends_without_room(self, client: str) -> bool:
        """Return whether the admission pass ends because a request did not fit."""
        return self.stops

    def end_turn(self, client: str, scan: Scan) -> None:
        """Let ``scan`` offer all clients' requests again if no waiting client has credit left."""
        self._known.clear()
        credits, waits = self.credits, client in self.waiting_clients()
        for node in credits.nodes(client):
            # Fast path: the client itself still waits and has credit.
            if waits and credits.of[node] > 0:
                continue
            if not self.someone_in_credit(credits.tenant_of(node)):
                scan.unskip_all()
                return


@dataclass
class RelaxedTurns(Turns):
    """Turns in which a refill of credits does not wait for clients whose requests do not fit.

    [DLPM] Theorem 4.1 does not hold for ``RelaxedTurns``.
    """

    bounded = False
    _stuck: set[str] = field(default_factory=set)

    def waiting_clients(self) -> Collection[str]:
        return [client for client in self.view.clients() if client not in self._stuck]

    def ends_without_room(self, client: str) -> bool:
        if not self.stops:
            self._stuck.add(client)
        return self.stops
