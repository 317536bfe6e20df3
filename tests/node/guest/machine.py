"""The node as an administrator sees it: systemctl, the journal, the proxy's own command."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.deadline import wait_until

PREFIX = Path("/opt/koord-runtime-proxy")
PROGRAM = PREFIX / "bin" / "koord-runtime-proxy"
CONFIG = Path("/etc/koord-runtime-proxy/config.toml")
SERVICE = "koord-runtime-proxy.service"
SOCKET_UNIT = "koord-runtime-proxy.socket"
MANAGER = "koord-qos-manager.service"
UNITS = Path("/etc/systemd/system")
SHARED_UNITS = PREFIX / "share" / "koord-runtime-proxy" / "systemd"
ENDPOINT = Path("/run/koord-runtimeproxy/runtimeproxy.sock")
CONTAINERD = Path("/run/containerd/containerd.sock")

# An emulated CPU is some twenty times slower than a real one.
PATIENCE_S = 120.0
PATIENTLY = ("--timeout", f"{PATIENCE_S:.0f}s")
"""Of commands that ask the daemon."""
_LIMITS = {
    "TimeoutStartSec": "300s",
    "TimeoutStopSec": "100s",
    "WatchdogSec": "300s",
    "Environment": "KOORD_RUNTIMEPROXY_PROXY_UPGRADE_START_S=300",
}


def make_time(**changes: str) -> None:
    """Gives both services the time that an emulated CPU needs, by drop-ins of systemd's own kind.

    Args:
        changes: other values of these settings, for the proxy.
    """
    for unit, settings in ((SERVICE, {**_LIMITS, **changes}), (MANAGER, _LIMITS)):
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        drop_in(unit, "emulation.conf").write_text("[Service]\n" + "".join(lines))
    systemctl("daemon-reload")


@contextmanager
def with_drop_ins(*sources: Path) -> Iterator[None]:
    """Installs drop-ins of the wheel for as long as this lasts; what was started with them goes on so."""
    made = [drop_in(source.parent.name.removesuffix(".d"), source.name) for source in sources]
    try:
        for path, source in zip(made, sources, strict=True):
            path.write_text(source.read_text())
        systemctl("daemon-reload")
        yield
    finally:
        for path in made:
            path.unlink()
        systemctl("daemon-reload")


def drop_in(unit: str, name: str) -> Path:
    """Where a drop-in of the unit lies until the node is off."""
    path = Path(f"/run/systemd/system/{unit}.d/{name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


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


def main_pid(unit: str = SERVICE) -> int:
    """The process that systemd watches; 0 for none."""
    return int(shown("MainPID", unit))


def wait_for_another_process(former: int, unit: str = SERVICE) -> None:
    """Waits until the service runs in another process than this one."""

    def is_another() -> bool:
        return shown("ActiveState", unit) == "active" and main_pid(unit) not in (0, former)

    wait_until(is_another, "another process", PATIENCE_S)


def wait_for_status(pattern: str, unit: str = SERVICE) -> str:
    """Waits until the STATUS= line matches, and returns it."""

    def matching() -> str:
        text = shown("StatusText", unit)
        return text if re.search(pattern, text) else ""

    try:
        return wait_until(matching, f"a status line like {pattern!r}", PATIENCE_S)
    except TimeoutError as error:
        raise TimeoutError(f"{error}; it is {shown('StatusText', unit)!r}") from None


class Journal:
    """What a unit has logged since this object was made."""

    def __init__(self, unit: str = SERVICE) -> None:
        self._unit = unit
        self._begin = len(whole_journal(unit))

    def lines(self) -> list[str]:
        """The new lines: JSON objects of the program, text of systemd."""
        return whole_journal(self._unit)[self._begin :]

    def wait_for(self, pattern: str) -> str:
        """Waits for a line that matches, and returns the first."""

        def matching() -> str:
            return next((line for line in self.lines() if re.search(pattern, line)), "")

        return wait_until(matching, f"a journal line like {pattern!r}", PATIENCE_S)


def whole_journal(unit: str = SERVICE) -> list[str]:
    """All lines of a unit since the boot, those of systemd about it as well."""
    return run("journalctl", "--boot", "--no-pager", "--output=cat", "--unit", unit).splitlines()
