"""The queue that vLLM's scheduler gets in the place of its own: its head is ours to choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fairbench.live.plugins.vllm.home import Home, Theirs


class SchedulerQueue:
    """A vLLM ``RequestQueue``. ``is_full()`` says that vLLM would admit nobody, whoever it is."""

    def __init__(self, home: Home, now_s: Callable[[], float], is_full: Callable[[], bool]) -> None:
        self._home = home
        self._now_s = now_s
        self._is_full = is_full
        self._in_pass = False

    def begin_pass(self) -> None:
        """Begin a step."""
        self._in_pass, self._home.now_s = True, self._now_s()

    def end_pass(self) -> None:
        """End the pass of a step. A second call has no effect."""
        if self._in_pass:
            self._in_pass = False
            self._home.end_pass()

    def __bool__(self) -> bool:
        """Return whether the scheduling pass has a candidate. vLLM asks before each attempt."""
        if not self._in_pass or self._is_full():
            return len(self) > 0
        return self._home.head() is not None

    def __len__(self) -> int:
        return len(self._home.view)

    def __iter__(self) -> Iterator[Theirs]:
        return iter(self._home.waiting())

    def add_request(self, request: Theirs) -> None:
        """Append."""
        self._home.arrived(request, self._now_s())

    def prepend_request(self, request: Theirs) -> None:
        """Take back a preempted request."""
        self._home.preempted(request, self._now_s())

    def prepend_requests(self, requests: Iterable[Theirs]) -> None:
        """Take back skipped requests, the last one first."""
        self._home.end_pass()
        for request in requests:
            self._home.passed_over(request)

    def peek_request(self) -> Theirs:
        """Return the head. Precondition: there is one."""
        return self._home.head()

    def pop_request(self) -> Theirs:
        """Take the head out."""
        return self._home.pop()

    def remove_request(self, request: Theirs) -> None:
        """Remove an aborted request."""
        self._home.left(request)

    def remove_requests(self, requests: Iterable[Theirs]) -> None:
        """Remove aborted requests, wherever they waited."""
        for request in requests:
            self._home.left(request)
