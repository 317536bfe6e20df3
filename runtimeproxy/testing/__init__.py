"""A fake container runtime for tests and demonstrations, on a real socket.

Importing this package imports nothing heavy: names are loaded when they are first used. See the
README beside this file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtimeproxy.testing.behaviours import CallError
    from runtimeproxy.testing.builders import preload
    from runtimeproxy.testing.cgroups import CgroupDriver, CgroupFiles, PodCgroups
    from runtimeproxy.testing.checking import check_change
    from runtimeproxy.testing.dispatch import RecordedCall
    from runtimeproxy.testing.koord_proxy import KoordProxy, StartProxy
    from runtimeproxy.testing.nri_hostile import Hostile
    from runtimeproxy.testing.nri_record import NriOptions
    from runtimeproxy.testing.nri_runtime import NriAdaptation
    from runtimeproxy.testing.nri_state import NriRuntimeState
    from runtimeproxy.testing.server import FakeRuntime, FakeRuntimeProcess
    from runtimeproxy.testing.state import RuntimeState

__all__ = [
    "CallError",
    "CgroupDriver",
    "CgroupFiles",
    "FakeRuntime",
    "FakeRuntimeProcess",
    "Hostile",
    "KoordProxy",
    "NriAdaptation",
    "NriOptions",
    "NriRuntimeState",
    "PodCgroups",
    "RecordedCall",
    "RuntimeState",
    "StartProxy",
    "check_change",
    "preload",
]

_HOMES = {
    "CallError": "behaviours",
    "CgroupDriver": "cgroups",
    "CgroupFiles": "cgroups",
    "FakeRuntime": "server",
    "FakeRuntimeProcess": "server",
    "Hostile": "nri_hostile",
    "KoordProxy": "koord_proxy",
    "NriAdaptation": "nri_runtime",
    "NriOptions": "nri_record",
    "NriRuntimeState": "nri_state",
    "PodCgroups": "cgroups",
    "RecordedCall": "dispatch",
    "RuntimeState": "state",
    "StartProxy": "koord_proxy",
    "check_change": "checking",
    "preload": "builders",
}


def __getattr__(name: str) -> object:
    """Loads a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
