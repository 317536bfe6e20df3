"""The node as an administrator sees it: systemctl, the journal, the proxy's own command."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.lab.deadline import wait_until

PREFIX = Path("/opt/koord-runtime-proxy")
PROGRAM = PREFIX / "bin" / "koord-runtime-proxy"
CONFIG = Path("/etc/koord-runtime-proxy/config.toml")
SERVICE = "koord-runtime-proxy.service"
SOCKET_UNIT = "koord-runtime-proxy.socket"
ENDPOINT = Path("/run/koord-runtimeproxy/runtimeproxy.sock")
CONTAINERD = Path("/run/containerd/containerd.sock")

# An emulated CPU is some twenty times slower than a real one.
PATIENCE_S = 120.0
_LIMITS = {
    "TimeoutStartSec": "300s",
    "TimeoutStopSec": "100s",
    "WatchdogSec": "300s",
    "Environment": "KOORD_RUNTIMEPROXY_PROXY_UPGRADE_START_S=300",
}


def make_time(**changes: str) -> None:
    """Gives the service the time that an emulated CPU needs, by a drop-in of systemd's own kind.

    Args:
        changes: other values of these settings.
    """
    settings = {**_LIMITS, **changes}
    drop_in = Path(f"/run/systemd/system/{SERVICE}.d/emulation.conf")
    drop_in.parent.mkdir(parents=True, exist_ok=True)
    drop_in.write_text("[Service]\n" + "".join(f"{name}={value}\n" for name, value in settings.items()))
    systemctl("daemon-reload")


class UnexpectedError(Exception):
    """A check has seen something else than it should."""


def expect(what: str, seen: object, wanted: object) -> None:
    """Raises UnexpectedError unless both are equal."""
    if seen != wanted:
        raise UnexpectedError(f"{what}: {seen!r} instead of {wanted!r}")


def expect_text(what: str, seen: str, pattern: str) -> str:
    """Returns what the pattern finds, its first group if it has one. Raises UnexpectedError otherwise."""
    found = re.search(pattern, seen, flags=re.MULTILINE)
    if found is None:
        raise UnexpectedError(f"{what}: nothing like {pattern!r} in {seen!r}")
    return found.group(1) if found.groups() else found.group()


def run(*command: str | Path, code: int | None = 0) -> str:
    """Runs a command and returns all that it printed. Raises UnexpectedError on another exit code."""
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if code is not None and done.returncode != code:
        raise UnexpectedError(f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stdout}")
    return done.stdout.strip()


def systemctl(*arguments: str, code: int | None = 0) -> str:
    """Runs systemctl."""
    return run("systemctl", "--no-pager", *arguments, code=code)


def shown(name: str, unit: str = SERVICE) -> str:
    """A property of a unit."""
    return systemctl("show", "--value", "--property", name, unit)


def main_pid() -> int:
    """The process of the proxy that systemd watches; 0 for none."""
    return int(shown("MainPID"))


def wait_for_status(pattern: str) -> str:
    """Waits until the STATUS= line of the proxy matches, and returns it."""

    def matching() -> str:
        text = shown("StatusText")
        return text if re.search(pattern, text) else ""

    return wait_until(matching, f"a status line like {pattern!r}", PATIENCE_S)


class Journal:
    """What the proxy's unit has logged since this object was made."""

    def __init__(self) -> None:
        self._begin = len(whole_journal())

    def lines(self) -> list[str]:
        """The new lines: JSON objects of the proxy, text of systemd."""
        return whole_journal()[self._begin :]

    def wait_for(self, pattern: str) -> str:
        """Waits for a line that matches, and returns the first."""

        def matching() -> str:
            return next((line for line in self.lines() if re.search(pattern, line)), "")

        return wait_until(matching, f"a journal line like {pattern!r}", PATIENCE_S)


def whole_journal() -> list[str]:
    """All lines of the proxy's unit since the boot, those of systemd about it as well."""
    return run("journalctl", "--boot", "--no-pager", "--output=cat", "--unit", SERVICE).splitlines()
