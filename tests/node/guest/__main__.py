"""Runs all checks in order and writes one JSON line for each into the shared folder."""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from pathlib import Path

from tests.node.guest.checks import BOOTS
from tests.node.guest.machine import run, whole_journal
from tests.node.guest.node import Check, Node

SHARE = Path("/mnt/share")


def main() -> None:
    """One check that fails does not keep the others from being made."""
    boot, names = json.loads((SHARE / "names.json").read_text())
    node = Node(Path(tempfile.mkdtemp(prefix="pods-")))
    with (SHARE / "results.jsonl").open("w", buffering=1) as results:
        for check in (check for check in BOOTS[boot] if check.name in names):
            print(f"--- {check.name}", flush=True)
            result = made(check, node)
            # On the host as soon as it is known, whatever becomes of the node.
            results.write(json.dumps(result) + "\n")
            os.fsync(results.fileno())
            if not result["ok"]:
                keep_journals()
    keep_journals()


def keep_journals() -> None:
    """Copies the proxy's journal and the whole one to the host."""
    (SHARE / "journal.txt").write_text("\n".join(whole_journal()) + "\n")
    (SHARE / "system.txt").write_text(run("journalctl", "--boot", "--no-pager", code=None) + "\n")


def made(check: Check, node: Node) -> dict[str, object]:
    """Makes one check and says how it went."""
    began = time.monotonic()
    try:
        ok, seen = True, check.run(node)
    # Whatever a check raises is its result, and the next one is to be made.
    except Exception as error:  # noqa: BLE001  # the guard of the runner
        traceback.print_exc()
        ok, seen = False, f"{type(error).__name__}: {error}"
    return {"name": check.name, "ok": ok, "seen": seen, "took_s": round(time.monotonic() - began, 1)}


if __name__ == "__main__":
    main()
