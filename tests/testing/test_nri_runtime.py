"""The fake runtime's side of NRI, with real connections."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import grpc
import pytest

from cri_api.nri.v1alpha1 import api_pb2 as nri
from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.frontends.nri.connection import CallError as NriCallError
from runtimeproxy.frontends.nri.connection import ConnectionLostError
from runtimeproxy.testing import (
    CallError,
    CgroupDriver,
    CgroupFiles,
    FakeRuntime,
    Hostile,
    NriAdaptation,
    NriOptions,
    NriRuntimeState,
    PodCgroups,
)
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from runtimeproxy.testing.state import FakeContainer
from tests.testing.nri_plugin import NriPluginDouble, registered

P = ParamSpec("P")
T = TypeVar("T")

WITHOUT_VALIDATION = (1 << (nri.VALIDATE_CONTAINER_ADJUSTMENT - 1)) - 1
HASTY = NriOptions(request_timeout_s=0.2)
"""Set once a plugin is registered: on a busy machine that takes longer."""
SHARES = api_pb2.LinuxContainerResources(cpu_shares=1024, memory_limit_in_bytes=1 << 28)


@pytest.fixture
def files(tmp_path: Path) -> CgroupFiles:
    return CgroupFiles(tmp_path / "cgroup")


@pytest.fixture
def state(socket_folder: Path, files: CgroupFiles) -> Iterator[NriRuntimeState]:
    made = NriRuntimeState(
        NriAdaptation(socket_folder / "nri.sock"), PodCgroups(CgroupDriver.CGROUPFS, files)
    )
    made.open()
    yield made
    made.close()


async def run(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Runs what waits for the plugin, whose loop this is."""
    return await asyncio.wait_for(asyncio.to_thread(function, *arguments, **keywords), 60)


@asynccontextmanager
async def plugin_of(
    state: NriRuntimeState, name: str = "double", index: str = "10", events: int = 0
) -> AsyncIterator[NriPluginDouble]:
    """A plugin that is asked."""
    async with registered(state.nri.socket_path, name, index, events) as plugin:
        await run(state.nri.record.wait_for, lambda: f"{index}-{name}" in state.nri.plugins, "the plugin")
        yield plugin


def adjustment(**fields: object) -> nri.CreateContainerResponse:
    return nri.CreateContainerResponse(adjust=nri.ContainerAdjustment(**fields))  # type: ignore[arg-type]


def shares(value: int) -> nri.LinuxResources:
    return nri.LinuxResources(cpu=nri.LinuxCPU(shares=nri.OptionalUInt64(value=value)))


def update_of(container_id: str, resources: nri.LinuxResources) -> nri.ContainerUpdate:
    return nri.ContainerUpdate(container_id=container_id, linux=nri.LinuxContainerUpdate(resources=resources))


async def test_a_whole_life_in_order(state: NriRuntimeState, files: CgroupFiles) -> None:
    async with plugin_of(state) as plugin:
        pod = await run(state.run_sandbox, pod_sandbox_config("web", annotations={"a": "b"}))
        container = await run(state.create_container, pod.id, container_config(resources=SHARES))
        await run(state.start_container, container.id)
        await run(state.update_container, container.id, api_pb2.LinuxContainerResources(cpu_shares=512), {})
        await run(state.update_sandbox, pod.id, SHARES, SHARES)
        await run(state.remove_sandbox, pod.id)
    assert plugin.methods() == [
        *("Configure", "Synchronize", "RunPodSandbox"),
        *("CreateContainer", "ValidateContainerAdjustment", "PostCreateContainer"),
        *("StartContainer", "PostStartContainer", "UpdateContainer", "PostUpdateContainer"),
        *("UpdatePodSandbox", "PostUpdatePodSandbox"),
        *("StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"),
    ]
    asked = dict(plugin.asked)
    assert asked["RunPodSandbox"].pod.name == "web"
    assert asked["RunPodSandbox"].pod.annotations["a"] == "b"
    new = asked["CreateContainer"].container
    assert (new.id, new.state, new.pid) == (container.id, nri.CONTAINER_UNKNOWN, 0)
    assert list(new.env) == [b"PATH=/bin"]
    assert new.linux.resources.cpu.shares.value == 1024
    assert not new.linux.resources.cpu.HasField("quota")
    assert asked["StartContainer"].container.pid != 0
    assert asked["UpdateContainer"].linux_resources.cpu.shares.value == 512
    # As containerd's: what an update does not set is there as zero.
    assert asked["UpdateContainer"].linux_resources.cpu.HasField("quota")
    assert asked["PostUpdateContainer"].container.linux.resources.cpu.shares.value == 512
    assert asked["StopContainer"].container.state == nri.CONTAINER_STOPPED
    assert state.specs == {}


