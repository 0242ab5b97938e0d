"""A real browser for tests: Chromium from the distribution, without a window,
controlled through a pipe.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


def needs_browser(test):
    """Mark a test that opens a page, so that such tests can run separately; it is
    skipped without Chromium.
    """
    why = "needs Chromium, from the distribution (apt install chromium)"
    test = pytest.mark.skipif(CHROMIUM is None, reason=why)(test)
    return pytest.mark.browser(pytest.mark.slow(test))


class Navigated(Exception):
    """The page was replaced before it answered."""


class Browser:
    """One page in its own Chromium. ``dark``: the preferred colour scheme; ``scripts``:
    whether scripts run.
    """

    def __init__(self, width=1100, height=900, dark=False, scripts=True):
        assert CHROMIUM
        self._home = tempfile.TemporaryDirectory()
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        # free ones, out of the way of 3 and 4
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 60) for end in (theirs_in, theirs_out)]
        actions = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        null = os.open(os.devnull, os.O_RDWR)
        actions += [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
        command = [
            CHROMIUM,
            *_FLAGS,
            f"--user-data-dir={self._home.name}",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        self._pid = os.posix_spawn(CHROMIUM, command, os.environ, file_actions=actions, setsid=True)
        for end in (theirs_in, theirs_out, null, *high):
            os.close(end)
        self._out, self._in = os.fdopen(ours_out, "wb", 0), os.fdopen(ours_in, "rb", 0)
        self._count, self._rest, self._session = 0, b"", None
        self.events = []  # events of the page: errors, requests
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable")
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.do(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.do("Emulation.setScriptExecutionDisabled", value=not scripts)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._out.close()
        self._in.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._home.name, ignore_errors=True)
        self._home._finalizer.detach()

    def do(self, method, **parameters):
        """Give one command of the DevTools protocol and return its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        self._out.write(
            json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode()
            + b"\0"
        )
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                if "navigated" in str(answer.get("error")):
                    raise Navigated
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def _read(self):
        while b"\0" not in self._rest:
            part = self._in.read(1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        one, _, self._rest = self._rest.partition(b"\0")
        return json.loads(one)

    def open(self, address):
        """Go to a page and wait until it has loaded."""
        if isinstance(address, Path):
            address = address.resolve().as_uri()
        self.do("Page.navigate", url=address)
        while not any(one.get("method") == "Page.loadEventFired" for one in self.events):
            self.events.append(self._read())

    def ask(self, expression):
        """Return the value of a JavaScript expression; wait if it is a promise."""
        answer = self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression, seconds=30):
        """Wait until an expression is true, also on the page that replaces this one."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(Navigated):
                if self.ask(f"Boolean({expression})"):
                    return
            time.sleep(0.05)
        raise AssertionError(f"never came true: {expression}")

    def point(self, x, y, kind="mouseMoved"):
        """Move the pointer, or press and release it with ``kind`` "click"."""
        kinds = ("mousePressed", "mouseReleased") if kind == "click" else (kind,)
        for one in kinds:
            button = {"button": "left", "clickCount": 1} if kind == "click" else {}
            self.do("Input.dispatchMouseEvent", type=one, x=x, y=y, **button)

    def press(self, key):
        """Press a key by its name."""
        text = {"Enter": {"text": "\r"}, " ": {"text": " "}}.get(key, {})
        self.do("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.do("Input.dispatchKeyEvent", type="keyUp", key=key)

    @property
    def complaints(self):
        """The errors of the page: exceptions, refused scripts, error messages."""
        entries = [
            one["params"]
            for one in self.events
            if one.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]
        return [one for one in entries if one.get("entry", {}).get("level", "error") == "error"]

    @property
    def asked(self):
        """The addresses that the page asked for."""
        return [
            one["params"]["request"]["url"]
            for one in self.events
            if one.get("method") == "Network.requestWillBeSent"
        ]
