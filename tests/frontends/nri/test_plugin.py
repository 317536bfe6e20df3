"""The runtime's requests and the plugin's replies, with the services of the core."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from cri_api.nri.v1alpha1 import api_pb2 as nri
from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult
from runtimeproxy.errors import RefusalError
from runtimeproxy.frontends.modes import carried_in
from runtimeproxy.frontends.nri.containers import MOST_OWNED
from runtimeproxy.frontends.nri.messages import pod_record
from runtimeproxy.frontends.nri.plugin import (
    EVENTS,
    EVENTS_WITH_OWNERS,
    FIRST_EVENTS,
    MOST_NAME,
    MOST_PLUGINS,
    Plugin,
    event_mask,
)
from runtimeproxy.frontends.nri.services import EventServices, EventSettings, RefusedError
from runtimeproxy.frontends.nri.state import NriState, OtherPlugin, UncarriedField
from runtimeproxy.frontends.nri.ttrpc import Request
from runtimeproxy.hooks import (
    CLEAR,
    CgroupChange,
    ContainerChange,
    DeviceSpec,
    FailurePolicy,
    Hook,
    MountSpec,
    PodChange,
    Policy,
    ResourceChange,
    Resources,
)
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.pods.lookup import Lookups
from runtimeproxy.pods.records import Book, ContainerRecord, Entry, Lifecycle
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, POD_ID, Surroundings, policy, waited
from tests.hooks.asking import until
from tests.ledger.test_pools import Site

PATIENT_S = 30.0
POD = nri.PodSandbox(
    id=POD_ID,
    name="web",
    namespace="default",
    uid="u1",
    labels={"app": "web", "io.cri-containerd.kind": "sandbox"},
    annotations={"note": "one", "io.kubernetes.cri.sandbox-id": POD_ID},
    linux=nri.LinuxPodSandbox(cgroup_parent="/kubepods/podu1"),
)
CGROUP = f"/kubepods/podu1/{CONTAINER_ID}"
OTHER_ID = "1" * 64


def container(identity: str = CONTAINER_ID, **resources: Any) -> nri.Container:
    made = nri.Container(
        id=identity, pod_sandbox_id=POD_ID, name="main", env=[b"A=1", b"B=\xff"], annotations={"c": "2"}
    )
    made.linux.resources.cpu.shares.value = 256
    made.linux.resources.memory.limit.value = 1 << 20
    made.linux.resources.memory.swap.value = 1 << 20
    for name, value in resources.items():
        getattr(made.linux.resources.cpu, name).value = value
    return made


def test_a_pod_with_its_addresses() -> None:
    assert pod_record(POD, 0.0).addresses is None
    with_ips = nri.PodSandbox()
    with_ips.CopyFrom(POD)
    with_ips.ips.extend(("10.0.0.2", "fd00::2"))
    assert pod_record(with_ips, 0.0).addresses == ("10.0.0.2", "fd00::2")


class Managed:
    """A ledger's books that know every cgroup."""

    def __init__(self, around: Surroundings, *results: WriteResult) -> None:
        self.results = results
        self.started: list[Wanted] = []
        ledger = cast("Any", around.ledger)
        ledger.record = Book
        ledger.start = self._start

    def _start(self, wanted: Wanted) -> tuple[WriteResult, ...]:
        self.started.append(wanted)
        return self.results


class Runtime:
    """Sends requests as a runtime does."""

    def __init__(self, around: Surroundings, settings: EventSettings | None = None) -> None:
        self.around = around
        self.state = NriState(runtime_name="containerd", runtime_version="v1.7.0")
        self.is_standby = False
        services = EventServices(
            core=around.core,
            state=self.state,
            lookups=Lookups(around.store, around.runtime, PATIENT_S),
            settings=settings or EventSettings(PATIENT_S, FailurePolicy.IGNORE, FailurePolicy.IGNORE),
            is_standby=lambda: self.is_standby,
            audit=around.audit.append,
        )
        self.plugin = Plugin(services, "50-koord", since_s=1.0)

    def load(self, *policies: Policy) -> None:
        around = self.around
        around.core.chain = Chain(
            [bind(each) for each in policies],
            around.workers,
            sink=around.audit.append,
            carried=carried_in("nri"),
        )

    async def send(self, method: str, message: Message | bytes, budget_s: float = PATIENT_S) -> bytes:
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        request = Request(1, "nri.pkg.api.v1alpha1.Plugin", method, payload)
        return await self.plugin.answer(request, budget_s)

    async def create(
        self, made: nri.Container | None = None, budget_s: float = PATIENT_S
    ) -> nri.ContainerAdjustment:
        request = nri.CreateContainerRequest(pod=POD, container=made or container())
        reply = await self.send("CreateContainer", request, budget_s)
        return nri.CreateContainerResponse.FromString(reply).adjust

    async def about(self, event: str, made: nri.Container | None = None) -> None:
        kind = getattr(nri, f"{event}Request")
        await self.send(event, kind(pod=POD, container=made or container()))

    async def update(self, **resources: int) -> nri.UpdateContainerResponse:
        asked = nri.LinuxResources()
        for name, value in resources.items():
            getattr(asked.cpu, name).value = value
        request = nri.UpdateContainerRequest(pod=POD, container=container(), linux_resources=asked)
        return nri.UpdateContainerResponse.FromString(await self.send("UpdateContainer", request))

    @property
    def conflicts(self) -> list[tuple[str, ...]]:
        return [tuple(each) for each in self.state.conflicts]

    def audited(self, kind: AuditKind) -> list[tuple[str, str, str]]:
        """The policies, fields and reasons of audit entries."""
        return [(each.policy, each.field, each.reason) for each in self.around.audit if each.kind is kind]

    def record(self, identity: str = CONTAINER_ID) -> ContainerRecord:
        found = self.around.store.containers.get(identity)
        assert found is not None
        return found


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    around = Surroundings()
    yield Runtime(around)
    await around.close()