async def test_an_adjustment_is_in_the_cgroup_before_the_program_runs(
    state: NriRuntimeState, files: CgroupFiles
) -> None:
    seen: dict[str, str] = {}
    async with plugin_of(state) as plugin:
        resources = nri.LinuxResources(
            cpu=nri.LinuxCPU(shares=nri.OptionalUInt64(value=2), cpus="0-1"),
            unified={"cpu.idle": "1"},
            pids=nri.LinuxPids(limit=100),
        )
        plugin.answers["CreateContainer"] = lambda _: adjustment(
            annotations={"added": "1"},
            env=[nri.KeyValue(key="A", value=b"\xff"), nri.KeyValue(key="-PATH")],
            mounts=[nri.Mount(destination="/x", source="/y", type="bind")],
            linux=nri.LinuxContainerAdjustment(
                resources=resources, oom_score_adj=nri.OptionalInt(value=-5)
            ),
        )  # fmt: skip

        def start(request: nri.StartContainerRequest) -> nri.StartContainerResponse:
            path = state.cgroup_path(request.container.id)
            for name in ("cpuset.cpus", "cpu.idle", "pids.max", "cpu.weight"):
                seen[name] = files.read(path, name)
            return nri.StartContainerResponse()

        plugin.answers["StartContainer"] = start
        pod = await run(state.run_sandbox, pod_sandbox_config())
        container = await run(state.create_container, pod.id, container_config(resources=SHARES))
        await run(state.start_container, container.id)
    assert seen == {"cpuset.cpus": "0-1", "cpu.idle": "1", "pids.max": "100", "cpu.weight": "1"}
    assert container.resources.cpu_shares == 2
    assert container.resources.memory_limit_in_bytes == 1 << 28
    assert container.resources.oom_score_adj == -5
    spec = state.specs[container.id]
    assert list(spec.env) == [b"A=\xff"]
    assert spec.annotations["added"] == "1"
    assert [each.destination for each in spec.mounts] == ["/x"]


async def test_the_reply_to_an_update_takes_the_place_of_the_request(state: NriRuntimeState) -> None:
    async with plugin_of(state) as plugin:
        pod = await run(state.run_sandbox, pod_sandbox_config())
        container = await run(state.create_container, pod.id, container_config(resources=SHARES))
        plugin.answers["UpdateContainer"] = lambda request: nri.UpdateContainerResponse(
            update=[update_of(request.container.id, shares(7))]
        )
        wanted = api_pb2.LinuxContainerResources(cpu_shares=512, cpu_quota=5000)
        await run(state.update_container, container.id, wanted, {"n": "1"})
    assert (container.resources.cpu_shares, container.resources.cpu_quota) == (7, 5000)
    assert container.update_annotations == {"n": "1"}


async def test_updates_of_other_containers(state: NriRuntimeState) -> None:
    pod = state.run_sandbox(pod_sandbox_config())
    one, two = (state.create_container(pod.id, container_config(name)) for name in ("one", "two"))
    async with plugin_of(state) as plugin:
        assert await plugin.update(update_of(one.id, shares(11)), update_of("none", shares(12))) == ["none"]
        assert one.resources.cpu_shares == 11
        plugin.answers["StopContainer"] = lambda _: nri.StopContainerResponse(
            update=[update_of(one.id, shares(13))]
        )
        await run(state.start_container, two.id)
        await run(state.stop_container, two.id)
        assert one.resources.cpu_shares == 13
        plugin.answers["CreateContainer"] = lambda request: nri.CreateContainerResponse(
            update=[update_of(request.container.id, shares(14))]
        )
        with pytest.raises(CallError, match="asked update of"):
            await run(state.create_container, pod.id, container_config("three"))


