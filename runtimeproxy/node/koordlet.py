"""The koordlet of this node, by its process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_NO_NRI: Final = re.compile(r"--?enable-nri-runtime-hook=(?:false|f|0)\b", re.IGNORECASE)
"""NRI is koordlet's default. Source: Koordinator pkg/koordlet/runtimehooks/config.go."""


class Koordlet(NamedTuple):
    """A koordlet that runs on this node."""

    pid: int
    uses_nri: bool
    """Whether its NRI mode is on; it needs the runtime's socket, too."""


def koordlets(proc: Path) -> Iterator[Koordlet]:
    """The processes called koordlet; the command lines of others are not read."""
    try:
        processes = sorted(path for path in proc.iterdir() if path.name.isdecimal())
    except OSError:
        return
    for process in processes:
        try:
            if (process / "comm").read_text().strip() == "koordlet":
                command = (process / "cmdline").read_bytes().decode("utf-8", "replace")
                yield Koordlet(int(process.name), _NO_NRI.search(command) is None)
        except OSError:
            continue  # it has ended