SHARES = ContainerChange(resources=ResourceChange(cpu_shares=512))


# --- creation ----------------------------------------------------------------------------------------------


async def test_a_pod_is_recorded_as_the_kubelet_described_it(runtime: Runtime) -> None:
    found = policy(pod=PodChange(cgroup={"cpu.shares": 4}))
    runtime.load(found)
    await runtime.send("RunPodSandbox", nri.RunPodSandboxRequest(pod=POD))
    pod = runtime.around.store.pods.get(POD_ID)
    assert pod is not None
    assert (pod.uid, pod.cgroup_parent, dict(pod.labels)) == ("u1", "/kubepods/podu1", {"app": "web"})
    assert dict(pod.annotations) == {"note": "one"}
    assert [(each.target.cgroup, list(each.claims)) for each in runtime.around.ledger.claimed] == [
        ("/kubepods/podu1", ["cpu.shares"])
    ]


async def test_a_reply_has_what_policies_set_and_no_more(runtime: Runtime) -> None:
    change = ContainerChange(
        resources=ResourceChange(cpu_shares=512, cpu_quota_us=50_000, oom_score_adj=-5),
        env={"NEW": "x", "A": CLEAR},
        annotations={"more": "y"},
    )
    found = policy(container=change)
    runtime.load(found)
    adjusted = await runtime.create()
    ((_, view),) = found.seen
    assert (dict(view.env), view.requested.memory_swap_limit_bytes) == ({"A": b"1", "B": b"\xff"}, None)
    expected = nri.ContainerAdjustment(annotations={"more": "y"})
    expected.env.add(key="NEW", value=b"x")
    expected.env.add(key="-A")
    expected.linux.resources.cpu.shares.value = 512
    expected.linux.resources.cpu.quota.value = 50_000
    expected.linux.oom_score_adj.value = -5
    assert adjusted == expected
    assert runtime.around.store.containers.get(CONTAINER_ID) is None, "it is not created yet"
    await runtime.about("PostCreateContainer")
    record = runtime.record()
    assert (record.requested.cpu_shares, record.booked.cpu_shares) == (256, 512)
    assert record.state is Lifecycle.CREATED
    assert set(record.owners) >= {"resources.cpu_shares", "resources.oom_score_adj"}
    assert [each.target.cgroup for each in runtime.around.ledger.booked] == [CGROUP]


async def test_values_that_are_there_already_are_not_set(runtime: Runtime) -> None:
    runtime.load(policy(container=ContainerChange(resources=ResourceChange(cpu_shares=256))))
    assert await runtime.create() == nri.ContainerAdjustment()


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        pytest.param({}, ["/c"], id="none"),
        pytest.param({"/x": "/h"}, ["/c"], id="another path"),
        pytest.param({"/c": "/h"}, ["-/c", "/c"], id="the same path"),
        pytest.param({"/x/../c": "/h", "//c/": "/i"}, ["-/x/../c", "-//c/", "/c"], id="other spellings"),
        pytest.param({"/c": "/wanted"}, [], id="there already"),
        pytest.param({"/./c": "/wanted"}, [], id="there already, in another spelling"),
    ],
)
async def test_a_mount_replaces_those_of_its_path(
    runtime: Runtime, there: dict[str, str], expected: list[str]
) -> None:
    mount = MountSpec(host_path="/wanted", container_path="/c")
    runtime.load(policy(container=ContainerChange(mounts=(mount,))))
    made = container()
    for path, source in there.items():
        made.mounts.add(destination=path, type="bind", source=source, options=["rbind", "ro"])
    adjusted = await runtime.create(made)
    assert [each.destination for each in adjusted.mounts] == expected


