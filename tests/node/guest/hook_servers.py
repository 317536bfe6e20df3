"""A hook server in koordlet's place: it registers itself while the proxy runs, and goes away again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.e2e.koordinator import qos
from tests.e2e.values import BURSTABLE
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server import HookServing, serve
from tests.hooks.remote.registration_files import content
from tests.node.guest.machine import Journal, UnexpectedError
from tests.node.guest.node import Check, Node
from tests.node.guest.pods import Case, goes_away, has_its_values

_FOLDER = Path("/etc/runtime/hookserver.d")
# Source: koordlet's default, /var/run/koordlet/koordlet.sock.
_SOCKET = Path("/run/koordlet/koordlet.sock")
_SHARES = 2048

_CASE = Case("hooked", "burstable", BURSTABLE, qos("LS"), applied=replace(BURSTABLE, cpu_shares=_SHARES))


def koordlets_way_works(node: Node) -> str:
    """It registers in the default folder, changes a container, and is left alone afterwards."""
    _SOCKET.parent.mkdir()
    serving = HookServing(Behaviour(overlay={"cpu_shares": _SHARES}))
    server = serve(_SOCKET, serving)
    registration = _FOLDER / "koordlet.json"
    journal = Journal()
    try:
        registration.write_text(content(str(_SOCKET)))
        used = journal.wait_for("hook server .* is used")
        seen = has_its_values(_CASE, node)
        goes_away(_CASE.title, node)
        registration.unlink()
        journal.wait_for("hook server .* is no longer used")
    finally:
        registration.unlink(missing_ok=True)
        server.stop(None).wait()
    if not serving.asked:
        raise UnexpectedError(f"the server was not asked: {used}")
    return seen


CHECKS = (Check("a hook server registers, is asked and goes away", koordlets_way_works),)