async def live(state: NriRuntimeState) -> FakeContainer:
    pod = await run(state.run_sandbox, pod_sandbox_config())
    container = await run(state.create_container, pod.id, container_config())
    await run(state.start_container, container.id)
    return container


@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "StartContainer"])
async def test_what_a_plugin_refuses_is_not_there(
    method: str, state: NriRuntimeState, files: CgroupFiles
) -> None:
    async with plugin_of(state) as plugin:
        plugin.answers[method] = lambda _: "not here"
        with pytest.raises(CallError, match="UNKNOWN: not here"):
            await live(state)
    assert len(state.sandboxes) == (method != "RunPodSandbox")
    assert len(state.containers) == (method == "StartContainer")
    if method == "RunPodSandbox":
        assert plugin.methods()[-2:] == ["StopPodSandbox", "RemovePodSandbox"]
    if method == "CreateContainer":
        assert plugin.methods()[-2:] == ["StopContainer", "RemoveContainer"]
    if method == "StartContainer":
        assert plugin.methods()[-1] == "StopContainer"
        path = state.cgroup_path(next(iter(state.containers)))
        assert not files.folder(path).exists()


@pytest.mark.parametrize("late", ["CreateContainer", "ValidateContainerAdjustment"])
async def test_a_plugin_that_validates_and_is_late_fails_the_creation(
    late: str, state: NriRuntimeState
) -> None:
    async with plugin_of(state) as plugin:
        plugin.answers[late] = lambda _: None
        pod = await run(state.run_sandbox, pod_sandbox_config())
        state.nri.options = HASTY
        with pytest.raises(CallError, match="did not answer ValidateContainerAdjustment"):
            await run(state.create_container, pod.id, container_config())
        assert await plugin.reason == "closed by the peer"
    # It is missed once.
    await run(state.create_container, pod.id, container_config())


async def test_a_plugin_that_is_late_is_dropped_and_the_request_goes_on(state: NriRuntimeState) -> None:
    async with plugin_of(state, events=WITHOUT_VALIDATION) as plugin:
        plugin.answers["CreateContainer"] = lambda _: None
        pod = await run(state.run_sandbox, pod_sandbox_config())
        state.nri.options = HASTY
        container = await run(state.create_container, pod.id, container_config())
        assert container.id in state.containers
        assert await plugin.reason == "closed by the peer"
    assert state.nri.plugins == []
    assert any("did not answer CreateContainer" in each for each in state.nri.record.problems)


async def test_the_failure_policy_of_a_plugin_holds(state: NriRuntimeState) -> None:
    pod = await run(state.run_sandbox, pod_sandbox_config())
    plugin = NriPluginDouble()
    policy = nri.FailurePolicy(fail_request=True, keep_connected=True)
    plugin.answers["Configure"] = lambda _: nri.ConfigureResponse(failure_policy=policy)
    plugin.answers["CreateContainer"] = lambda _: None
    await plugin.register(state.nri.socket_path)
    await run(state.nri.wait_for_plugins, "10-double")
    state.nri.options = HASTY
    with pytest.raises(CallError, match="did not answer CreateContainer"):
        await run(state.create_container, pod.id, container_config())
    assert state.nri.plugins == ["10-double"]
    plugin.connection.close()


async def test_plugins_are_asked_in_the_order_of_their_indices(state: NriRuntimeState) -> None:
    async with plugin_of(state, "late", "90") as late, plugin_of(state, "early", "05") as early:
        assert state.nri.plugins == ["05-early", "90-late"]
        early.answers["CreateContainer"] = lambda _: adjustment(annotations={"a": "early"})
        pod = await run(state.run_sandbox, pod_sandbox_config())
        await run(state.create_container, pod.id, container_config())
        (seen,) = (request for method, request in late.asked if method == "CreateContainer")
        assert seen.container.annotations["a"] == "early"
        late.answers["CreateContainer"] = lambda _: adjustment(annotations={"a": "late"})
        with pytest.raises(
            CallError, match='plugins "90-late" and "05-early" both tried to set Annotations a'
        ):
            await run(state.create_container, pod.id, container_config())
        late.answers["CreateContainer"] = lambda _: adjustment(annotations={"-a": "", "a": "late"})
        container = await run(state.create_container, pod.id, container_config())
        assert state.specs[container.id].annotations["a"] == "late"