@pytest.mark.parametrize(
    ("options", "is_readonly", "is_set"),
    [(["rbind"], True, False), (["rbind", "rw"], False, False), (["rbind", "ro"], False, True)],
)
async def test_a_mount_of_another_plugin_is_left_to_it(
    runtime: Runtime, options: list[str], *, is_readonly: bool, is_set: bool
) -> None:
    """As koordlet's: the runtime fails a container for which two plugins set one mount."""
    mount = MountSpec(host_path="/h", container_path="/c", readonly=is_readonly)
    runtime.load(policy(container=ContainerChange(mounts=(mount,))))
    made = container()
    made.mounts.add(destination="/c", type="bind", source="/h", options=options)
    assert bool((await runtime.create(made)).mounts) is is_set


async def test_an_entry_that_is_there_is_taken_away_first(runtime: Runtime) -> None:
    """It may be another plugin's, and the runtime fails a container for which two set one entry."""
    change = ContainerChange(
        env={"A": "2", "NEW": "x"},
        annotations={"note": "two", "new": "x"},
        devices=(DeviceSpec(host_path="/dev/null", container_path="/dev/there"),),
    )
    runtime.load(policy(container=change))
    made = container()
    made.annotations["note"] = "one"
    made.linux.devices.add(path="/dev/there", type="c", major=9)
    adjusted = await runtime.create(made)
    assert [each.key for each in adjusted.env] == ["-A", "A", "NEW"]
    assert adjusted.annotations == {"-note": "", "note": "two", "new": "x"}
    assert [each.path for each in adjusted.linux.devices] == ["-/dev/there", "/dev/there"]


async def test_a_device_with_numbers_needs_no_node(runtime: Runtime) -> None:
    """The daemon need not see the host's /dev."""
    given = [
        DeviceSpec(host_path="/none", container_path="/dev/uverbs0", numbers=(231, 192)),
        DeviceSpec(host_path="/none", container_path="/dev/read", permissions="r", numbers=(231, 193)),
        DeviceSpec(host_path="/none", container_path="/dev/lost"),
        DeviceSpec(host_path="/etc/hostname", container_path="/dev/file"),
    ]
    runtime.load(policy(container=ContainerChange(devices=tuple(given))))
    found = (await runtime.create()).linux.devices
    assert [(each.path, each.type, each.major, each.minor, each.file_mode.value) for each in found] == [
        ("/dev/uverbs0", "c", 231, 192, 0o666),
        ("/dev/read", "c", 231, 193, 0o444),
    ]
    assert not any(each.HasField("uid") or each.HasField("gid") for each in found)
    assert runtime.around.core.problems.counts["CreateContainer", "left_out"] == 2


async def test_a_device_that_is_there_already_is_left_alone(runtime: Runtime) -> None:
    """As koordlet's: the runtime fails a container for which two plugins set one device."""
    device = DeviceSpec(host_path="/none", container_path="/dev/uverbs0", numbers=(231, 192))
    runtime.load(policy(container=ContainerChange(devices=(device,))))
    made = container()
    made.linux.devices.add(path="/dev/uverbs0", type="c", major=231, minor=192)
    assert not (await runtime.create(made)).linux.devices


async def test_the_limit_of_memory_and_swap_follows_that_of_memory(runtime: Runtime) -> None:
    runtime.load(policy(container=ContainerChange(resources=ResourceChange(memory_limit_bytes=1 << 30))))
    memory = (await runtime.create()).linux.resources.memory
    assert (memory.limit.value, memory.swap.value) == (1 << 30, 1 << 30)
    await runtime.about("PostCreateContainer")
    without_swap = container(OTHER_ID)
    without_swap.linux.resources.memory.ClearField("swap")
    memory = (await runtime.create(without_swap)).linux.resources.memory
    assert (memory.limit.value, memory.HasField("swap")) == (1 << 30, False)


async def test_bounds_of_the_pod_hold_for_the_reply(runtime: Runtime) -> None:
    runtime.load(policy(container=SHARES))
    runtime.around.ledger.bounds = {"cpu.cfs_quota_us": 20_000}
    assert (await runtime.create(container(quota=60_000))).linux.resources.cpu.quota.value == 20_000


async def test_a_refusal_fails_the_creation_and_leaves_nothing(runtime: Runtime) -> None:
    def refuse(_: object) -> CgroupChange | None:
        raise RefusalError("not on this node")

    runtime.load(policy(container=refuse, pod=refuse))
    with pytest.raises(RefusedError, match="not on this node"):
        await runtime.create()
    with pytest.raises(RefusedError, match="not on this node"):
        await runtime.send("RunPodSandbox", nri.RunPodSandboxRequest(pod=POD))
    assert not len(runtime.around.store.containers)
    assert not runtime.around.waiting_keys
    # The kubelet tries it again: the runtime has failed in nothing.
    runtime.load(policy(container=SHARES))
    assert (await runtime.create(container(OTHER_ID))).linux.resources.cpu.shares.value == 512
    assert runtime.state.failed_creates == 0


