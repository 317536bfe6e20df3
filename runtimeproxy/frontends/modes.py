"""The front ends by mode, for commands that need no daemon. Each is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtimeproxy.hooks.carried import CarriedFields


def carried_in(mode: str) -> CarriedFields:
    """Returns which fields the front end of this `daemon.mode` carries."""
    if mode == "nri":
        from runtimeproxy.frontends.nri.front_end import NriPlugin

        return NriPlugin.carried_fields()
    if mode == "standalone":
        from runtimeproxy.frontends.standalone.front_end import Standalone

        return Standalone.carried_fields()
    from runtimeproxy.frontends.cri_proxy.front_end import CriProxy

    return CriProxy.carried_fields()
