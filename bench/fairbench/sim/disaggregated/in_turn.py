"""Reservation in the order of the prefill queue, so that its scheduler decides who gets memory."""

from __future__ import annotations

from collections.abc import Iterable

from fairbench.core import Request
from fairbench.schedulers.load_cap import NoCap
from fairbench.sim.disaggregated.decode import DecodeWorker
from fairbench.sim.disaggregated.replica import PrefillEngine, PrefillReplica, Transfers
from fairbench.sim.sequence import Sequence


class DecodeRoom(NoCap):
    """The load cap of a prefill engine: a request is admitted if a decode worker has room for it.

    The engine's copy of a request has no outputs; ``whole`` are the requests as they came.
    """

    def __init__(self, decodes: list[DecodeWorker]) -> None:
        super().__init__()
        self._decodes = decodes
        self.whole: dict[int, Sequence] = {}
        self.enter = self._enter  # neither ``leave`` nor ``finish``: decode workers count

    def _open(self, request: Request) -> DecodeWorker | None:
        """Return the decode worker with the fewest requests of those with room."""
        whole = self.whole[request.request_id].request
        room = [one for one in self._decodes if one.may_take(whole, whole.input_tokens)]
        return min(room, key=lambda one: (one.assigned, one.index), default=None)

    def has_room(self, request: Request, without: Iterable[Request] = ()) -> bool:
        return self._open(request) is not None

    def _enter(self, request: Request) -> None:
        decode = self._open(request)
        assert decode is not None
        sequence = self.whole.pop(request.request_id)
        sequence.decode_worker = decode.index
        decode.assigned += 1
        decode.reserve(sequence)


class ReservesAtAdmission(PrefillReplica):
    """The prefill queue's order holds for the memory of decode workers, too."""

    def __init__(
        self,
        room: DecodeRoom,
        index: int,
        engine: PrefillEngine,
        decodes: list[DecodeWorker],
        transfers: Transfers,
    ) -> None:
        super().__init__(index, engine, decodes, transfers)
        self._room = room

    def _arrived(self, sequence: Sequence) -> None:
        self._room.whole[sequence.request.request_id] = sequence
        self._compute(sequence)

    def _refused(self, sequence: Sequence) -> None:
        del self._room.whole[sequence.request.request_id]