async def test_a_start_is_never_refused(runtime: Runtime) -> None:
    def refuse(_: object) -> CgroupChange | None:
        raise RefusalError("too late")

    runtime.load(policy(on_start=refuse))
    await runtime.create()
    await runtime.about("StartContainer")
    assert runtime.record().state is Lifecycle.RUNNING


async def test_a_container_that_was_not_created_gets_its_values_by_file_the_next_time(
    runtime: Runtime,
) -> None:
    change = ContainerChange(resources=ResourceChange(cpu_shares=512), env={"NEW": "x"})
    runtime.load(policy(container=change))
    assert (await runtime.create()).linux.resources.cpu.shares.value == 512
    again = await runtime.create(container(OTHER_ID))
    assert not again.HasField("linux")
    assert [each.key for each in again.env] == ["NEW"]
    await runtime.about("PostCreateContainer", container(OTHER_ID))
    record = runtime.record(OTHER_ID)
    assert (record.booked.cpu_shares, "resources.cpu_shares" in record.owners) == (256, True)
    assert runtime.state.failed_creates == 1
    third = await runtime.create(container("2" * 64))
    assert third.linux.resources.cpu.shares.value == 512, "that one was created"


def validated(identity: str = CONTAINER_ID, *others: str) -> nri.ValidateContainerAdjustmentRequest:
    """What the runtime shows of a container to be created; `others`: plugins, the first sets the shares."""
    found = nri.ValidateContainerAdjustmentRequest(pod=POD, container=container(identity))
    for each in ("50-koord", *others):
        index, name = each.split("-")
        found.plugins.add(name=name, index=index)
    for each in others[:1]:
        found.owners.owners[identity].simple[nri.CPUShares] = each
    return found


BY_FILE = "the runtime's plugin 10-balloons sets it, too: it goes by file"


async def test_what_another_plugin_is_known_to_set_goes_by_file(runtime: Runtime) -> None:
    change = ContainerChange(resources=ResourceChange(cpu_shares=512, cpu_quota_us=50_000))
    runtime.load(policy(container=change))
    await runtime.send("ValidateContainerAdjustment", validated(OTHER_ID, "10-balloons"))
    cpu = (await runtime.create()).linux.resources.cpu
    assert (cpu.HasField("shares"), cpu.quota.value) == (False, 50_000)
    made = container(shares=700)
    await runtime.about("PostCreateContainer", made)
    record = runtime.record()
    assert "resources.cpu_shares" in record.owners
    assert (record.requested.cpu_shares, record.booked.cpu_shares) == (256, 700), "the other's"
    assert (record.requested.cpu_quota_us, record.booked.cpu_quota_us) == (None, 50_000)
    assert runtime.state.other_plugins == {OtherPlugin("10", "balloons")}
    assert runtime.conflicts == [("default/web/main", "resources.cpu_shares", "10-balloons")]
    assert runtime.audited(AuditKind.CONFLICT) == [("test", "resources.cpu_shares", BY_FILE)]
    await runtime.about("RemoveContainer")
    assert runtime.state.fields_of_others == {}


async def test_the_owner_of_a_field_is_known_with_the_validation_of_the_same_container(
    runtime: Runtime,
) -> None:
    runtime.load(policy(container=SHARES))
    await runtime.create()
    await runtime.create(container(OTHER_ID))
    (refused,) = runtime.audited(AuditKind.CONFLICT)
    assert refused[:2] == ("", "")
    told = "the cause is not told; nri.learn_owners tells which plugin sets a field"
    assert refused[2].endswith(f"its values go by file now: {told}")
    for _ in range(2):
        await runtime.send("ValidateContainerAdjustment", validated(OTHER_ID, "10-balloons"))
    assert runtime.state.fields_of_others == {OTHER_ID: {"resources.cpu_shares": "10-balloons"}}
    assert runtime.conflicts == [("default/web/main", "resources.cpu_shares", "10-balloons")]
    assert runtime.audited(AuditKind.CONFLICT)[1:] == [("test", "resources.cpu_shares", BY_FILE)]


async def test_a_container_that_was_not_created_after_its_validation_was_refused(runtime: Runtime) -> None:
    runtime.load(policy(container=SHARES))
    await runtime.create()
    await runtime.send("ValidateContainerAdjustment", validated())
    await runtime.create(container(OTHER_ID))
    ((_, _, reason),) = runtime.audited(AuditKind.CONFLICT)
    assert reason.endswith("a validator or the runtime refused it")


