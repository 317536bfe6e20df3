"""What tells which policies work on a node, recorded as a user would; the host keeps it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.node.guest.machine import PROGRAM, expect, run
from tests.node.guest.node import Check, Node

_FILE = Path("/mnt/share/tree.json")
_OF_OTHERS = Path("/tmp/tree.json")
_NO_USER = "nobody"


def the_tree_is_recorded(_: Node) -> str:
    """`doctor --record-tree`, by root: one pod and one container are in it, without their ids."""
    seen = run(PROGRAM, "doctor", "--record-tree", _FILE)
    files = json.loads(_FILE.read_text())["files"]
    expect("a container's files", any("/pod0" in path and "/container0/" in path for path in files), True)
    return seen


def others_record_what_they_may_read(_: Node) -> str:
    """The same by a user without rights, who is told what is missing."""
    seen = run("runuser", "-u", _NO_USER, "--", PROGRAM, "doctor", "--record-tree", _OF_OTHERS)
    tree = json.loads(_OF_OTHERS.read_text())
    expect("user", tree["user"], "other")
    expect("unread", "the runtime's version" in tree["unread"], True)
    return seen


CHECKS = (
    Check("doctor --record-tree, as root", the_tree_is_recorded),
    Check("doctor --record-tree, as another user", others_record_what_they_may_read),
)
