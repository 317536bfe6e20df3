"""Headless Chromium, driven by its own chromedriver. Source: https://www.w3.org/TR/webdriver2/."""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tests.lab.deadline import wait_until
from tests.lab.programs import debian_program

_COMMAND_S: Final = 60
_STARTED: Final = "started successfully on port "
_REFUSED: Final = "ERR_CONNECTION_REFUSED"
_LISTENS_S: Final = 10.0
"""A daemon serves calls before it listens for its page."""


class Size(NamedTuple):
    """Of the window, in CSS pixels."""

    width: int
    height: int


PHONE: Final = Size(360, 740)
LAPTOP: Final = Size(1366, 768)
WALL: Final = Size(2560, 1440)


class Browser:
    """One window, from `with` to the end of its block. The test is skipped where Chromium is not installed.

    Args:
        folder: For the driver's log and the profile.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs = debian_program("chromedriver"), debian_program("chromium")

    def __enter__(self) -> Self:
        driver, chromium = self._programs
        log = self._folder / "chromedriver.log"
        with log.open("wb") as output:
            self._driver = subprocess.Popen([driver, "--port=0"], stdout=output, stderr=output)
        try:
            text = wait_until(lambda: _after(log.read_text(), _STARTED), "chromedriver's port", timeout_s=60)
            self._port, self._path = int(text.partition(".")[0]), "/session"
            self._path += "/" + self._start(chromium)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._send("DELETE", "")
        finally:
            self._end()

    def _end(self) -> None:
        self._driver.terminate()
        self._driver.wait(30)

    def _start(self, chromium: Path) -> str:
        words = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            # What Chromium asks of its maker's servers is not the page's.
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            f"--user-data-dir={self._folder / 'profile'}",
        ]
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": str(chromium), "args": words},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self._send("POST", "", {"capabilities": {"alwaysMatch": capabilities}})
        return str(answer["sessionId"])

    def open(self, url: str, size: Size = LAPTOP, *, is_dark: bool = False) -> None:
        """Opens a page in a window of that size, and forgets the logs of the page before it."""
        self._send("POST", "/url", {"url": "about:blank"})
        metrics = {"width": size.width, "height": size.height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", {"features": [scheme]})
        for kind in ("browser", "performance"):
            self._log(kind)
        wait_until(lambda: self._reaches(url), url, _LISTENS_S)

    def _reaches(self, url: str) -> bool:
        try:
            self._send("POST", "/url", {"url": url})
        except RuntimeError as error:
            if _REFUSED not in str(error):
                raise
            self._log("browser")
            return False
        return True

    def run(self, script: str, *arguments: object) -> Any:
        """What a function with this body returns in the page."""
        return self._send("POST", "/execute/sync", {"script": script, "args": arguments})

    def wait_for(self, condition: str, *arguments: object, timeout_s: float = 30.0) -> None:
        """Waits until an expression is true in the page."""
        wait_until(lambda: self.run(f"return {condition}", *arguments), condition, timeout_s=timeout_s)

    def text(self, selector: str) -> str:
        """The text that is seen in the first element of a selector."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def press(self, *keys: str) -> None:
        """Presses keys, one after the other, such as `Tab`."""
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                code = {"Tab": 9, "Enter": 13}[key]
                text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
                event = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, **text}
                self.devtools("Input.dispatchKeyEvent", event)

    def screenshot(self, path: Path, *, is_whole: bool = False) -> None:
        """Writes what is seen, or the whole page, as PNG."""
        options = {"format": "png", "captureBeyondViewport": is_whole}
        if is_whole:
            size = self.devtools("Page.getLayoutMetrics", {})["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.devtools("Page.captureScreenshot", options)
        path.write_bytes(base64.b64decode(answer["data"]))

    def console(self) -> list[str]:
        """What the page, or the browser about it, has written to the console since the last time."""
        return [f"{each['level']} {each['message']}" for each in self._log("browser")]

    def requests(self) -> Iterator[str]:
        """The URLs that were requested since the last time."""
        for each in self._log("performance"):
            message = json.loads(each["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                yield str(message["params"]["request"]["url"])

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        """Runs a command of the DevTools protocol."""
        return self._send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._send("POST", "/se/log", {"type": kind})
        return found

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_COMMAND_S)
        try:
            connection.request(method, self._path + path, None if body is None else json.dumps(body))
            value = json.load(connection.getresponse())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise RuntimeError(f"{value['error']}: {value['message']}")
        return value


def _after(text: str, start: str) -> str:
    """What follows in a text, once its line has ended."""
    _, found, rest = text.partition(start)
    return rest if found and "\n" in rest else ""
