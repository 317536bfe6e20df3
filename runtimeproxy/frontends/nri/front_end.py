"""NRI: a plugin of the runtime, which asks it about containers and tells it of pods.

The kubelet keeps the runtime's socket. Values of pods go to their files when their sandbox is run, those of
containers into the runtime's messages and, before the container's program runs, to their files. Labels and
cgroup parents cannot be changed in this mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from runtimeproxy.frontends.front_end import FrontEnd
from runtimeproxy.frontends.lock import take_host, unlock_host
from runtimeproxy.frontends.nri.state import NriState

if TYPE_CHECKING:
    from runtimeproxy.background import ThreadPools
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.core import Core
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.pods.runtime_client import GrpcRuntimeClient


class NriPlugin(FrontEnd):
    """Answers the runtime's requests; its own socket is that of the API. Used in the event loop's thread.

    Attributes:
        state: The connection with the runtime, for whatever shows it.
        bypass: While it is set all requests are answered without a change, and nothing is written.
    """

    mode = "nri"
    serves_kubelet = False

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.state = NriState()
        self._environ = environ
        self._lock_fd = -1

    @classmethod
    def carried_fields(cls) -> CarriedFields:
        from runtimeproxy.hooks.carried import CarriedFields
        from runtimeproxy.hooks.fields import ANNOTATIONS, DEVICES, ENV, MOUNTS, RESOURCES, UNIFIED
        from runtimeproxy.hooks.policy import Hook

        asked = (each for each in Hook if not each.startswith("evaluate_"))
        return CarriedFields(
            cls.mode,
            {
                **dict.fromkeys(asked, ()),
                Hook.PRE_CREATE_CONTAINER: {RESOURCES, UNIFIED, ANNOTATIONS, ENV, MOUNTS, DEVICES},
                Hook.PRE_UPDATE_CONTAINER_RESOURCES: {RESOURCES, UNIFIED},
            },
            files_before_start=True,
        )

    @property
    def summaries(self) -> tuple[str, str]:
        return "; ".join(filter(None, (self.state.summary, "bypass is on" if self.bypass else ""))), ""

    def open(self, settings: Settings, own_socket: str) -> None:
        self._lock_fd, self.listener = take_host(settings, self._environ)

    async def join(
        self, core: Core, client: GrpcRuntimeClient, settings: Settings, threads: ThreadPools, spawn: Spawn
    ) -> None:
        return

    def decide(self) -> None:
        return

    async def end(self) -> None:
        # Another front end may run now.
        unlock_host(self._lock_fd)
