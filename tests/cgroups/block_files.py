"""The kernel's rules for files with a line for each block device, on plain files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from typing import Final

from runtimeproxy.fields.devices import plain_lines

FILES_V1: Final = {
    **{f"blkio.throttle.{each}_device": "" for each in ("read_bps", "write_bps", "read_iops", "write_iops")},
    "blkio.cost.weight": "default 100",
}
FILES_V2: Final = {"io.max": "", "io.weight": "default 100"}
_MAX: Final = {"rbps": "max", "wbps": "max", "riops": "max", "wiops": "max"}
_QOS: Final = {
    "enable": "0",
    "ctrl": "auto",
    "rpct": "0.00",
    "rlat": "0",
    "wpct": "0.00",
    "wlat": "0",
    "min": "1.00",
    "max": "10000.00",
}
_MODEL: Final = {
    "ctrl": "auto",
    "model": "linear",
    "rbps": "488636629",
    "rseqiops": "8932",
    "rrandiops": "8518",
    "wbps": "427891549",
    "wseqiops": "28755",
    "wrandiops": "21940",
}


class BlockFiles:
    """Takes the place of the writer's `_write_lines`.

    Source: Linux block/blk-throttle.c, tg_set_conf and tg_set_limit; block/blk-iocost.c, ioc_weight_write,
    ioc_qos_write, ioc_cost_model_write; the order of lines is that in which devices were first set.

    Attributes:
        disks: The numbers of the disks that there are.
        with_cost: Those of them that once had a cost model.
        lines: All that were written, with the name of the file.
    """

    def __init__(self, *disks: str, with_cost: Iterable[str] = ()) -> None:
        self.disks = set(disks)
        self.with_cost = set(with_cost)
        self.lines: list[tuple[str, str]] = []

    def __call__(self, file: str, folder: int, lines: Iterable[str]) -> dict[str, OSError]:
        # As `open` of a file that is not there.
        with open(file, opener=lambda name, _: os.open(name, os.O_RDWR, dir_fd=folder)) as opened:
            text = opened.read()
        refused: dict[str, OSError] = {}
        for line in lines:
            self.lines.append((file, line))
            try:
                text = self._written(file, text, line)
            except OSError as error:
                refused[line] = error
        with open(
            file, "w", opener=lambda name, _: os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
        ) as opened:
            opened.write(text)
        return refused

    def _written(self, file: str, text: str, line: str) -> str:
        device, _, rest = line.partition(" ")
        if device not in self.disks:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        present = plain_lines(text)
        if file == "io.max":
            setting = _with_pairs(_MAX | _pairs(present.get(device, "")), rest)
            if setting == _with_pairs(_MAX, ""):
                setting = ""
        elif file in ("io.weight", "blkio.cost.weight"):
            if device not in self.with_cost:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            setting = "" if rest == "default" else rest
        elif file in ("io.cost.qos", "blkio.cost.qos"):
            setting = _of_user(_QOS | _pairs(present.get(device, "")), rest)
            # Also with enable=0.
            self.with_cost.add(device)
        elif file in ("io.cost.model", "blkio.cost.model"):
            setting = _of_user(_MODEL | _pairs(present.get(device, "")), rest)
        else:
            setting = "" if rest == "0" else rest
        kept = [each for each in text.splitlines() if each.partition(" ")[0] != device]
        return "".join(f"{each}\n" for each in (*kept, *([f"{device} {setting}"] if setting else [])))


def _pairs(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (each.partition("=") for each in text.split())}


def _with_pairs(pairs: Mapping[str, str], text: str) -> str:
    return " ".join(f"{name}={value}" for name, value in {**pairs, **_pairs(text)}.items())


def _of_user(pairs: dict[str, str], text: str) -> str:
    # A number switches the kernel's own choice off, wherever it stands.
    given = {
        name: f"{value}.00" if name in ("rpct", "wpct") and "." not in value else value
        for name, value in _pairs(text).items()
    }
    if given.keys() - {"enable", "ctrl", "model"}:
        given["ctrl"] = "user"
    return _with_pairs(pairs | given, "")
