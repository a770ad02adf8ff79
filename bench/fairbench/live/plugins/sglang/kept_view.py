"""SGLang's waiting queue as a cache-aware scheduler sees it, where its prefix tree is watched."""

from __future__ import annotations

from fairbench.core import Request
from fairbench.live.plugins.engine_queue import EngineQueue
from fairbench.live.plugins.sglang.kept_tree import KeptTree, ids_of, namespace_of
from fairbench.live.plugins.sglang.live_view import Req
from fairbench.live.plugins.sglang.match_order import MatchOrder
from fairbench.schedulers.views import RunningView


class KeptView(EngineQueue):
    """A LiveView that has SGLang match only requests whose match may have changed."""

    def __init__(self, tree: KeptTree, running: RunningView, order: MatchOrder) -> None:
        super().__init__(tree, running, lambda request: order.match(self._reqs[request]))
        self._order = order
        self._reqs: dict[Request, Req] = {}
        self._left: list[Request] = []
        tree.req_of = self.req_of

    def pass_unmatched(self) -> None:
        self._order.unsorted(self._head)

    def _head(self, count: int) -> list[Req]:
        return [self._reqs[request] for request in self.head(count)]

    def track(self, request: Request, req: Req) -> None:
        """Append an arrival or a retracted request, and what it is to SGLang."""
        self._reqs[request] = req
        ids, apart = ids_of(req), namespace_of(req)
        most = req._compute_max_prefix_len(len(ids))
        self.wait(request, ids, most=most, apart=None if apart == (None, None) else apart)

    def leave(self, request: Request) -> None:
        """Take out what was admitted or aborted."""
        self.admit(request)
        self._left.append(request)

    def end_pass(self) -> None:
        super().end_pass()
        for request in self._left:
            del self._reqs[request]
        self._left.clear()

    def req_of(self, request: Request) -> Req:
        """Return SGLang's object of a request that has not left before this pass."""
        return self._reqs[request]