async def test_a_validator_sees_owners_and_may_reject(state: NriRuntimeState) -> None:
    only = 1 << (nri.VALIDATE_CONTAINER_ADJUSTMENT - 1)
    async with plugin_of(state) as plugin, plugin_of(state, "validator", "99", only) as validator:
        plugin.answers["CreateContainer"] = lambda _: adjustment(
            linux=nri.LinuxContainerAdjustment(resources=shares(2)), annotations={"a": "b"}
        )
        validator.answers["ValidateContainerAdjustment"] = lambda _: nri.ValidateContainerAdjustmentResponse(
            reject=True, reason="too light"
        )
        pod = await run(state.run_sandbox, pod_sandbox_config())
        with pytest.raises(CallError, match="too light"):
            await run(state.create_container, pod.id, container_config())
        _, request = validator.asked[-1]
        assert validator.methods() == ["Configure", "Synchronize", "ValidateContainerAdjustment"]
        owners = request.owners.owners[request.container.id]
        assert owners.simple[nri.CPUShares] == "10-double"
        assert owners.compound[nri.Annotations].owners["a"] == "10-double"
        assert request.adjust.linux.resources.cpu.shares.value == 2
        assert [each.name for each in request.plugins] == ["double"]


async def test_what_runs_is_synchronized_in_pieces(state: NriRuntimeState) -> None:
    state.nri.options = NriOptions(max_message_bytes=2000)
    pods = [state.run_sandbox(pod_sandbox_config(f"pod-{number}")) for number in range(5)]
    containers = [state.create_container(pod.id, container_config(resources=SHARES)) for pod in pods]
    for each in containers[1:]:
        state.start_container(each.id)
    state.exit_container(containers[4].id)
    plugin = NriPluginDouble()

    def answer(request: nri.SynchronizeRequest) -> nri.SynchronizeResponse:
        updates = [] if request.more else [update_of(containers[0].id, shares(3))]
        return nri.SynchronizeResponse(update=updates, more=request.more)

    plugin.answers["Synchronize"] = answer
    await plugin.register(state.nri.socket_path)
    await run(state.nri.wait_for_plugins, "10-double")
    pieces = [request for method, request in plugin.asked if method == "Synchronize"]
    assert len(pieces) > 1
    assert [each.more for each in pieces] == [True] * (len(pieces) - 1) + [False]
    assert all(each.ByteSize() <= 2000 for each in pieces)
    assert [each.id for piece in pieces for each in piece.pods] == [each.id for each in pods]
    found = {each.id: each.state for piece in pieces for each in piece.containers}
    assert found == {
        containers[0].id: nri.CONTAINER_CREATED,
        **{each.id: nri.CONTAINER_RUNNING for each in containers[1:4]},
    }
    assert containers[0].resources.cpu_shares == 3
    plugin.connection.close()


async def test_a_plugin_without_pieces_is_not_taken(state: NriRuntimeState) -> None:
    state.nri.options = NriOptions(max_message_bytes=100)
    for number in range(2):
        state.run_sandbox(pod_sandbox_config(f"pod-{number}"))
    plugin = NriPluginDouble()
    plugin.answers["Synchronize"] = lambda _: nri.SynchronizeResponse()
    await plugin.register(state.nri.socket_path)
    assert await plugin.reason == "closed by the peer"
    assert "plugin does not handle split sync requests" in state.nri.record.problems[-1]


async def test_events_that_the_runtime_does_not_know_are_refused(state: NriRuntimeState) -> None:
    state.nri.options = NriOptions.containerd_1_7()
    plugin = NriPluginDouble(events=1 << (nri.UPDATE_POD_SANDBOX - 1))
    await plugin.register(state.nri.socket_path)
    assert await plugin.reason == "closed by the peer"
    assert "invalid plugin events: 0x800" in state.nri.record.problems[-1]


