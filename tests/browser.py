"""A headless Chromium that shows a page to a test, driven through its DevTools pipe."""

import base64
import fcntl
import json
import os
import shutil
from itertools import count
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
HEIGHT = 900

# This script lists a page's visible faults, one per line.
FAULTS = Path(__file__).with_name("browser_faults.js").read_text(encoding="utf-8")


class Browser:
    """A browser with one tab, whose window may be narrower than ``--window-size`` allows."""

    def __init__(self, profile):
        """Start Chromium with its profile in a new directory."""
        ours_in, theirs_out = _pipe()
        theirs_in, ours_out = _pipe()
        null = [(os.POSIX_SPAWN_OPEN, at, os.devnull, os.O_RDWR, 0) for at in (0, 1, 2)]
        ends = [(os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4)]
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        self._process = os.posix_spawn(
            CHROMIUM, command, os.environ, file_actions=[*null, *ends], setsid=True
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self._numbers, self._session, self._rest = count(1), {}, b""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        self._call("Page.enable")

    def show(self, url, width, scheme="light"):
        """Open a page in a window of a width, in a light or dark scheme."""
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=wanted)
        self._call("Page.navigate", url=url)
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, script):
        """Return the value of a script that runs in the shown page."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def faults(self):
        """Return what is cut off, empty or overlapping in the shown page."""
        return self.evaluate(FAULTS)

    def picture(self):
        """Return the whole page as PNG."""
        found = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def close(self):
        """End the browser."""
        self._call("Browser.close")
        self._in.close()
        self._out.close()
        os.waitpid(self._process, 0)

    def _call(self, method, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **self._session}
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while (answer := self._message()).get("id") != number:
            pass
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _message(self):
        while b"\0" not in self._rest:
            read = self._in.read1(1 << 20)
            assert read, "the browser has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


def _pipe():
    """Return the ends of a pipe, with descriptor numbers that the browser does not use."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved
