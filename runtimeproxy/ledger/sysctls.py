"""Sysctls that policies set: each has its original text again when no policy wants it any more.

The original is saved before the first write, with the id of the kernel's boot: after a reboot nothing of
before counts. A value that another program has written meanwhile is left to it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from runtimeproxy.errors import described
from runtimeproxy.logs import FailureLog

logger = logging.getLogger(__name__)

DEFAULT_ROOT: Final = Path("/proc/sys")
"""Source: proc_sys(5)."""
SAVED_FILE: Final = "sysctls.json"
"""In the state folder."""


class SysctlChange(NamedTuple):
    """What has become of one sysctl."""

    name: str
    old: str
    new: str
    error: str = ""
    """Why it could not be written; empty if it was."""


class _Held(NamedTuple):
    original: str
    written: str


class Sysctls:
    """The sysctls of this node that policies have set. Safe for all threads.

    Args:
        state_folder: of the daemon.
        boot_id: of this boot.
        root: where the kernel shows sysctls.
    """

    def __init__(self, state_folder: Path, boot_id: str, root: Path = DEFAULT_ROOT) -> None:
        self._file = state_folder / SAVED_FILE
        self._boot_id = boot_id
        self._root = root
        self._lock = Lock()
        self._held: dict[str, _Held] | None = None
        self._failures = FailureLog()

    def apply(self, wanted: Mapping[str, int | str], *, releases: bool = True) -> tuple[SysctlChange, ...]:
        """Write what policies want, in this order, and give back what they want no more; in a worker thread.

        Args:
            wanted: by name, such as `kernel.sched_core`. One that the kernel lacks is left out.
            releases: whether values that are not in `wanted` are given back; not while some policy has no
                answer.
        """
        with self._lock:
            held = self._load()
            changes: list[SysctlChange] = []
            if releases:
                for name in [each for each in held if each not in wanted]:
                    changes += self._release(held, name)
            for name, value in wanted.items():
                changes += self._set(held, name, str(value))
        for change in changes:
            self._report(change)
        return tuple(changes)

    def planned(self) -> tuple[SysctlChange, ...]:
        """Return what giving everything back would change."""
        with self._lock:
            found = [(name, each, self._read(name)) for name, each in self._load().items()]
        return tuple(
            SysctlChange(name, present, each.original)
            for name, each, present in found
            if present == each.written and present != each.original
        )

    def _set(self, held: dict[str, _Held], name: str, value: str) -> list[SysctlChange]:
        present = self._read(name)
        if present is None or present == value:
            return []
        # What another program has written since is no original.
        original = held[name].original if name in held else present
        before = held.get(name)
        held[name] = _Held(original, value)
        try:
            self._save(held)
            self._path(name).write_text(value + "\n", encoding="ascii")
        except OSError as error:
            if before is None:
                del held[name]
            else:
                held[name] = before
            return [SysctlChange(name, present, value, described(error))]
        return [SysctlChange(name, present, value)]

    def _release(self, held: dict[str, _Held], name: str) -> list[SysctlChange]:
        mine = held[name]
        present = self._read(name)
        changes: list[SysctlChange] = []
        if present == mine.written and present != mine.original:
            try:
                self._path(name).write_text(mine.original + "\n", encoding="ascii")
            except OSError as error:
                return [SysctlChange(name, present, mine.original, described(error))]
            changes.append(SysctlChange(name, present, mine.original))
        del held[name]
        with suppress(OSError):  # it is compared with the kernel's value at the next start
            self._save(held)
        return changes

    def _report(self, change: SysctlChange) -> None:
        if change.error:
            text = f"sysctl {change.name} cannot be set to {change.new}: {change.error}"
            self._failures.report("sysctl", change.name, text)
        else:
            logger.info("sysctl %s: %s -> %s", change.name, change.old, change.new)

    def _path(self, name: str) -> Path:
        return self._root / name.replace(".", "/")

    def _read(self, name: str) -> str | None:
        try:
            return self._path(name).read_text(encoding="ascii").rstrip("\n")
        except (OSError, ValueError):
            return None

    def _load(self) -> dict[str, _Held]:
        if self._held is None:
            self._held = {}
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                saved = json.loads(self._file.read_text(encoding="utf-8"))
                if saved["boot_id"] == self._boot_id:
                    self._held = {
                        str(name): _Held(str(each["original"]), str(each["written"]))
                        for name, each in saved["sysctls"].items()
                    }
        return self._held

    def _save(self, held: Mapping[str, _Held]) -> None:
        entries = {name: each._asdict() for name, each in held.items()}
        new = self._file.with_suffix(".new")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps({"boot_id": self._boot_id, "sysctls": entries}), encoding="utf-8")
        new.replace(self._file)