async def test_a_creation_that_the_runtime_undoes_is_reported_at_once_and_once(runtime: Runtime) -> None:
    runtime.load(policy(container=SHARES))
    await runtime.send("RunPodSandbox", nri.RunPodSandboxRequest(pod=POD))
    await runtime.create()
    await runtime.send("ValidateContainerAdjustment", validated())
    # containerd tells so of what it could not create.
    await runtime.about("RemoveContainer")
    assert runtime.state.failed_creates == 1
    ((_, _, reason),) = runtime.audited(AuditKind.CONFLICT)
    assert reason.endswith("a validator or the runtime refused it")
    again = await runtime.create(container(OTHER_ID))
    assert not again.HasField("linux")
    assert (runtime.state.failed_creates, len(runtime.audited(AuditKind.CONFLICT))) == (1, 1)


@pytest.mark.parametrize("event", ["StopPodSandbox", "RemovePodSandbox", "Synchronize", "RemoveContainer"])
async def test_katalysts_pools_wait_for_no_creation_whose_end_is_never_told(
    runtime: Runtime, tmp_path: Path, event: str
) -> None:
    """The container is out of the pools at the next event that says anything of it."""
    with ThreadPoolExecutor(1) as executor:
        site = Site(tmp_path, executor)
        site.store, site.is_recovered = runtime.around.store, True
        async with site.daemon() as pools:
            runtime.around.core.pools = pools
            await runtime.send("RunPodSandbox", nri.RunPodSandboxRequest(pod=POD))
            await runtime.create()
            state = pools.state
            assert state is not None
            assert state.pods["u1"].containers.keys() == {"main"}
            if event == "Synchronize":
                await runtime.send(event, nri.SynchronizeRequest(pods=[POD]))
            elif event == "RemoveContainer":
                await runtime.about(event)
            else:
                await runtime.send(event, getattr(nri, f"{event}Request")(pod=POD))
            state = pools.state
            assert state is not None
            pod = state.pods.get("u1")
            assert pod is None or not pod.containers
            # One that is made all the same is there by its record.
            if event == "Synchronize":
                await runtime.send(
                    "PostCreateContainer", nri.PostCreateContainerRequest(pod=POD, container=container())
                )
                await site.until(pools, site.now_s)
                state = pools.state
                assert state is not None
                assert [each.id for each in state.pods["u1"].containers.values()] == [CONTAINER_ID]


async def test_a_plugin_that_has_gone_sets_nothing_any_more(runtime: Runtime) -> None:
    runtime.load(policy(container=SHARES))
    await runtime.send("ValidateContainerAdjustment", validated(OTHER_ID, "10-balloons", "20-logger"))
    assert runtime.state.other_plugins == {OtherPlugin("10", "balloons"), OtherPlugin("20", "logger")}
    await runtime.send("ValidateContainerAdjustment", validated(OTHER_ID))
    assert runtime.state.other_plugins == set()
    assert (await runtime.create()).linux.resources.cpu.shares.value == 512


async def test_a_runtime_that_tells_of_too_many_plugins_and_fields(runtime: Runtime) -> None:
    for turn in range(2):
        request = validated(OTHER_ID, "00-other")
        entries = request.owners.owners[OTHER_ID].compound[nri.Env].owners
        for number in range(20_000):
            request.plugins.add(name=f"{turn}-{number}", index="10")
            entries[f"{turn}-{number}"] = "00-other"
        entries["x" * 1_000_000] = "00-other"
        request.plugins.add(name="x" * 1_000_000, index="10")
        await runtime.send("ValidateContainerAdjustment", request)
    owners = runtime.plugin._containers.owners
    assert (len(runtime.state.other_plugins), len(owners)) == (MOST_PLUGINS - 1, MOST_OWNED)
    assert max(map(len, owners)) <= MOST_NAME


async def test_a_second_plugin_of_the_same_name_is_another_one(runtime: Runtime) -> None:
    await runtime.send("ValidateContainerAdjustment", validated(OTHER_ID, "50-koord"))
    assert runtime.state.other_plugins == {OtherPlugin("50", "koord")}


# --- start -------------------------------------------------------------------------------------------------


async def test_file_values_are_there_when_the_reply_to_the_start_goes(runtime: Runtime) -> None:
    found = policy(container=ContainerChange(cgroup={"cpu.cfs_burst_us": 1000}), on_started=None)
    runtime.load(found)
    await runtime.create()
    await runtime.about("PostCreateContainer")
    assert runtime.around.ledger.written == []
    await runtime.about("StartContainer")
    assert runtime.around.ledger.written == [(CGROUP, {"cpu.cfs_burst_us": 1000})]
    await runtime.about("PostStartContainer")
    await runtime.around.idle()
    assert [method for method, _ in found.seen] == ["container", "on_started"]


