"""A runtime that does not ask the daemon as its plugin, or not for everything."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

import grpc

from cri_api.nri.v1alpha1 import api_pb2 as nri
from runtimeproxy.testing import (
    CgroupDriver,
    FakeRuntime,
    Hostile,
    NriAdaptation,
    NriOptions,
    NriRuntimeState,
    PodCgroups,
)
from tests.daemon.conftest import PATIENT_NRI
from tests.daemon.driving import batch_pod
from tests.daemon.failures.policies import CONTAINER
from tests.daemon.failures.scene import Row, Scene, failures, write_policy
from tests.daemon.test_standalone import explain
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.testing.nri_plugin import registered

OWN: Final = "50-koord-runtime-proxy"


def prepared(
    scene: Scene, options: NriOptions | None = None
) -> tuple[ProxyProcess, FakeRuntime, NriAdaptation]:
    """A daemon in mode nri that is not started, and its runtime."""
    adaptation = NriAdaptation(scene.folder / "nri.sock", options or PATIENT_NRI)
    state = NriRuntimeState(adaptation, PodCgroups(CgroupDriver.CGROUPFS, scene.files))
    runtime = scene.stack.enter_context(FakeRuntime(scene.folder / "nri-runtime.sock", state=state))
    daemon = scene.prepare(
        f'[daemon]\nmode = "nri"\nlock = "{scene.folder}/front-end.lock"\n'
        f'[nri]\nsocket = "{adaptation.socket_path}"\n'
    )
    daemon.options = replace(daemon.options, runtime_endpoint=str(runtime.socket_path))
    return daemon, runtime, adaptation


def start_connected(scene: Scene, daemon: ProxyProcess, adaptation: NriAdaptation) -> None:
    """Starts a daemon, and waits until both ends know that it is connected, the runtime last."""
    daemon.start()
    scene.wait_for(daemon, "nri_connected")
    adaptation.wait_for_plugins(OWN)


def start_pod(scene: Scene, runtime: FakeRuntime, name: str = "batch") -> None:
    with CriClient(runtime.socket_path) as client:
        made = batch_pod(client, name)
        scene.files.make(made.config.linux.cgroup_parent)
        made.run().create().start()


def socket_is_missing(scene: Scene) -> ProxyProcess:
    daemon, _, adaptation = prepared(scene)
    adaptation.stop()
    daemon.start()
    scene.wait_for_zero(daemon, "nri_connected")
    daemon.wait_for_state("STATUS=NRI plugin, not connected")
    found = daemon.run("status")
    assert found.returncode == 1
    assert str(adaptation.socket_path) in found.stdout
    return daemon


def runtime_speaks_something_else(scene: Scene) -> ProxyProcess:
    daemon, _, adaptation = prepared(scene)
    adaptation.hostile.extend([Hostile.GARBAGE, Hostile.CLOSED] * 1000)
    daemon.start()
    scene.wait_for_zero(daemon, "nri_connected")
    return daemon


def connection_is_lost(scene: Scene) -> ProxyProcess:
    daemon, runtime, adaptation = prepared(scene)
    start_connected(scene, daemon, adaptation)
    # Until the pod is there the runtime takes no plugin.
    adaptation.hostile.extend([Hostile.CLOSED] * 1000)
    adaptation.drop(OWN)
    scene.wait_for(daemon, "nri_connections_lost_total")
    start_pod(scene, runtime)
    adaptation.hostile.clear()
    scene.wait_for(daemon, "nri_undecided_containers_total")
    adaptation.wait_for_plugins(OWN)
    return daemon


def policies_are_late(scene: Scene) -> ProxyProcess:
    fifo = scene.folder / "fifo"
    os.mkfifo(fifo)
    daemon, runtime, adaptation = prepared(scene, NriOptions(request_timeout_s=1.0))
    write_policy(daemon, "hanging", f"timeout_s = 60.0\n{CONTAINER}    open({str(fifo)!r}).read()")
    start_connected(scene, daemon, adaptation)
    start_pod(scene, runtime)
    scene.wait_for(daemon, "policy_failures_total", policy="hanging", cause="timed_out")
    return daemon


def runtime_drops_a_field(scene: Scene) -> ProxyProcess:
    options = replace(PATIENT_NRI, ignored=frozenset({"linux.resources.memory"}))
    daemon, runtime, adaptation = prepared(scene, options)
    start_connected(scene, daemon, adaptation)
    start_pod(scene, runtime)
    scene.wait_for(daemon, "nri_uncarried_fields")

    def is_written() -> bool:
        # The daemon knows it once it has written all of the container's files.
        fields = {each.name: each for each in explain(daemon, "default/batch").targets[1].fields}
        limit, shares = fields["memory.limit_in_bytes"], fields["cpu.shares"]
        assert shares.way == shares.WAY_MESSAGE
        return (limit.observed_value, limit.way) == (limit.resolved, limit.WAY_FILE)

    wait_until(is_written, "the limit by file")
    return daemon


class Beside:
    """Another plugin, which refuses the first container."""

    def __init__(self, adaptation: NriAdaptation) -> None:
        self._adaptation = adaptation
        self._end: Future[Callable[[], Any]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> None:
        self._thread.start()
        self._adaptation.wait_for_plugins(OWN, "90-beside")

    def __exit__(self, *_: object) -> None:
        self._end.result()()
        self._thread.join()

    async def _serve(self) -> None:
        ended, refusals = asyncio.Event(), ["no"]
        loop = asyncio.get_running_loop()
        events = 1 << (nri.CREATE_CONTAINER - 1)
        async with registered(self._adaptation.socket_path, "beside", "90", events) as plugin:
            plugin.answers["CreateContainer"] = lambda _: (
                refusals.pop() if refusals else nri.CreateContainerResponse()
            )
            self._end.set_result(lambda: loop.call_soon_threadsafe(ended.set))
            await ended.wait()


def creation_fails(scene: Scene) -> ProxyProcess:
    daemon, runtime, adaptation = prepared(scene)
    daemon.start()
    scene.wait_for(daemon, "nri_connected")
    with Beside(adaptation), CriClient(runtime.socket_path) as client:
        made = batch_pod(client)
        scene.files.make(made.config.linux.cgroup_parent)
        made.run()
        try:
            made.create()
        except grpc.RpcError:
            # As the kubelet does.
            made.create()
        made.start()
        scene.wait_for(daemon, "nri_failed_creates_total")
        path = f"{made.config.linux.cgroup_parent}/{made.container}"
        wait_until(lambda: scene.files.read(path, "memory.max") != "max", "the values by file")
    return daemon


ROWS: Final = {
    "mode `nri`: the runtime's socket for plugins": Row(
        socket_is_missing, lambda s: not s.nri.is_connected and "nri.sock" in str(s.problems)
    ),
    "mode `nri`: what listens there refuses": Row(
        runtime_speaks_something_else, lambda s: not s.nri.is_connected and bool(s.nri.problem)
    ),
    "mode `nri`: the connection ends": Row(
        connection_is_lost, lambda s: s.nri.is_connected and s.nri.lost_connections > 0 and not s.problems
    ),
    "mode `nri`: policies are not ready": Row(
        policies_are_late, lambda s: failures(s, "hanging").timed_out > 0
    ),
    "mode `nri`: the runtime drops a field": Row(
        runtime_drops_a_field,
        lambda s: "resources.memory_limit_bytes" in {each.field for each in s.nri.not_carried},
    ),
    "mode `nri`: the runtime does not create": Row(creation_fails, lambda s: s.nri.failed_creates > 0),
}
