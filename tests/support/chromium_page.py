"""A page in a headless Chromium, driven through its debugging protocol over two pipes.

    with open_chromium() as chromium:
        page = chromium.page(url)
        page.wait("document.querySelector('#log').textContent.includes('hello')")

Expressions are JavaScript; promises are awaited.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from support.chromium import FLAGS, NOT_INSTALLED, find_chromium

SECONDS = 60
"""Seconds in which a page does what it is asked to, on a busy machine as well."""

KEYS = {"Enter": 13, "Escape": 27, "Tab": 9}


class Chromium:
    """A running Chromium.

    Args:
        commands: Where commands are written.
        answers: Where answers and events are read.
    """

    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self._commands, self._answers, self._number, self._rest = commands, answers, 0, b""

    def page(self, url: str, *, width: int = 1200, height: int = 800, before: str = "") -> Page:
        """Open a page in a window of a size, and wait until it is loaded.

        Args:
            url: Where it is.
            width: Width of the window in CSS pixels.
            height: Its height.
            before: JavaScript that runs before any of the page's.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, attached["sessionId"])
        page.call("Page.enable")
        page.call("Page.bringToFront")
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.call("Runtime.enable")
        page.resize(width, height)
        page.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        page.call("Page.navigate", url=url)
        page.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol.

        Raises:
            RuntimeError: It failed.
        """
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        command |= {"sessionId": session} if session else {}
        self._commands.write(json.dumps(command).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._answers.fileno(), 1 << 16)
            if not more:
                raise RuntimeError("Chromium has ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


class Page:
    """A page of a Chromium.

    Args:
        chromium: The Chromium.
        session: The session of its protocol that belongs to the page.
    """

    def __init__(self, chromium: Chromium, session: str) -> None:
        self._chromium, self._session = chromium, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol for this page."""
        return self._chromium.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression.

        Raises:
            RuntimeError: It threw.
        """
        options = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        result = self.call("Runtime.evaluate", expression=expression, **options)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression: str, *, seconds: float = SECONDS) -> Any:
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(RuntimeError):  # the page may be loading
                if value := self.evaluate(expression):
                    return value
            time.sleep(0.05)
        raise TimeoutError(f"{expression}: {self.evaluate('document.body.innerText')}")

    def click(self, selector: str) -> None:
        """Click an element."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, text: str) -> None:
        """Put the focus into a field and write a text there."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key."""
        event = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

    def resize(self, width: int, height: int = 800) -> None:
        """Give the window a size in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def reload(self) -> None:
        """Load the page again, and wait until it is there."""
        self.evaluate("window.isOld = true")
        self.call("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def picture(self, file: Path) -> None:
        """Write a screenshot as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def open_chromium() -> Iterator[Chromium]:
    """Run a Chromium with a new profile for a block."""
    program = find_chromium()
    assert program is not None, NOT_INSTALLED
    commands, answers = os.pipe(), os.pipe()
    # Above the descriptors 3 and 4, which Chromium takes.
    ours = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands[0], answers[1])]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        Path(profile, "stderr.txt").open("w") as errors,
    ):
        words = [program, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [sys.executable, "-c", _EXEC, *map(str, ours), *words, "about:blank"],
            pass_fds=ours,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        for end in (commands[0], answers[1], *ours):
            os.close(end)
        try:
            with os.fdopen(commands[1], "wb") as written, os.fdopen(answers[0], "rb") as read:
                yield Chromium(written, read)
        finally:
            process.terminate()
            process.wait()


_EXEC = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