@pytest.mark.parametrize(
    ("resource", "name", "value", "other"),
    [("cpu_shares", "cpu.shares", 512, 256), ("oom_score_adj", "oom_score_adj", 700, 500)],
)
async def test_what_the_runtime_drops_goes_by_file(
    runtime: Runtime, resource: str, name: str, value: int, other: int
) -> None:
    change: dict[str, Any] = {resource: value}
    runtime.load(policy(container=ContainerChange(resources=ResourceChange(**change))))
    result = WriteResult(CGROUP, name, value, WriteOutcome.WRITTEN, other)
    unchanged = WriteResult(CGROUP, "cpu.cfs_quota_us", 5, WriteOutcome.UNCHANGED, 5)
    managed = Managed(runtime.around, result, unchanged)
    await runtime.create()
    await runtime.about("PostCreateContainer")
    await runtime.about("StartContainer")
    assert [each.target.cgroup for each in managed.started] == [CGROUP]
    assert runtime.state.not_carried == {UncarriedField(f"resources.{resource}", "containerd v1.7.0")}


async def test_a_late_decision_is_made_again_before_the_program_runs(runtime: Runtime) -> None:
    release = threading.Event()

    def slow(_: object) -> ContainerChange:
        waited(release)
        return SHARES

    runtime.load(policy(container=slow))
    # A thread of a busy machine has time to begin: one that has not does not hang.
    adjusted = await runtime.create(budget_s=1.0)
    assert adjusted == nri.ContainerAdjustment()
    await runtime.about("PostCreateContainer")
    starting = asyncio.ensure_future(runtime.about("StartContainer"))
    evaluated = cast("Any", runtime.around.core.evaluator).pods
    await until(lambda: bool(evaluated))
    release.set()
    await starting
    # The second time once its thread is free.
    assert evaluated == [POD_ID, POD_ID]
    assert not runtime.around.core.chain.hung
    assert runtime.record().booked.cpu_shares == 256


# --- updates -----------------------------------------------------------------------------------------------


async def started(runtime: Runtime, *policies: Policy) -> None:
    runtime.load(*policies)
    await runtime.create()
    await runtime.about("PostCreateContainer")
    await runtime.about("StartContainer")
    await runtime.around.idle()


async def test_the_reply_to_an_update_names_the_container_and_what_differs(runtime: Runtime) -> None:
    await started(runtime, policy(container=SHARES))
    # A live change by file, of which the runtime's specification knows nothing.
    runtime.load(policy(container=ContainerChange(resources=ResourceChange(cpu_shares=600, cpu_quota_us=-1))))
    (reply,) = (await runtime.update(quota=70_000)).update
    assert (reply.container_id, reply.ignore_failure) == (CONTAINER_ID, True)
    cpu = reply.linux.resources.cpu
    assert (cpu.shares.value, cpu.quota.value, cpu.HasField("period")) == (600, -1, False)
    assert runtime.record().requested.cpu_quota_us is None, "it is not made yet"
    await runtime.about("PostUpdateContainer")
    await runtime.around.idle()
    record = runtime.record()
    assert (record.requested.cpu_quota_us, record.booked.cpu_quota_us) == (70_000, -1)
    assert (record.requested.cpu_shares, record.booked.cpu_shares) == (256, 600)
    assert not runtime.around.core.pending_updates


async def test_zeros_of_the_kubelet_are_no_requests(runtime: Runtime) -> None:
    """The CRI has no presence, and runtimes hand its zeros on as if they were set."""
    await started(runtime, policy(container=SHARES))
    before = runtime.record().requested
    await runtime.update(quota=0, shares=0, period=0)
    await runtime.about("PostUpdateContainer")
    await runtime.around.idle()
    assert runtime.record().requested == before


async def test_an_update_without_policies_is_left_alone(runtime: Runtime) -> None:
    await started(runtime)
    assert not (await runtime.update(quota=70_000)).update
    await runtime.about("PostUpdateContainer")
    assert runtime.record().booked.cpu_quota_us == 70_000


async def test_an_update_that_is_repeated_takes_the_place_of_the_one_before(runtime: Runtime) -> None:
    await started(runtime)
    await runtime.update(quota=70_000)
    await runtime.update(quota=60_000)
    await runtime.about("PostUpdateContainer")
    assert runtime.record().booked.cpu_quota_us == 60_000
    assert not runtime.around.core.pending_updates


async def test_zeros_in_an_update_are_no_values(runtime: Runtime) -> None:
    # The kubelet's call leaves them out, and the runtime tells of them all the same.
    await started(runtime)
    await runtime.update(shares=300, quota=0, period=0)
    await runtime.about("PostUpdateContainer")
    requested = runtime.record().requested
    assert (requested.cpu_shares, requested.cpu_quota_us, requested.cpu_period_us) == (300, None, None)


