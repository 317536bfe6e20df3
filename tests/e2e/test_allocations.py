"""CPUs of a pod's own with computed pools, on a real containerd.

The kernel's events show the order: the others have left the CPUs before the runtime makes the pod's first
cgroup. Two CPUs are enough: one is allocated, the other is what is left to share.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import grpc
import pytest
from inotify_simple import INotify, flags

from cri_api.runtime.v1 import api_pb2
from tests.e2e.koordinator import cpuset, qos
from tests.e2e.values import BEST_EFFORT, BURSTABLE, GUARANTEED, as_resources
from tests.lab import cgroup_v1
from tests.lab.cgroup_v1 import CgroupValues
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import (
    RunningPod,
    remove_sandbox,
    run_sandbox,
    running_pod,
    update_resources,
)
from tests.lab.node_objects import kubelet_files
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec, container_config, sandbox_config
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

CONFIG: Final = """
[node]
shared_pools = "computed"
kubelet_dir = "{kubelet}"
"""
OWN, LEFT, ALL = "1", "0", "0-1"
KILLS: Final = 5
SEED: Final = 5
LONGEST_DELAY_S: Final = 0.15
"""Between the start of a sandbox and the kill: it is made within that."""
WITHIN_S: Final = 60.0
"""From an event to the files, at most, on a busy machine; after a kill the runtime's lists come first."""
SERVING_TIMEOUT_S: Final = 30.0


def pod_spec(name: str, kube_qos: KubeQos, values: CgroupValues, label: str = "", cpus: str = "") -> PodSpec:
    """A pod of one container; `cpus` are its own."""
    annotations = cpuset(cpus) if cpus else {}
    container = ContainerSpec(resources=as_resources(values))
    return PodSpec(name, kube_qos, qos(label), annotations, (container,))


SHARED: Final[Mapping[str, tuple[KubeQos, CgroupValues, str]]] = {
    "web": ("burstable", BURSTABLE, "LS"),
    "plain": ("guaranteed", GUARANTEED, ""),
    "late": ("burstable", BURSTABLE, ""),
}
"""Pods that share CPUs: Kubernetes' class, values, Koordinator's class."""


def own_spec(cpus: str = OWN, label: str = "LSR") -> PodSpec:
    return pod_spec("own", "guaranteed", GUARANTEED, label, cpus)


@dataclass
class Site:
    """The daemon, pods that share all CPUs, and one of class BE, which stays where it is."""

    proxy: ProxyProcess
    client: CriClient
    direct: CriClient
    shared: Mapping[str, RunningPod]
    batch: RunningPod
    logs: Path
    before: Mapping[str, bytes]
    """Every value file of the pods, while all CPUs are shared."""

    @property
    def files(self) -> list[Path]:
        """The files of the pods that share CPUs."""
        return [
            cgroup_v1.file("cpuset", pod.container_cgroup(), "cpuset.cpus") for pod in self.shared.values()
        ]

    def texts(self) -> dict[str, bytes]:
        pods = (*self.shared.values(), self.batch)
        return {path: text for pod in pods for path, text in cgroup_v1.texts(pod.spec.cgroup_parent).items()}

    def wanted(self, cpus: str) -> dict[str, bytes]:
        """All files when these are the shared CPUs."""
        paths = {f"cpuset{pod.container_cgroup()}/cpuset.cpus" for pod in self.shared.values()}
        return {path: f"{cpus}\n".encode() if path in paths else text for path, text in self.before.items()}

    def assert_shared(self, cpus: str) -> None:
        assert self.texts() == self.wanted(cpus)

    def wait_for(self, cpus: str) -> None:
        """Waits until these are the shared CPUs, and nothing else has changed."""
        with suppress(TimeoutError):
            wait_until(lambda: self.texts() == self.wanted(cpus), f"{cpus} as shared CPUs", WITHIN_S)
        self.assert_shared(cpus)

    def wait_for_runtime(self, uid: str) -> bool:
        """Waits until the shared CPUs are as they should be with what the runtime has made of a pod.

        A sandbox whose call was cut may still be made, or be taken back.

        Returns:
            Whether the pod is there.
        """
        found: list[str] = []

        def is_right() -> bool:
            found[:] = _sandboxes(self.direct, uid)
            return self.texts() == self.wanted(LEFT if found else ALL)

        wait_until(is_right, "the shared CPUs beside the runtime's sandboxes", WITHIN_S)
        return bool(found)

    @contextmanager
    def own(self, spec: PodSpec) -> Iterator[RunningPod]:
        with running_pod(self.client, spec, self.logs) as pod:
            yield pod

    def restart(self) -> None:
        self.proxy.start()
        self.client.wait_until_serving(SERVING_TIMEOUT_S)


