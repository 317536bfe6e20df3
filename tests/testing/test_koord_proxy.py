"""The proxy with the policies of a test: the real daemon, in a thread."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.config.settings import HooksSettings
from runtimeproxy.errors import PolicyLoadError, RefusalError
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    FailurePolicy,
    Mode,
    PodChange,
    PodView,
    Policy,
    ResourceChange,
)
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.node.snapshot import Input, Node
from runtimeproxy.testing import (
    CgroupDriver,
    CgroupFiles,
    FakeRuntime,
    KoordProxy,
    PodCgroups,
    RuntimeState,
    StartProxy,
)
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config

TIMEOUT_S = 60


@dataclass(frozen=True)
class Options:
    shares: int = 7


class Quiet(Policy):
    """Sets the CPU shares."""

    name: ClassVar[str] = "quiet"
    options_type: ClassVar[type[object] | None] = Options

    def __init__(self, options: Options) -> None:
        self._options = options

    def container(self, container: ContainerView, node: Node) -> ContainerChange:
        return ContainerChange(resources=ResourceChange(cpu_shares=self._options.shares), reason="test")


class Remembers(Policy):
    """Keeps what it was shown."""

    name: ClassVar[str] = "remembers"

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.started = threading.Event()

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        if pod.name == "unwanted":
            raise RefusalError("unwanted")
        self.seen.append(pod.name)
        return PodChange(cgroup={"cpu.shares": 77}, reason="test") if pod.cgroup_parent else None

    def on_started(self, container: ContainerView, node: Node) -> None:
        self.started.set()


def run(proxy: KoordProxy, name: str = "web") -> int:
    """Runs a pod with one container, and returns the shares that the runtime was asked for."""
    pod = pod_sandbox_config(name)
    sandbox = proxy.runtime.RunPodSandbox(api_pb2.RunPodSandboxRequest(config=pod), timeout=TIMEOUT_S)
    request = create_container_request(sandbox.pod_sandbox_id, container_config(pod=pod), pod)
    made = proxy.runtime.CreateContainer(request, timeout=TIMEOUT_S)
    start = api_pb2.StartContainerRequest(container_id=made.container_id)
    proxy.runtime.StartContainer(start, timeout=TIMEOUT_S)
    *_, call = proxy.fake_runtime.recorded.of("CreateContainer")
    return int(call.message.config.linux.resources.cpu_shares)


def test_exactly_these_policies_decide(koord_proxy: StartProxy, fake_runtime: FakeRuntime) -> None:
    proxy = koord_proxy(policies=[Quiet])
    assert run(proxy) == 7
    assert proxy.fake_runtime is fake_runtime
    (entry,) = proxy.wait_for_audit("changed", policy="quiet")
    assert (entry.field, entry.new, entry.pod_name) == ("resources.cpu_shares", "7", "web")
    assert entry in proxy.audit
    assert proxy.runtime.Version(api_pb2.VersionRequest()).runtime_name == "fake-runtime"
    assert list(proxy.images.ListImages(api_pb2.ListImagesRequest()).images) == []


def test_settings_count_as_in_the_configuration(koord_proxy: StartProxy) -> None:
    options = koord_proxy(policies=[Quiet], settings={"quiet": PolicySettings(options={"shares": 5})})
    dry_run = koord_proxy(policies=[Quiet], settings={"quiet": PolicySettings(mode=Mode.DRY_RUN)})
    assert run(options) == 5
    assert run(dry_run) not in (7, 5)
    assert len(dry_run.wait_for_audit("would-change")) == 1


def test_instances_can_be_looked_at(koord_proxy: StartProxy) -> None:
    policy = Remembers()
    proxy = koord_proxy(policies=[policy, Quiet(Options(9))])
    assert run(proxy, "one") == 9
    assert policy.seen == ["one"]
    assert policy.started.wait(TIMEOUT_S)
    with pytest.raises(grpc.RpcError) as caught:
        run(proxy, "unwanted")
    assert caught.value.details() == "koord-runtime-proxy: remembers: unwanted"


def test_cgroup_values_are_written_where_the_runtime_has_files(socket_folder: Path) -> None:
    files = CgroupFiles(socket_folder / "cgroup", version=1)
    state = RuntimeState(PodCgroups(CgroupDriver.CGROUPFS, files))
    with (
        FakeRuntime(socket_folder / "runtime.sock", state=state) as runtime,
        KoordProxy(runtime, socket_folder, [Remembers]) as proxy,
    ):
        pod = pod_sandbox_config("web")
        files.make(pod.linux.cgroup_parent)
        proxy.runtime.RunPodSandbox(api_pb2.RunPodSandboxRequest(config=pod), timeout=TIMEOUT_S)
        proxy.wait_for_audit("changed")
        assert files.read(pod.linux.cgroup_parent, "cpu.shares") == "77"


class Pinned(Policy):
    """Asks for CPUs that no test's machine has."""

    name: ClassVar[str] = "pinned"

    def container(self, container: ContainerView, node: Node) -> ContainerChange:
        return ContainerChange(resources=ResourceChange(cpuset_cpus="64-127", cpu_shares=7))