async def test_an_old_runtime_has_state_changes_and_drops_fields(state: NriRuntimeState) -> None:
    state.nri.options = NriOptions.containerd_1_7()
    async with plugin_of(state) as plugin:
        plugin.answers["CreateContainer"] = lambda _: adjustment(
            linux=nri.LinuxContainerAdjustment(resources=shares(2), oom_score_adj=nri.OptionalInt(value=9))
        )
        pod = await run(state.run_sandbox, pod_sandbox_config())
        container = await run(state.create_container, pod.id, container_config())
        await run(state.start_container, container.id)
        await run(state.update_sandbox, pod.id, SHARES, SHARES)
    events = [request.event for method, request in plugin.asked if method == "StateChange"]
    assert events == [
        *(nri.RUN_POD_SANDBOX, nri.POST_CREATE_CONTAINER, nri.START_CONTAINER, nri.POST_START_CONTAINER)
    ]
    assert (container.resources.cpu_shares, container.resources.oom_score_adj) == (2, 1000)
    (configure,) = (request for method, request in plugin.asked if method == "Configure")
    assert (configure.NRI_version, configure.runtime_version) == ("", "v1.7.28")
    assert (configure.request_timeout, configure.registration_timeout) == (2000, 5000)


async def test_a_plugin_that_knows_state_changes_only_gets_them(state: NriRuntimeState) -> None:
    async with plugin_of(state) as plugin:
        plugin.answers["RunPodSandbox"] = lambda _: "unimplemented"
        await run(state.run_sandbox, pod_sandbox_config("web"))
    assert plugin.methods()[-2:] == ["RunPodSandbox", "StateChange"]
    assert plugin.asked[-1][1].event == nri.RUN_POD_SANDBOX
    assert plugin.asked[-1][1].pod.name == "web"


@pytest.mark.parametrize(
    ("name", "index"), [("", "10"), ("a b", "10"), ("a", "1"), ("a", "100"), ("a", "x1")]
)
async def test_names_and_indices_are_checked(name: str, index: str, state: NriRuntimeState) -> None:
    plugin = NriPluginDouble(name, index)
    with pytest.raises(NriCallError, match="invalid plugin"):
        await plugin.register(state.nri.socket_path)
    assert await plugin.reason == "closed by the peer"


async def test_a_plugin_that_says_nothing_is_sent_away(state: NriRuntimeState) -> None:
    state.nri.options = NriOptions(registration_timeout_s=0.1)
    _, writer = await asyncio.open_unix_connection(str(state.nri.socket_path))
    late = "plugin plugin was not started: late"
    await run(state.nri.record.wait_for, lambda: late in state.nri.record.problems, "the end of its time")
    # Another one has the usual time, and is taken.
    state.nri.options = NriOptions()
    async with plugin_of(state):
        pass
    writer.close()


async def test_a_restart_cuts_plugins_and_keeps_what_runs(state: NriRuntimeState) -> None:
    pod = state.run_sandbox(pod_sandbox_config())
    async with plugin_of(state) as plugin:
        await run(state.close)
        assert await plugin.reason == "closed by the peer"
        with pytest.raises(ConnectionLostError):
            await plugin.update()
    assert not state.nri.socket_path.exists()
    await run(state.open)
    async with plugin_of(state) as plugin:
        assert [each.id for each in plugin.asked[-1][1].pods] == [pod.id]
        await run(state.nri.drop, "10-double")
        assert await plugin.reason == "closed by the peer"


async def test_what_is_made_right_after_the_synchronization_has_no_event(state: NriRuntimeState) -> None:
    made: list[str] = []
    state.nri.on_synchronized = lambda: made.append(state.run_sandbox(pod_sandbox_config()).id)
    async with plugin_of(state) as plugin:
        assert len(made) == 1
        assert plugin.methods() == ["Configure", "Synchronize"]
        assert not plugin.asked[-1][1].pods


async def test_unified_fails_a_start_on_version_1(socket_folder: Path, tmp_path: Path) -> None:
    cgroups = PodCgroups(CgroupDriver.CGROUPFS, CgroupFiles(tmp_path / "cgroup", 1))
    state = NriRuntimeState(NriAdaptation(socket_folder / "nri.sock"), cgroups)
    pod = state.run_sandbox(pod_sandbox_config())
    resources = api_pb2.LinuxContainerResources(unified={"cpu.idle": "1"})
    container = state.create_container(pod.id, container_config(resources=resources))
    with pytest.raises(CallError, match="version 2"):
        state.start_container(container.id)
    assert container.state == api_pb2.CONTAINER_CREATED


