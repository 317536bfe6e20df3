"""Mounts a double of resctrl, and serves it until it is ended.

On standard input come commands of a test, as lines of JSON, each answered by a line; its end ends the double.
"""

from __future__ import annotations

import argparse
import json
import selectors
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from tests.resctrl.fuse import FileSystem
from tests.resctrl.groups import Group, Resctrl
from tests.resctrl.schemata import Variant
from tests.resctrl.tasks import Tasks


def main() -> None:
    """Serves until standard input ends, or SIGTERM."""
    arguments = argparse.ArgumentParser(description="a double of resctrl, by FUSE")
    arguments.add_argument("mount_point", type=Path)
    arguments.add_argument("--variant", type=json.loads, default={}, help="fields of Variant, as JSON")
    given = arguments.parse_args()
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.variant.items()
    }
    if unknown := values.keys() - {each.name for each in fields(Variant)}:
        arguments.error(f"no fields of Variant: {', '.join(sorted(unknown))}")
    tasks: Tasks[Group] = Tasks()
    resctrl = Resctrl(Variant(**values), tasks)
    files = FileSystem(resctrl.root, given.mount_point)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        _serve(files, tasks, resctrl)
    finally:
        files.close()


def _serve(files: FileSystem, tasks: Tasks[Group], resctrl: Resctrl) -> None:
    selector = selectors.DefaultSelector()
    selector.register(files.device, selectors.EVENT_READ)
    selector.register(tasks.socket, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("mounted", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is tasks.socket:
                tasks.follow()
            elif key.fileobj == files.device:
                if not files.serve():
                    return
            elif not (line := sys.stdin.readline()):
                return
            else:
                print(json.dumps(_answer(resctrl, json.loads(line))), flush=True)


def _answer(resctrl: Resctrl, command: dict[str, Any]) -> object:
    """What a test asks, or changes: see `double.py`."""
    match command:
        case {"counters": dict(counters)}:
            resctrl.counters = counters
        case {"denied": dict(denied)}:
            resctrl.denied = denied
        case {"keeps_rmids": bool(keeps)}:
            resctrl.keeps_rmids = keeps
        case {"commands": int(since)}:
            return resctrl.commands[since:]
    return None


main()
