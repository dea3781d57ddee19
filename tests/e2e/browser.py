"""Headless Chromium, driven through the WebDriver protocol."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing() -> str | None:
    """What is not installed that a browser needs; None where all is there."""
    if not any(map(shutil.which, BROWSERS)):
        return f"no browser is installed: {' or '.join(BROWSERS)}"
    return None if shutil.which(DRIVER) else f"{DRIVER} is not installed"


class Browser:
    """A session of the browser.

    Args:
        address: of the session.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def open(self, path: Path) -> None:
        """Show a file."""
        _ask("POST", f"{self._address}/url", {"url": path.as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that the body of a function returns in the page."""
        return _ask("POST", f"{self._address}/execute/sync", {"script": script, "args": list(arguments)})

    def complaints(self) -> list[str]:
        """What the browser has logged since the last call: errors, warnings, refused requests."""
        entries = _ask("POST", f"{self._address}/se/log", {"type": "browser"})
        return [str(entry["message"]) for entry in entries]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile.

    Args:
        folder: for the profile; empty.
    """
    chosen = next(found for name in BROWSERS if (found := shutil.which(name)))
    options = {
        "binary": chosen,
        "args": [*_FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000"],
    }
    wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            line = next(line for line in driver.stdout if "started successfully on port" in line)
            root = f"http://127.0.0.1:{line.rsplit(' ', 1)[1].strip().rstrip('.')}"
            made = _ask("POST", f"{root}/session", {"capabilities": {"alwaysMatch": wanted}})
            address = f"{root}/session/{made['sessionId']}"
            try:
                yield Browser(address)
            finally:
                _ask("DELETE", address, None)
        finally:
            driver.terminate()


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _ask(method: str, address: str, body: Any) -> Any:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, content, {"Content-Type": "application/json"}, method=method)
    with _DIRECT.open(request, timeout=60) as answer:
        return json.loads(answer.read())["value"]
