"""ExFairS: a client's service and late answers change its priority number every minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fairbench.core import OUTPUT_PRICE, Request
from fairbench.schedulers.base import Read, WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy
from fairbench.schedulers.params import NotNegative, Positive, PositiveInt


class Place(NamedTuple):
    """A place in the queue: a client, and its priority number when its request arrived."""

    client: str
    number: int


@dataclass(slots=True)
class RoundTally:
    """A client's totals in the current round: answers, late answers, and service."""

    requests: int = 0
    late: int = 0
    service: int = 0


class ExFairS(FlowPolicy):
    """A policy in which requests of clients with low priority numbers overtake queued requests.

    The rules follow dadiaokua/ExFairS @9823370b (util/MathUtil.py, util/BaseUtil.py,
    config/Config.py). A round lasts 60 s. At the end of a round, each client with an answer gets
    the score 0.3 x (service / service of all clients) + 0.7 x (late answers / answers). The service
    of an answer is input + 2 x output, and an answer after more than 5 s is late. If the highest
    score exceeds the lowest score by d, the client with the highest score lowers its priority
    number by int(10 x min(d, 0.5)), and the client with the lowest score raises its number by as
    much. The numbers of the clients with the second highest and second lowest scores change
    likewise, and so do further pairs whose scores differ by more than 0.1. All priority numbers
    start at 0 and are kept between rounds.

    A new request with a negative priority number p overtakes n x p / p_min queued requests (rounded
    down, at most 100). The number n counts queued requests with priority numbers above p, and p_min
    is the lowest priority number of a queued or new request. A request with a priority number of 0
    or more goes to the end of the queue. The gateway decides the order of a client's requests.

    **Signs.** The code of ExFairS contradicts itself: vLLM serves a lower number earlier, but
    strategies/priority.py lets positive numbers overtake. In fairbench, requests with lower
    priority numbers are served earlier, as in ExFairS's queue (RequestQueueManager.py). The number
    of overtaken requests follows strategies/priority.py, with the opposite sign of priority
    numbers. ExFairS's queue sorts by ranks of priority numbers, and delays requests with positive
    numbers by up to 10 s; fairbench uses the numbers, without delays. Other commits of ExFairS
    divide service by the largest service of any client, and let requests overtake only within 30 s.

    **Rounds.** ExFairS cancels unfinished requests at the end of a round. fairbench lets unfinished
    requests continue, and a request counts in the round in which its answer ends.

    **Weaknesses.** If all answers are late, scores differ only by service, and the client with the
    most service gets the lowest priority number. A client without answers in a round has no score
    and keeps its priority number, so clients with lower numbers can starve it.
    """

    name = "exfairs"

    @dataclass(frozen=True)
    class Params:
        """The constants of ExFairS; times are in seconds.

        ``late_weight`` is the paper's alpha, the weight of late answers in a score.
        """

        constants: ClassVar[tuple[str, ...]] = (
            "round_s",
            "late_s",
            "service_weight",
            "late_weight",
            "ignored_difference",
            "largest_difference",
            "most_places",
        )

        round_s: Positive = 60.0
        late_s: Positive = 5.0
        service_weight: NotNegative = 0.3
        late_weight: NotNegative = 0.7
        ignored_difference: NotNegative = 0.1
        largest_difference: NotNegative = 0.5
        most_places: PositiveInt = 100

    def __init__(self, params: Params) -> None:
        self.params = params
        self._numbers: Counter[str] = Counter()  # each client's current priority number
        # one entry for each queued request, in the order of the queue
        self._places: list[Place] = []
        self._queued: set[Request] = set()
        # totals of each client's answers in the current round
        self._answered: dict[str, RoundTally] = {}
        self._round_ends_s: float | None = None

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._end_round(now_s)
        place = Place(request.client, self._numbers[request.client])
        self._places.insert(len(self._places) - self._overtaken(place.number), place)
        self._queued.add(request)

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        return self._places[0].client

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._queued.remove(request)
        del self._places[0]

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        self._end_round(now_s)
        answered = self._answered.setdefault(request.client, RoundTally())
        answered.requests += 1
        answered.late += now_s - request.arrival_s > self.params.late_s
        answered.service += read.input_tokens + OUTPUT_PRICE * output_tokens

    def on_finish(self, request: Request) -> None:
        # If a queued request is withdrawn, the queue loses the last position of the request's
        # client.
        if request in self._queued:
            self._queued.remove(request)
            mine = [at for at, place in enumerate(self._places) if place.client == request.client]
            del self._places[mine[-1]]

    def forget(self, client: str) -> None:
        self._numbers.pop(client, None)

    def balances(self) -> Mapping[str, float]:
        """Return each client's priority number; lower numbers mean earlier service."""
        return {client: float(number) for client, number in self._numbers.items()}

    def _overtaken(self, number: int) -> int:
        """Return how many queued requests a request with priority number ``number`` overtakes."""
        if number >= 0:
            return 0
        higher = sum(place.number > number for place in self._places)
        lowest = min((place.number for place in self._places), default=number)
        return min(higher * number // min(lowest, number), self.params.most_places)

    def _end_round(self, now_s: float) -> None:
        """Change the priority numbers at the end of a round; the first arrival begins round 1."""
        length_s = self.params.round_s
        if self._round_ends_s is None:
            self._round_ends_s = now_s + length_s
        if now_s >= self._round_ends_s:
            self._exchange()
            self._answered.clear()
            self._round_ends_s += length_s * (1 + (now_s - self._round_ends_s) // length_s)

    def _exchange(self) -> None:
        scores = self._scores()
        ascending = sorted(scores, key=scores.__getitem__)
        for low, high in zip(ascending[: len(ascending) // 2], reversed(ascending), strict=False):
            difference = scores[high] - scores[low]
            if difference <= self.params.ignored_difference:
                return
            exchanged = int(10 * min(difference, self.params.largest_difference))
            self._numbers[high] -= exchanged
            self._numbers[low] += exchanged

    def _scores(self) -> dict[str, float]:
        total = sum(answered.service for answered in self._answered.values())
        if not total:
            return {}
        return {
            client: self.params.service_weight * answered.service / total
            + self.params.late_weight * answered.late / answered.requests
            for client, answered in self._answered.items()
        }
