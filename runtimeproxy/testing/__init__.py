"""A fake container runtime for tests and demonstrations, on a real socket.

Importing this package imports nothing heavy: names are loaded when they are first used. See the
README beside this file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtimeproxy.testing.cgroup_files import CgroupFiles
    from runtimeproxy.testing.cgroup_paths import CgroupDriver
    from runtimeproxy.testing.checking import check_change
    from runtimeproxy.testing.failures import CallError
    from runtimeproxy.testing.koord_proxy import KoordProxy, StartProxy
    from runtimeproxy.testing.pod_cgroups import PodCgroups
    from runtimeproxy.testing.preloading import preload
    from runtimeproxy.testing.process import FakeRuntimeProcess
    from runtimeproxy.testing.records import RecordedCall
    from runtimeproxy.testing.server import FakeRuntime
    from runtimeproxy.testing.state import RuntimeState

__all__ = [
    "CallError",
    "CgroupDriver",
    "CgroupFiles",
    "FakeRuntime",
    "FakeRuntimeProcess",
    "KoordProxy",
    "PodCgroups",
    "RecordedCall",
    "RuntimeState",
    "StartProxy",
    "check_change",
    "preload",
]

_HOMES = {
    "CallError": "failures",
    "CgroupDriver": "cgroup_paths",
    "CgroupFiles": "cgroup_files",
    "FakeRuntime": "server",
    "FakeRuntimeProcess": "process",
    "KoordProxy": "koord_proxy",
    "PodCgroups": "pod_cgroups",
    "RecordedCall": "records",
    "RuntimeState": "state",
    "StartProxy": "koord_proxy",
    "check_change": "checking",
    "preload": "preloading",
}


def __getattr__(name: str) -> object:
    """Loads a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
