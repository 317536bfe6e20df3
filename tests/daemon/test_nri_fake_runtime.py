"""NRI mode: a real daemon beside the fake runtime, whose lists and NRI events are of one state."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from cri_api.nri.v1alpha1 import api_pb2 as nri
from runtimeproxy.testing import (
    CgroupDriver,
    CgroupFiles,
    FakeRuntime,
    Hostile,
    NriAdaptation,
    NriOptions,
    NriRuntimeState,
    PodCgroups,
)
from tests.daemon.conftest import PATIENT_NRI, Daemons
from tests.daemon.driving import BATCH_SHARES, Pod, batch_pod
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.testing.nri_plugin import registered

PLUGIN = "50-koord-runtime-proxy"
CREATIONS = 1 << (nri.CREATE_CONTAINER - 1)
MEMORY_BYTES = 128 << 20


@pytest.fixture
def state(socket_folder: Path, cgroup_files: CgroupFiles) -> NriRuntimeState:
    adaptation = NriAdaptation(socket_folder / "nri.sock", PATIENT_NRI)
    return NriRuntimeState(adaptation, PodCgroups(CgroupDriver.CGROUPFS, cgroup_files))


@pytest.fixture
def runtime(socket_folder: Path, state: NriRuntimeState) -> Iterator[FakeRuntime]:
    with FakeRuntime(socket_folder / "runtime.sock", state=state) as fake:
        yield fake


@pytest.fixture
def configuration(socket_folder: Path, state: NriRuntimeState) -> str:
    lock = socket_folder / "front-end.lock"
    return f'[daemon]\nmode = "nri"\nlock = "{lock}"\n[nri]\nsocket = "{state.nri.socket_path}"\n'


@pytest.fixture
def kubelet(runtime: FakeRuntime) -> Iterator[CriClient]:
    with CriClient(runtime.socket_path) as client:
        yield client


def shares_and_limit(state: NriRuntimeState, pod: Pod) -> tuple[int, int]:
    resources = state.find_container(pod.container).resources
    return resources.cpu_shares, resources.memory_limit_in_bytes


def test_a_whole_life(
    daemons: Daemons,
    state: NriRuntimeState,
    configuration: str,
    kubelet: CriClient,
    cgroup_files: CgroupFiles,
) -> None:
    daemons.start(configuration)
    state.nri.wait_for_plugins(PLUGIN)
    pod = batch_pod(kubelet, "web").run().create()
    assert shares_and_limit(state, pod) == (BATCH_SHARES, MEMORY_BYTES)
    pod.start()
    path = state.cgroup_path(pod.container)
    assert cgroup_files.read(path, "memory.max") == str(MEMORY_BYTES)
    # The kubelet's own limit does not count for a batch pod.
    pod.update(64 << 20)
    assert shares_and_limit(state, pod) == (BATCH_SHARES, MEMORY_BYTES)
    pod.remove()
    assert not state.nri.record.problems


def test_what_was_made_while_the_plugin_was_away_gets_its_values(
    daemons: Daemons, state: NriRuntimeState, configuration: str, kubelet: CriClient, runtime: FakeRuntime,
    cgroup_files: CgroupFiles,
) -> None:  # fmt: skip
    before = batch_pod(kubelet, "before").run().create().start()
    daemons.start(configuration)
    state.nri.wait_for_plugins(PLUGIN)

    def weight(pod: Pod) -> str:
        return cgroup_files.read(state.cgroup_path(pod.container), "cpu.weight")

    with_values = weight(batch_pod(kubelet, "after").run().create().start())
    assert with_values != "1"
    wait_until(lambda: weight(before) == with_values, "the values of a container that ran before")
    runtime.restart()
    state.nri.wait_for_plugins(PLUGIN)
    again = batch_pod(kubelet, "again").run().create().start()
    assert weight(again) == with_values


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(each, marks=[pytest.mark.slow] if each in (Hostile.FLOOD, Hostile.UNREAD) else [])
        for each in Hostile
    ],
)
def test_after_a_hostile_runtime_a_good_one_is_found(
    what: Hostile, daemons: Daemons, state: NriRuntimeState, configuration: str, kubelet: CriClient
) -> None:
    state.nri.hostile.append(what)
    daemon = daemons.start(configuration)
    state.nri.wait_for_plugins(PLUGIN)
    pod = batch_pod(kubelet, "web").run().create().start()
    assert shares_and_limit(state, pod) == (BATCH_SHARES, MEMORY_BYTES)
    assert daemon.alive()


def test_what_is_made_right_after_the_synchronization_gets_its_values(
    daemons: Daemons,
    state: NriRuntimeState,
    configuration: str,
    kubelet: CriClient,
    cgroup_files: CgroupFiles,
) -> None:
    made: list[Pod] = []
    state.nri.on_synchronized = lambda: made.append(batch_pod(kubelet, "between").run().create().start())
    # Should the list that follows the synchronization have come too early, the next one tells of it.
    daemons.start(f"{configuration}[state]\nresync_interval_s = 1\n")
    state.nri.wait_for_plugins(PLUGIN)
    state.nri.on_synchronized = lambda: None
    path = state.cgroup_path(made[0].container)
    wait_until(lambda: cgroup_files.read(path, "cpu.max").startswith("50000"), "the quota by file")


@pytest.mark.parametrize("learns_owners", [False, True])
async def test_a_daemon_that_hangs_fails_a_creation_only_if_it_validates(
    learns_owners: bool,
    daemons: Daemons,
    state: NriRuntimeState,
    configuration: str,
    kubelet: CriClient,
) -> None:
    config = f"{configuration}learn_owners = {str(learns_owners).lower()}\n"
    daemon = await asyncio.to_thread(daemons.start, config)
    await asyncio.to_thread(state.nri.wait_for_plugins, PLUGIN)
    async with registered(state.nri.socket_path, "later", "90", CREATIONS) as later:
        await asyncio.to_thread(state.nri.wait_for_plugins, PLUGIN, "90-later")
        pod = await asyncio.to_thread(lambda: batch_pod(kubelet, "web").run())

        def hang(_: nri.CreateContainerRequest) -> nri.CreateContainerResponse:
            # Not before: a busy machine may hold a daemon up for as long that does not hang.
            state.nri.options = NriOptions(request_timeout_s=1.0)
            daemon.signal(signal.SIGSTOP)
            return nri.CreateContainerResponse()

        later.answers["CreateContainer"] = hang
        try:
            if learns_owners:
                with pytest.raises(grpc.RpcError, match="did not answer ValidateContainerAdjustment"):
                    await asyncio.to_thread(pod.create)
            else:
                await asyncio.to_thread(pod.create)
        finally:
            daemon.signal(signal.SIGCONT)
    assert len(state.containers) == (not learns_owners)


def test_an_old_runtime(
    daemons: Daemons, state: NriRuntimeState, configuration: str, kubelet: CriClient
) -> None:
    state.nri.options = replace(NriOptions.containerd_1_7(), request_timeout_s=30.0)
    daemons.start(configuration)
    state.nri.wait_for_plugins(PLUGIN, timeout_s=30)
    pod = batch_pod(kubelet, "web").run().create().start()
    assert shares_and_limit(state, pod) == (BATCH_SHARES, MEMORY_BYTES)
    events = {each.request.event for each in state.nri.record.of("StateChange")}
    assert nri.START_CONTAINER in events