def test_the_fakes_node_has_every_cpu(koord_proxy: StartProxy, fake_runtime: FakeRuntime) -> None:
    assert run(koord_proxy(policies=[Pinned])) == 7
    *_, call = fake_runtime.recorded.of("CreateContainer")
    assert call.message.config.linux.resources.cpuset_cpus == "64-127"


def test_unless_a_test_says_which(fake_runtime: FakeRuntime, socket_folder: Path) -> None:
    online = socket_folder / "sys/devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text("0-31\n")
    with KoordProxy(fake_runtime, socket_folder, [Pinned]) as proxy:
        assert run(proxy) == 7
        (entry,) = proxy.wait_for_audit("left-out")
    assert (entry.field, entry.new) == ("resources.cpuset_cpus", "64-127")
    assert entry.reason == "CPU 64-127 not online, only 0-31"


class Capped(Policy):
    """Sets CPU shares while the node has a strategy that suppresses best-effort pods."""

    name: ClassVar[str] = "capped"
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.STRATEGIES})

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        if not node.strategies.threshold.enable:
            return None
        return ContainerChange(resources=ResourceChange(cpu_shares=9))


@pytest.mark.parametrize("is_enabled", [True, False])
def test_strategies_are_those_of_the_tests_folder(
    fake_runtime: FakeRuntime, socket_folder: Path, *, is_enabled: bool
) -> None:
    folder = socket_folder / "node.d"
    folder.mkdir()
    threshold = json.dumps({"clusterStrategy": {"enable": is_enabled}})
    (folder / "resource-threshold-config").write_text(threshold)
    with KoordProxy(fake_runtime, socket_folder, [Capped]) as proxy:
        assert run(proxy) == (9 if is_enabled else 2)


def test_a_hung_policy_and_the_chains_settings(koord_proxy: StartProxy) -> None:
    gate = threading.Event()

    class Hangs(Policy):
        name: ClassVar[str] = "hangs"
        timeout_s: ClassVar[float] = 0.05

        def pod(self, pod: PodView, node: Node) -> None:
            gate.wait()

    strict = {"hangs": PolicySettings(failure_policy=FailurePolicy.FAIL)}
    proxy = koord_proxy(policies=[Hangs], settings=strict, hooks=HooksSettings(worker_threads=1))
    with pytest.raises(grpc.RpcError) as caught:
        run(proxy)
    gate.set()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


class Misspelled(Policy):
    name: ClassVar[str] = "misspelled"

    def contaner(self, container: ContainerView, node: Node) -> None: ...


@pytest.mark.parametrize(
    ("policies", "settings", "reason"),
    [
        ([Misspelled], {}, "contaner: no such method; did you mean container?"),
        ([Quiet, type("Other", (Quiet,), {})], {}, "name quiet is taken by"),
        ([Quiet], {"quiet": PolicySettings(options={"share": 1})}, "unknown option share; there are: shares"),
        ([Quiet], {"qiet": PolicySettings()}, "no policy named qiet; did you mean quiet?"),
        ([Quiet(Options())], {"qiet": PolicySettings()}, "no policy named qiet; did you mean quiet?"),
        ([Quiet(Options())], {"quiet": PolicySettings(options={"shares": 1})}, "quiet is an instance"),
    ],
)
def test_what_cannot_be_loaded_is_an_error_of_the_test(
    koord_proxy: StartProxy,
    socket_folder: Path,
    policies: list[type[Policy] | Policy],
    settings: dict[str, PolicySettings],
    reason: str,
) -> None:
    with pytest.raises(PolicyLoadError, match=reason):
        koord_proxy(policies=policies, settings=settings)
    assert not list(socket_folder.glob("proxy*.sock"))


def test_nothing_is_left_behind(fake_runtime: FakeRuntime, socket_folder: Path) -> None:
    before = {thread for thread in threading.enumerate() if not thread.daemon}
    with KoordProxy(fake_runtime, socket_folder, [Quiet]) as proxy:
        run(proxy)
        socket_path = proxy.socket_path
        assert socket_path.is_socket()
    assert not socket_path.exists()
    assert {thread for thread in threading.enumerate() if not thread.daemon} <= before
    with pytest.raises(RuntimeError, match="started once"):
        proxy.start()