@pytest.fixture(scope="module")
def site(containerd: Containerd, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    own, logs = Path(tempfile.mkdtemp(dir=folder)), tmp_path_factory.mktemp("logs")
    kubelet_files(own / "kubelet", {})
    options = ProxyOptions(str(containerd.socket), config=CONFIG.format(kubelet=own / "kubelet"))
    with ExitStack() as stack:
        proxy = stack.enter_context(ProxyProcess(own, options))
        client = stack.enter_context(CriClient(proxy.socket))
        direct = stack.enter_context(CriClient(containerd.socket))
        pods = {
            name: stack.enter_context(running_pod(client, pod_spec(name, *each), logs))
            for name, each in SHARED.items()
        }
        batch = stack.enter_context(
            running_pod(client, pod_spec("batch", "besteffort", BEST_EFFORT, "BE"), logs)
        )
        site = Site(proxy, client, direct, pods, batch, logs, {})
        site.before = site.texts()
        assert {file.read_text() for file in site.files} == {f"{ALL}\n"}
        yield site


@pytest.fixture(autouse=True)
def all_shared_again(site: Site) -> Iterator[None]:
    yield
    if not site.proxy.alive():
        site.restart()
    site.wait_for(ALL)


class Order:
    """What happens to some files and folders, in the order in which the kernel reports it."""

    def __init__(self, files: Iterable[Path], new_in: Path) -> None:
        self._inotify = INotify()
        self._names = {self._inotify.add_watch(file, flags.MODIFY): str(file) for file in files}
        self._names[self._inotify.add_watch(new_in, flags.CREATE | flags.ONLYDIR)] = "made"

    def events(self) -> list[str]:
        """The paths of the files that were written, and "made" for each new folder."""
        return [self._names[event.wd] for event in self._inotify.read(timeout=0)]

    def __enter__(self) -> Order:
        return self

    def __exit__(self, *_: object) -> None:
        self._inotify.close()


def test_others_leave_before_the_runtime_makes_the_pod(site: Site) -> None:
    spec = own_spec()
    with ExitStack() as stack:
        stack.enter_context(cgroup_v1.pod_cgroup(spec.cgroup_parent))
        folder = cgroup_v1.file("cpuset", spec.cgroup_parent, "")
        order = stack.enter_context(Order(site.files, folder))
        sandbox_id = run_sandbox(site.client, sandbox_config(spec, ""))
        stack.callback(remove_sandbox, site.client, sandbox_id)
        events = order.events()
        # Each was written once, so it held its present text when the runtime made the first cgroup.
        assert sorted(events[: events.index("made")]) == sorted(map(str, site.files))
        assert set(events[events.index("made") :]) == {"made"}
        site.assert_shared(LEFT)
    site.wait_for(ALL)


def test_the_whole_life_of_a_pod(site: Site) -> None:
    # Unread notifications may have filled the queue of the socket.
    site.proxy.forget_states()
    with site.own(own_spec()) as pod:
        site.assert_shared(LEFT)
        assert pod.values().cpuset_cpus == OWN
        while "1 pod owns CPUs 1" not in site.proxy.wait_for_state("STATUS"):
            continue
        # One that comes meanwhile begins with what is left.
        with site.own(pod_spec("newcomer", "burstable", BURSTABLE, "LS")) as newcomer:
            assert newcomer.values().cpuset_cpus == LEFT
        # The runtime applies its whole specification, which has the CPUs of before.
        web = site.shared["web"]
        update_resources(
            site.client, web.container_id(), api_pb2.LinuxContainerResources(cpu_shares=BURSTABLE.cpu_shares)
        )
        site.assert_shared(LEFT)
    site.wait_for(ALL)


def test_a_pod_without_a_sandbox_releases_its_cpus(site: Site) -> None:
    """The runtime refuses it: it has no such handler."""
    spec = own_spec()
    with cgroup_v1.pod_cgroup(spec.cgroup_parent), Order(site.files, site.logs) as order:
        request = api_pb2.RunPodSandboxRequest(config=sandbox_config(spec, ""), runtime_handler="missing")
        with pytest.raises(grpc.RpcError, match="missing"):
            site.client.runtime.RunPodSandbox(request, timeout=CALL_TIMEOUT_S)
        wait_until(lambda: site.texts() == site.before, "all CPUs are shared again", WITHIN_S)
        # They had left them.
        assert set(map(str, site.files)) <= set(order.events())


def test_a_container_that_is_not_made_keeps_its_pods_cpus(site: Site) -> None:
    """The kubelet tries again; the CPUs are the sandbox's until it ends."""
    spec = own_spec()
    with ExitStack() as stack:
        stack.enter_context(cgroup_v1.pod_cgroup(spec.cgroup_parent))
        config = sandbox_config(spec, "")
        sandbox_id = run_sandbox(site.client, config)
        stack.callback(remove_sandbox, site.client, sandbox_id)
        container = container_config(spec, spec.containers[0])
        container.image.image = "no-such-image"
        request = api_pb2.CreateContainerRequest(
            pod_sandbox_id=sandbox_id, config=container, sandbox_config=config
        )
        with pytest.raises(grpc.RpcError, match="no-such-image"):
            site.client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S)
        site.assert_shared(LEFT)
    site.wait_for(ALL)