@pytest.mark.parametrize("what", Hostile)
async def test_hostile_runtimes(what: Hostile, state: NriRuntimeState) -> None:
    state.nri.hostile.append(what)
    plugin = NriPluginDouble()
    with pytest.raises((ConnectionLostError, OSError, TimeoutError)):
        await plugin.register(state.nri.socket_path, timeout_s=0.3)
    is_quiet = what in {Hostile.SILENT, Hostile.FLOOD, Hostile.UNREAD}
    if is_quiet:
        assert plugin.connection.is_open
        plugin.connection.close("given up")
    reason = await asyncio.wait_for(plugin.reason, 20)
    assert (reason == "given up") == is_quiet
    async with plugin_of(state):
        # The next one is served.
        assert not state.nri.hostile


async def test_a_plugin_that_the_runtime_starts(state: NriRuntimeState, tmp_path: Path) -> None:
    # Its process has the time that a start takes on a busy machine.
    state.nri.options = NriOptions(registration_timeout_s=60.0)
    script = tmp_path / "plugin.py"
    script.write_text(
        "import asyncio, os\n"
        "from tests.testing.nri_plugin import *\n"
        "from runtimeproxy.frontends.nri.connection import use_inherited, launched\n"
        "async def main():\n"
        "    told = launched(os.environ)\n"
        "    plugin = NriPluginDouble('ignored', '00')\n"
        "    await use_inherited(told.descriptor, plugin.connection)\n"
        "    request = nri.RegisterPluginRequest(plugin_name='ignored', plugin_idx='00')\n"
        "    await plugin.connection.call('RegisterPlugin', request.SerializeToString(), 10)\n"
        "    await plugin.reason\n"
        "asyncio.run(main())\n"
    )
    process = await run(state.nri.launch, state, [sys.executable, str(script)], "42", "launched")
    try:
        await run(state.nri.wait_for_plugins, "42-launched")
        await run(state.run_sandbox, pod_sandbox_config())
        assert state.nri.record.of("RunPodSandbox")[0].plugin == "42-launched"
        await run(state.nri.drop, "42-launched")
        assert await run(process.wait, 20) == 0
    finally:
        process.kill()
        process.wait()


async def test_lists_and_events_are_of_one_runtime(fake_nri_runtime: FakeRuntime) -> None:
    state = fake_nri_runtime.state
    assert isinstance(state, NriRuntimeState)

    def live(plugin: NriPluginDouble) -> None:
        with grpc.insecure_channel(fake_nri_runtime.endpoint) as channel:
            stub = api_pb2_grpc.RuntimeServiceStub(channel)
            pod = pod_sandbox_config("web")
            sandbox = stub.RunPodSandbox(api_pb2.RunPodSandboxRequest(config=pod)).pod_sandbox_id

            def adjust(_: nri.CreateContainerRequest) -> nri.CreateContainerResponse:
                # A plugin may look into lists while it is asked: the new container is in none.
                assert not stub.ListContainers(api_pb2.ListContainersRequest()).containers
                return adjustment(linux=nri.LinuxContainerAdjustment(resources=shares(2)))

            plugin.answers["CreateContainer"] = adjust
            create = create_container_request(sandbox, container_config(), pod)
            made = stub.CreateContainer(create).container_id
            status = stub.ContainerStatus(api_pb2.ContainerStatusRequest(container_id=made)).status
            assert status.resources.linux.cpu_shares == 2
            plugin.answers["StartContainer"] = lambda _: "no"
            with pytest.raises(grpc.RpcError, match="no"):
                stub.StartContainer(api_pb2.StartContainerRequest(container_id=made))

    async with plugin_of(state) as plugin:
        await run(live, plugin)
        await run(fake_nri_runtime.restart)
        await plugin.reason
    async with plugin_of(state) as plugin:
        assert len(plugin.asked[-1][1].containers) == 1