async def test_a_resize_of_a_pod_of_which_nothing_is_told_follows_from_its_containers(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtimeproxy.frontends.nri.containers.RESIZE_PAUSES_S", (0.0, 0.0))
    pod = nri.PodSandbox()
    pod.CopyFrom(POD)
    pod.linux.pod_resources.cpu.shares.value = 256
    await runtime.send("RunPodSandbox", nri.RunPodSandboxRequest(pod=pod))
    await started(runtime)
    await runtime.update(shares=300, quota=70_000)
    await runtime.about("PostUpdateContainer")
    await runtime.around.idle()
    record = runtime.around.store.pods.get(POD_ID)
    assert record is not None
    assert (record.requested.cpu_shares, record.requested.cpu_quota_us) == (300, 70_000)
    assert cast("Any", runtime.around.core.evaluator).pods == [POD_ID]


async def test_an_update_of_which_no_end_is_told_is_asked_about(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtimeproxy.frontends.nri.containers.CONFIRM_S", 0.0)
    await started(runtime)
    taken = ContainerRecord(id=CONTAINER_ID, pod_id=POD_ID, booked=Resources(cpu_quota_us=70_000))
    runtime.around.runtime.containers[CONTAINER_ID] = taken
    await runtime.update(quota=70_000)
    async for _ in _turns(lambda: bool(runtime.around.core.pending_updates)):
        pass
    assert runtime.record().booked.cpu_quota_us == 70_000
    await runtime.update(quota=80_000)
    async for _ in _turns(lambda: bool(runtime.around.core.pending_updates)):
        pass
    assert runtime.record().booked.cpu_quota_us == 70_000, "the runtime has not taken it"


async def _turns(is_going_on: Any) -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENT_S):
        while is_going_on():
            yield
            await asyncio.sleep(0)


async def test_the_kubelets_resize_of_a_pod_is_followed(runtime: Runtime) -> None:
    runtime.load(policy(pod=PodChange(cgroup={"cpu.shares": 4})))
    await runtime.send("RunPodSandbox", nri.RunPodSandboxRequest(pod=POD))
    request = nri.UpdatePodSandboxRequest(pod=POD)
    request.linux_resources.cpu.quota.value = 90_000
    await runtime.send("UpdatePodSandbox", request)
    await runtime.around.idle()
    pod = runtime.around.store.pods.get(POD_ID)
    assert pod is not None
    assert pod.requested.cpu_quota_us == 90_000
    assert ("/kubepods/podu1", {"cpu.cfs_quota_us": 90_000}) in runtime.around.ledger.resizes


async def test_what_policies_have_written_to_a_pod_is_no_request_of_the_kubelets(runtime: Runtime) -> None:
    # It reads from the files what a resize does not change.
    runtime.load()
    pod = nri.PodSandbox()
    pod.CopyFrom(POD)
    pod.linux.pod_resources.cpu.quota.value = 100_000
    await runtime.send("RunPodSandbox", nri.RunPodSandboxRequest(pod=pod))
    entries = {"cpu.cfs_quota_us": Entry(resolved=80_000)}
    cast("Any", runtime.around.ledger).record = lambda cgroup: Book(cgroup, entries=entries)
    request = nri.UpdatePodSandboxRequest(pod=pod)
    request.linux_resources.cpu.quota.value = 80_000
    request.linux_resources.memory.limit.value = 1 << 20
    await runtime.send("UpdatePodSandbox", request)
    record = runtime.around.store.pods.get(POD_ID)
    assert record is not None
    assert record.requested == Resources(cpu_quota_us=100_000, memory_limit_bytes=1 << 20)


# --- ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_old", [False, True])
async def test_ends_are_recorded_and_told_once(runtime: Runtime, is_old: bool) -> None:
    found = policy(on_container_stopped=None, on_pod_stopped=None, on_container_removed=None)
    await started(runtime, found)

    async def tell(event: str, number: int) -> None:
        if is_old and event != "StopContainer":
            message = nri.StateChangeEvent(event=cast("Any", number), pod=POD, container=container())
            await runtime.send("StateChange", message)
        else:
            kind = getattr(nri, f"{event}Request")
            is_pod = event.endswith("Sandbox")
            await runtime.send(event, kind(pod=POD) if is_pod else kind(pod=POD, container=container()))

    for _ in range(2):
        await tell("StopContainer", nri.STOP_CONTAINER)
    assert runtime.record().state is Lifecycle.STOPPED
    for _ in range(2):
        await tell("RemoveContainer", nri.REMOVE_CONTAINER)
    for _ in range(2):
        await tell("StopPodSandbox", nri.STOP_POD_SANDBOX)
    await tell("RemovePodSandbox", nri.REMOVE_POD_SANDBOX)
    await runtime.around.idle()
    store = runtime.around.store
    assert (len(store.pods), len(store.containers)) == (0, 0)
    seen = [method for method, _ in found.seen]
    assert sorted(set(seen)) == sorted(seen), "each hook has run once"


# --- what runs ---------------------------------------------------------------------------------------------


async def test_what_runs_comes_in_pieces(runtime: Runtime) -> None:
    runtime.load()
    completed: list[str] = []

    async def complete() -> None:
        completed.append("complete")

    runtime.around.inventory.on_complete.append(complete)
    first = nri.SynchronizeRequest(pods=[POD], more=True)
    assert nri.SynchronizeResponse.FromString(await runtime.send("Synchronize", first)).more
    assert not len(runtime.around.store.pods)
    running = container()
    running.state = nri.CONTAINER_RUNNING
    second = nri.SynchronizeRequest(containers=[running])
    assert not nri.SynchronizeResponse.FromString(await runtime.send("Synchronize", second)).more
    await runtime.around.idle()
    record = runtime.record()
    assert (record.state, record.recovered, record.booked.cpu_shares) == (Lifecycle.RUNNING, True, 256)
    assert completed == ["complete"]
    assert runtime.around.unsettled, "all is listed once more"


async def synchronized(runtime: Runtime, **cpu: int) -> ContainerRecord:
    running = container(CONTAINER_ID, **cpu)
    running.state, running.created_at = nri.CONTAINER_RUNNING, time.time_ns()
    await runtime.send("Synchronize", nri.SynchronizeRequest(pods=[POD], containers=[running]))
    await runtime.around.idle()
    return runtime.record()


async def test_what_was_created_while_the_plugin_was_away_has_the_kubelets_values(runtime: Runtime) -> None:
    runtime.around.inventory.recovered.set()
    assert not (await synchronized(runtime)).recovered
    evaluator = cast("Any", runtime.around.core.evaluator)
    assert evaluator.undecided == {POD_ID, CONTAINER_ID}, "they may get their first memory limits"


@pytest.mark.parametrize(
    ("in_status", "requested"), [(256, 256), (700, 700), (None, 256)], ids=["reply", "update", "no answer"]
)
async def test_what_the_specification_has_was_a_reply_or_an_update(
    runtime: Runtime, in_status: int | None, requested: int
) -> None:
    await started(runtime)
    if in_status is not None:
        shown = ContainerRecord(id=CONTAINER_ID, pod_id=POD_ID, booked=Resources(cpu_shares=in_status))
        runtime.around.runtime.containers[CONTAINER_ID] = shown
    record = await synchronized(runtime, shares=700)
    assert (record.requested.cpu_shares, record.booked.cpu_shares) == (requested, 700)


async def test_an_update_whose_end_no_event_has_told_is_in_the_specification(runtime: Runtime) -> None:
    await started(runtime, policy(container=SHARES))
    await runtime.update(quota=70_000)
    record = await synchronized(runtime, shares=500, quota=70_000)
    assert (record.requested.cpu_quota_us, record.booked.cpu_quota_us) == (70_000, 70_000)
    assert not runtime.around.core.pending_updates


async def test_a_record_that_was_lost_with_its_decision_has_what_the_kubelet_asked_for(
    runtime: Runtime,
) -> None:
    runtime.load()
    shown = ContainerRecord(id=CONTAINER_ID, pod_id=POD_ID, booked=Resources(cpu_shares=100))
    runtime.around.runtime.containers[CONTAINER_ID] = shown
    record = await synchronized(runtime)
    assert (record.requested.cpu_shares, record.booked.cpu_shares) == (100, 256)


async def test_the_bypass_changes_nothing_and_records_what_runs(runtime: Runtime) -> None:
    found = policy(container=SHARES)
    runtime.load(found)
    runtime.is_standby = True
    assert await runtime.create() == nri.ContainerAdjustment()
    await runtime.about("PostCreateContainer")
    assert runtime.record().booked.cpu_shares == 256
    assert not found.seen


@pytest.mark.parametrize("is_refused", [False, True])
async def test_what_cannot_be_read_is_answered_as_configured(is_refused: bool) -> None:
    around = Surroundings()
    choice = FailurePolicy.FAIL if is_refused else FailurePolicy.IGNORE
    runtime = Runtime(around, EventSettings(PATIENT_S, choice, choice))
    runtime.load()
    try:
        if is_refused:
            with pytest.raises(RefusedError, match="cannot be read"):
                await runtime.send("CreateContainer", b"\xff\xff\xff")
        else:
            assert await runtime.send("CreateContainer", b"\xff\xff\xff") == b""
        assert around.core.problems.counts["CreateContainer", "unreadable"] == 1
    finally:
        await around.close()


def test_events_that_each_runtime_knows() -> None:
    assert event_mask(EVENTS) == (1 << 13) - 1
    assert event_mask(EVENTS_WITH_OWNERS) == (1 << 14) - 1
    assert event_mask(FIRST_EVENTS) == (1 << 11) - 1
    assert {Hook.PRE_CREATE_CONTAINER, Hook.PRE_RUN_POD_SANDBOX} <= set(carried_in("nri").counting)