def test_killed_while_a_pod_owns_cpus(site: Site) -> None:
    with site.own(own_spec()):
        site.proxy.kill()
        site.assert_shared(LEFT)
        site.restart()
        # Before the runtime's lists, the saved allocations count.
        with site.own(pod_spec("newcomer", "burstable", BURSTABLE, "LS")) as newcomer:
            assert newcomer.values().cpuset_cpus == LEFT
        site.assert_shared(LEFT)
    site.wait_for(ALL)


def test_a_pod_that_ends_while_the_daemon_is_away(site: Site) -> None:
    spec = own_spec()
    with ExitStack() as stack:
        stack.enter_context(cgroup_v1.pod_cgroup(spec.cgroup_parent))
        sandbox_id = run_sandbox(site.client, sandbox_config(spec, ""))
        site.proxy.kill()
        remove_sandbox(site.direct, sandbox_id)
        site.assert_shared(LEFT)
        site.restart()
        site.wait_for(ALL)


def test_killed_at_any_moment_of_a_pods_start(site: Site) -> None:
    chances = random.Random(SEED)
    for number in range(KILLS):
        spec = replace(own_spec(), name=f"own-{number}")
        with ExitStack() as stack:
            stack.enter_context(cgroup_v1.pod_cgroup(spec.cgroup_parent))
            # Of a call that is cut off containerd may leave a process that it does not know of.
            stack.callback(cgroup_v1.kill_processes, spec.cgroup_parent)
            stack.callback(_remove, site, spec.uid)
            request = api_pb2.RunPodSandboxRequest(config=sandbox_config(spec, ""))
            call = site.client.runtime.RunPodSandbox.future(request, timeout=CALL_TIMEOUT_S)
            # The moment is what is tested: anywhere between the call and the runtime's answer.
            time.sleep(chances.uniform(0, LONGEST_DELAY_S))
            site.proxy.kill()
            call.exception()
            left = [file.read_text() for file in site.files] == [f"{LEFT}\n"] * len(site.files)
            made = bool(_sandboxes(site.direct, spec.uid))
            order = stack.enter_context(Order(site.files, site.logs))
            site.restart()
            found = site.wait_for_runtime(spec.uid)
            print(f"left: {left}; made: {made}; there: {found}")
            # The process before this one had made them leave: they have not come back in between.
            assert not (made and left and order.events())
        site.wait_for(ALL)


def _remove(site: Site, uid: str) -> None:
    for sandbox_id in _sandboxes(site.direct, uid):
        remove_sandbox(site.client, sandbox_id)


def _sandboxes(client: CriClient, uid: str) -> list[str]:
    """The sandboxes of a pod."""
    wanted = api_pb2.PodSandboxFilter(label_selector={"io.kubernetes.pod.uid": uid})
    request = api_pb2.ListPodSandboxRequest(filter=wanted)
    return [each.id for each in client.runtime.ListPodSandbox(request, timeout=CALL_TIMEOUT_S).items]


def test_no_cpu_is_left_to_share(site: Site) -> None:
    """There is nowhere to go: the others have what the kubelet asked for, until a CPU is free again."""
    with site.own(own_spec()):
        site.assert_shared(LEFT)
        with site.own(replace(own_spec(LEFT), name="second")) as second:
            assert second.values().cpuset_cpus == LEFT
            site.wait_for(ALL)
        site.wait_for(LEFT)
    site.wait_for(ALL)
