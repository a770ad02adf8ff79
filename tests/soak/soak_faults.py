"""The faults of a soak: six kinds, at times and workers that its seed chooses."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from aiohttp import ClientError

KINDS = ("kill", "stop", "black hole", "garbage", "slow", "flapping")
MOST_AT_ONCE = 2  # kinds of faults, for four workers


def worker_pid(url):
    """Return the process that serves at ``url`` now, or None."""
    port = url.rpartition(":")[2].encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = b"emulate" in words and b"--port" in words
            if ours and words[words.index(b"--port") + 1] == port and b"-m" in words[:3]:
                return int(folder.name)
    return None


class Saboteur:
    """A saboteur with one fault after the other, each at one worker for ``last_s`` seconds.

    Faults are due at even distances of ``total`` requests. At most two last at a time, so a fault
    may have to wait. Requests then wait for it, one distance later (``turn``). Therefore, on any
    machine, each fault begins and ends before the last requests are sent.
    """

    def __init__(self, session, urls, draw, count, last_s, total):
        self._session, self._urls, self._draw = session, urls, draw
        kinds = [KINDS[number % len(KINDS)] for number in range(count)]
        draw.shuffle(kinds)
        self._kinds, self._last_s = kinds, last_s
        self._count, self._distance = count, total / (count + 1)
        self._answered = 0
        self._busy = {}
        self._changed = asyncio.Condition()
        self.done = []  # kind, worker, seconds

    @property
    def left(self):
        """Return the faults that have not begun."""
        return len(self._kinds)

    async def work(self):
        """Run all faults, and raise what any of them raises."""
        async with asyncio.TaskGroup() as group, self._changed:
            while self._kinds:
                await self._changed.wait_for(self._may_begin)
                kind = self._kinds.pop()
                url = self._draw.choice([url for url in self._urls if url not in self._busy])
                last_s = self._draw.uniform(*self._last_s)
                self._busy[url] = group.create_task(self._fault(kind, url, last_s))
                self._changed.notify_all()

    def _may_begin(self):
        due = self._answered >= self._distance * (self._count - self.left + 0.5)
        return due and len(self._busy) < MOST_AT_ONCE

    async def answered(self, requests):
        """Count the answered requests."""
        async with self._changed:
            self._answered = requests
            self._changed.notify_all()

    async def turn(self, number):
        """Wait until request ``number`` may be sent."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._may_send(number))

    def _may_send(self, number):
        begun = self._count - self.left
        early = number < self._distance * min(begun + 1.5, self._count + 0.5)
        return early or not (self._kinds or self._busy)

    async def _fault(self, kind, url, last_s):
        if kind == "kill":
            await self._signal(url, signal.SIGKILL)
        elif kind == "stop":
            pid = await self._signal(url, signal.SIGSTOP)
            await asyncio.sleep(last_s)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        else:
            await self._set(url, kind)
            await asyncio.sleep(last_s)
            await self._set(url, "")
        self.done.append((kind, self._urls.index(url), round(last_s, 1)))
        async with self._changed:
            del self._busy[url]
            self._changed.notify_all()

    async def _signal(self, url, number):
        """Signal the worker once it runs, because it may just have been killed. Return its pid."""
        while True:
            if (pid := worker_pid(url)) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                    return pid
            await asyncio.sleep(0.2)

    async def _set(self, url, kind):
        while True:
            try:
                async with self._session.post(f"{url}/soak", json={"kind": kind}) as answer:
                    assert answer.status == 200
                    return
            except (ClientError, OSError):  # the worker has not started again yet
                await asyncio.sleep(0.2)
