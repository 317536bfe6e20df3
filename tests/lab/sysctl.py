"""A sysctl of this machine that tests may change, one at a time; it has its value of before again."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.lab.programs import missing

NAME: Final = "vm.watermark_scale_factor"
"""In ten thousandths of the memory: one more or less changes nothing that anybody notices."""
FILE: Final = Path("/proc/sys/vm/watermark_scale_factor")


@contextmanager
def changeable_sysctl() -> Iterator[int]:
    """Gives the value of `NAME`; skips where it cannot be written."""
    if os.geteuid() != 0 or not os.access(FILE, os.W_OK):
        missing(f"{NAME} cannot be written here")
    with FILE.open(encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = file.read()
        try:
            yield int(before)
        finally:
            FILE.write_text(before, encoding="ascii")
