"""The faults of a soak: six kinds, at moments and workers that its seed chooses."""

import asyncio
import os
import signal
from pathlib import Path

from aiohttp import ClientError

KINDS = ("kill", "stop", "black hole", "garbage", "slow", "flapping")
MOST_AT_ONCE = 2  # of four workers


def worker_pid(url):
    """The process that serves there now, None while there is none."""
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
    """Has one fault after the other, each at one worker for ``last_s`` seconds."""

    def __init__(self, session, urls, draw, count, last_s):
        self._session, self._urls, self._draw = session, urls, draw
        kinds = [KINDS[number % len(KINDS)] for number in range(count)]
        draw.shuffle(kinds)
        self._kinds, self._last_s = kinds, last_s
        self._busy = {}
        self.done = []  # kind, worker, seconds

    @property
    def left(self):
        """Faults that have not begun."""
        return len(self._kinds)

    def begin(self):
        """The next one, unless there are enough at present. Returns whether it has begun."""
        free = [url for url in self._urls if url not in self._busy]
        if not self._kinds or len(self._busy) >= MOST_AT_ONCE:
            return False
        kind, url = self._kinds.pop(), self._draw.choice(free)
        last_s = self._draw.uniform(*self._last_s)
        self._busy[url] = asyncio.create_task(self._fault(kind, url, last_s))
        return True

    async def over(self):
        """Wait until none lasts."""
        await asyncio.gather(*self._busy.values())

    async def _fault(self, kind, url, last_s):
        try:
            while (pid := worker_pid(url)) is None:  # it was killed before
                await asyncio.sleep(0.2)
            if kind == "kill":
                os.kill(pid, signal.SIGKILL)
            elif kind == "stop":
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(last_s)
                os.kill(pid, signal.SIGCONT)
            else:
                await self._set(url, kind)
                await asyncio.sleep(last_s)
                await self._set(url, "")
            self.done.append((kind, self._urls.index(url), round(last_s, 1)))
        finally:
            del self._busy[url]

    async def _set(self, url, kind):
        while True:
            try:
                async with self._session.post(f"{url}/soak", json={"kind": kind}) as answer:
                    assert answer.status == 200
                    return
            except (ClientError, OSError):  # it has not started again yet
                await asyncio.sleep(0.2)
