"""Headless Chromium through its debugging pipe: what a page asks for, says in its console, and measures."""

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Page:
    """One page; `events` holds what the browser has told of it."""

    def __init__(self, commands: int, answers: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._commands = os.fdopen(commands, "wb", buffering=0)
        self._answers = os.fdopen(answers, "rb")
        self._ids = itertools.count(1)
        self._session: dict[str, str] = {}
        (target,) = [each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def _next(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                raise EOFError("the browser has gone")
            message += byte
        found: dict[str, Any] = json.loads(message)
        if "method" in found:
            self.events.append(found)
        return found

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        self._commands.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path, *, width: int, dark: bool) -> None:
        """Show a file, as wide as a phone or a desktop, and wait until it has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not self.heard("Page.loadEventFired"):
            self._next()

    def heard(self, method: str) -> list[dict[str, Any]]:
        """What the events of this name say."""
        return [event["params"] for event in self.events if event["method"] == method]

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """A page of a fresh browser; the test is skipped where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if not program:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    theirs, commands = os.pipe()
    answers, ours = os.pipe()
    arguments = [
        "--headless=new",
        "--remote-debugging-pipe",
        "--disable-gpu",
        "--no-first-run",
        f"--user-data-dir={profile}",
    ]
    arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
    # the browser reads commands from its descriptor 3 and writes answers to 4
    shell = f'exec "$0" "$@" 3<&{theirs} 4>&{ours}'
    process = subprocess.Popen(
        ["bash", "-c", shell, program, *arguments, "about:blank"], pass_fds=(theirs, ours), stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    os.close(ours)
    page = Page(commands, answers)
    try:
        yield page
        page._session = {}
        page.call("Browser.close")
    finally:
        process.terminate()
        process.wait()
        page._commands.close()
        page._answers.close()
