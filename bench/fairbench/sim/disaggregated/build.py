"""The workers of a disaggregated cluster, built from an experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.core import Request
from fairbench.hardware.cluster_params import DISAGGREGATION, DisaggregationParams
from fairbench.hardware.engines import DEFAULT_ENGINE, ENGINES
from fairbench.schedulers.load_cap import NoCap
from fairbench.schedulers.params import make_params
from fairbench.sim.disaggregated.decode import DecodeWorker
from fairbench.sim.disaggregated.replica import (
    PrefillEngine,
    PrefillReplica,
    ReservesAtArrival,
    ReservesWhenComputed,
    Transfers,
)
from fairbench.sim.disaggregated.sglang_decode import SGLangDecode
from fairbench.sim.disaggregated.vllm_decode import PromptsOnly, VLLMDecode
from fairbench.sim.engine.contract import CONTRACTS, EngineContract, Replica, WorkerParts
from fairbench.sim.engine.sglang.contract import PrefillOnly
from fairbench.sim.engine.vllm.worker import VLLMPrefillOnly
from fairbench.sim.sequence import Sequence


class DecodeRoom(NoCap):
    """The load cap of a prefill engine: a request is admitted if a decode worker has room for it.

    The engine's copy of a request has no outputs; ``whole`` are the original requests.
    """

    def __init__(self, decodes: list[DecodeWorker]) -> None:
        super().__init__()
        self._decodes = decodes
        self.whole: dict[int, Sequence] = {}
        # neither ``leave`` nor ``finish`` has an effect, because decode workers count
        self.enter = self._enter

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


class Sides(NamedTuple):
    """The two kinds of workers of an engine, and the default time of the reservation."""

    prefill: Callable[[Any, WorkerParts], PrefillEngine]
    decode: Callable[[Any, WorkerParts, DisaggregationParams], DecodeWorker]
    replica: type[PrefillReplica]


SIDES: Mapping[str, Sides] = {
    DEFAULT_ENGINE: Sides(
        lambda contract, parts: contract.worker_as(PrefillOnly, parts),
        lambda contract, parts, params: SGLangDecode(
            parts, contract.limits, params.reserved_decode_tokens
        ),
        ReservesAtArrival,
    ),
    "vllm": Sides(
        lambda contract, parts: contract.worker_as(
            VLLMPrefillOnly, replace(parts, log=PromptsOnly(parts.log))
        ),
        lambda contract, parts, params: VLLMDecode(parts, contract.limits),
        ReservesWhenComputed,
    ),
}


def disaggregated(
    spec: ExperimentSpec, contract: EngineContract, prefills: list[WorkerParts]
) -> list[Replica]:
    """Return a cluster's prefill workers, from their parts, and then its decode workers."""
    params = make_params(DISAGGREGATION, DisaggregationParams, spec.settings)
    engine = spec.engine or DEFAULT_ENGINE
    sides, first = SIDES[engine], prefills[0]
    uncapped = {**spec.settings, f"{ENGINES[engine].part}.load_cap": None}
    prompts = CONTRACTS[engine](uncapped, first.profile)
    engines = [sides.prefill(prompts, parts) for parts in prefills]
    decodes = [
        sides.decode(contract, replace(first, index=index), params)
        for index in range(len(prefills), spec.dp)
    ]
    token_bytes = first.profile.pool.kv_bytes_per_token
    transfers = Transfers(first.clock, params, token_bytes, spec.dp)
    room = DecodeRoom(decodes) if params.reserve == "admission" else None
    replicas: list[Replica] = []
    for index, one in enumerate(engines):
        if room is None:
            replicas.append(sides.replica(index, one, decodes, transfers))
        else:
            one.cap = room
            replicas.append(ReservesAtAdmission(room, index, one, decodes, transfers))
    for decode in decodes:
        decode.on_release = partial(
            _released, engines, charges=params.charge_outputs, wakes=room is not None
        )
    return [*replicas, *decodes]


def _released(
    engines: list[PrefillEngine], sequence: Sequence, *, charges: bool, wakes: bool
) -> None:
    """Tell the prefill side that a decode worker has freed a request's memory."""
    if charges and sequence.produced > 1:
        scheduler = engines[sequence.worker].scheduler
        scheduler.on_tokens(sequence.request.client, sequence.produced - 1)
    if wakes:
        for engine in engines:
            engine.wake()
