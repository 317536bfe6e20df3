"""Runtimes for the load: the fake one in this process, or containerd; and pods in them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtimeproxy.testing import (
    CgroupDriver,
    CgroupFiles,
    FakeRuntime,
    PodCgroups,
    RecordedCall,
    RuntimeState,
)
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CriClient
from tests.lab.node import remove_sandbox, run_sandbox
from tests.lab.pods import sandbox_config
from tests.lab.proxy_process import ProxyOptions
from tests.restarts.orders import Order, Workers, batch_pod, order_of

_CREATE_S = 0.05
"""About what containerd takes to create a container."""

RuntimeName = Literal["fake", "containerd"]


@dataclass(frozen=True)
class Stand:
    """A runtime that runs, and a short folder for whatever stands in front of it.

    `recorded` are the CreateContainer calls that reached the runtime, None where it does not tell.
    """

    folder: Path
    socket: Path
    stop: Callable[[], None]
    start: Callable[[], None]
    has_cgroups: bool
    recorded: Callable[[], list[RecordedCall]] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def proxy_options(self) -> ProxyOptions:
        """How a proxy in front of it is started."""
        return ProxyOptions(str(self.socket), environment=self.environment)

    @contextmanager
    def order(self, name: str, endpoint: Path, workers: Workers) -> Iterator[Order]:
        """Runs a pod through an endpoint and returns what a caller shall do in it; removes the pod."""
        pod = batch_pod(name)
        logs = self.folder / name
        logs.mkdir()
        with ExitStack() as stack:
            if self.has_cgroups:
                stack.enter_context(cgroup_v1.pod_cgroup(pod.cgroup_parent))
            with CriClient(endpoint) as client:
                client.wait_until_serving(30)
                sandbox_id = run_sandbox(client, sandbox_config(pod, str(logs)))
            stack.callback(self._remove, sandbox_id)
            yield order_of(pod, sandbox_id, str(logs), workers)

    def _remove(self, sandbox_id: str) -> None:
        with CriClient(self.socket) as client:
            client.wait_until_serving(30)
            remove_sandbox(client, sandbox_id)


@contextmanager
def stand(runtime: RuntimeName) -> Iterator[Stand]:
    """Runs a runtime of that name; containerd is the one with events."""
    folder = Path(tempfile.mkdtemp(prefix="load-", dir="/tmp"))
    try:
        with _fake(folder) if runtime == "fake" else _containerd(folder) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _fake(folder: Path) -> Iterator[Stand]:
    cgroups = PodCgroups(CgroupDriver.CGROUPFS, CgroupFiles(folder / "cgroup", version=2))
    environment = {"KOORD_RUNTIMEPROXY_CGROUPS_ROOT": str(folder / "cgroup")}
    with FakeRuntime(folder / "runtime.sock", state=RuntimeState(cgroups)) as runtime:
        runtime.on("CreateContainer", delay_s=_CREATE_S)
        yield Stand(
            folder,
            runtime.socket_path,
            runtime.stop,
            runtime.start,
            has_cgroups=False,
            recorded=lambda: runtime.recorded.of("CreateContainer"),
            environment=environment,
        )


@contextmanager
def _containerd(folder: Path) -> Iterator[Stand]:
    with Containerd("2.2") as runtime:
        yield Stand(folder, runtime.socket, runtime.stop, runtime.start, has_cgroups=True)
