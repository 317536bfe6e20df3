"""What a simulation announces is what the runtime receives when a kubelet runs the pod through the daemon."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.fields.tables import CRI_FIELDS
from runtimeproxy.hooks.loading import built_in
from runtimeproxy.hooks.policy import Mode
from runtimeproxy.hooks.settings import ChainRules, PolicySettings
from runtimeproxy.node.snapshot import Input, InputState
from runtimeproxy.simulate.kubelet import PodCalls
from runtimeproxy.simulate.reading import pod_calls
from runtimeproxy.simulate.result import SimulatedTarget
from runtimeproxy.simulate.simulation import simulate
from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, KoordProxy, PodCgroups, RuntimeState
from tests.simulate.wishes import ONLINE, Dry, First, Second, pods

HOST = os.uname().nodename.strip().lower()
KUBELET = "{kind: KubeletConfiguration, cgroupDriver: cgroupfs, cpuManagerPolicy: none}"
NODE = {
    "kind": "Node",
    "metadata": {
        "name": HOST,
        "annotations": {"node.koordinator.sh/cpu-normalization-ratio": "1.30"},
    },
    "status": {
        "capacity": {"cpu": "6", "memory": "16Gi"},
        "allocatable": {"cpu": "6", "memory": "15Gi"},
    },
}
TOPOLOGY = {
    "kind": "NodeResourceTopology",
    "metadata": {
        "name": HOST,
        "annotations": {
            "node.koordinator.sh/cpu-shared-pools": '[{"socket": 0, "node": 0, "cpuset": "0-3"}]',
            "node.koordinator.sh/be-cpu-shared-pools": '[{"socket": 0, "node": 0, "cpuset": "0-5"}]',
        },
    },
}
STRATEGIES = {
    "kind": "ConfigMap",
    "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
    "data": {
        "cpu-burst-config": '{"clusterStrategy": {"policy": "auto"}}',
        "resource-qos-config": '{"clusterStrategy": {"lsClass": {"memoryQOS": {"enable": true, '
        '"minLimitPercent": 20}, "cpuQOS": {"enable": true, "groupIdentity": 2}}}}',
    },
}

Differences = dict[str, tuple[str | None, str | None]]
"""By field, as a simulation names it: before and after."""


class Stand(NamedTuple):
    """The daemon in front of a fake runtime."""

    proxy: KoordProxy

    @property
    def parts(self) -> Any:
        assert self.proxy._daemon is not None
        return self.proxy._daemon.parts


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with tempfile.TemporaryDirectory(prefix="sim-") as name:
        folder = Path(name)
        online = folder / "sys/devices/system/cpu/online"
        online.parent.mkdir(parents=True)
        online.write_text(ONLINE)
        (folder / "sys/class/block").mkdir(parents=True)
        (folder / "node.d").mkdir()
        items = [NODE, TOPOLOGY, STRATEGIES]
        (folder / "node.d/node.json").write_text(json.dumps({"kind": "List", "items": items}))
        (folder / "kubelet").mkdir()
        (folder / "kubelet/config.yaml").write_text(KUBELET)
        # Katalyst's pools take the place of the policy cpuset.
        chosen = {
            each.name: PolicySettings(enabled=True) for each in built_in() if each.name != "katalyst-pools"
        }
        chosen["dry"] = PolicySettings(mode=Mode.DRY_RUN)
        files = CgroupFiles(folder / "cgroup", version=2)
        files.make("/kubepods")
        state = RuntimeState(PodCgroups(CgroupDriver.CGROUPFS, files))
        with FakeRuntime(folder / "fake.sock", state=state) as fake:
            everything = [*built_in(), First, Second, Dry]
            with KoordProxy(fake, folder, everything, settings=chosen) as proxy:
                yield Stand(proxy)


def run(stand: Stand, calls: PodCalls) -> tuple[list[tuple[str, Differences]], str]:
    """Runs the pod as the kubelet does; returns what differs in each call that succeeded, and a refusal."""
    received, runtime = stand.proxy.fake_runtime.recorded, stand.proxy.runtime
    received.clear()
    found: list[tuple[str, Differences]] = []
    try:
        sandbox = runtime.RunPodSandbox(api_pb2.RunPodSandboxRequest(config=calls.config), timeout=30)
        (call,) = received.wait("RunPodSandbox")
        found.append((calls.config.metadata.name, sandbox_differences(calls.config, call.message.config)))
        for number, container in enumerate(calls.containers):
            request = api_pb2.CreateContainerRequest(
                pod_sandbox_id=sandbox.pod_sandbox_id, config=container.config, sandbox_config=calls.config
            )
            runtime.CreateContainer(request, timeout=30)
            call = received.wait("CreateContainer", number + 1)[number]
            name = container.config.metadata.name
            found.append((name, container_differences(container.config, call.message.config)))
            # The container lies where the sandbox does.
            parent = stand.proxy.fake_runtime.state.find_sandbox(sandbox.pod_sandbox_id).config.linux
            assert call.message.sandbox_config.linux.cgroup_parent == parent.cgroup_parent
    except grpc.RpcError as error:
        prefix, _, text = (error.details() or "").partition(": ")
        return found, text if prefix == "koord-runtime-proxy" else f"by the runtime: {error.details()}"
    return found, ""


def announced(target: SimulatedTarget) -> Differences:
    fields = [each for each in target.fields if not each.name.startswith("cgroup[")]
    for each in fields:
        assert not each.depends_on, each.name
    return {each.name: (each.before, each.after) for each in fields if each.is_changed}


def sandbox_differences(sent: api_pb2.PodSandboxConfig, got: api_pb2.PodSandboxConfig) -> Differences:
    found = resource_differences(sent.linux.resources, got.linux.resources)
    found |= map_differences("labels", sent.labels, got.labels)
    found |= map_differences("annotations", sent.annotations, got.annotations)
    if sent.linux.cgroup_parent != got.linux.cgroup_parent:
        found["cgroup_parent"] = (sent.linux.cgroup_parent, got.linux.cgroup_parent)
    rest = api_pb2.PodSandboxConfig()
    rest.CopyFrom(got)
    for name in ("labels", "annotations"):
        getattr(rest, name).clear()
        getattr(rest, name).update(getattr(sent, name))
    rest.linux.cgroup_parent = sent.linux.cgroup_parent
    rest.linux.resources.CopyFrom(sent.linux.resources)
    assert rest == sent
    return found


def container_differences(sent: api_pb2.ContainerConfig, got: api_pb2.ContainerConfig) -> Differences:
    found = resource_differences(sent.linux.resources, got.linux.resources)
    found |= map_differences("annotations", sent.annotations, got.annotations)
    before, after = ({each.key: each.value for each in config.envs} for config in (sent, got))
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name):
            was, now = ("<set>" if name in env else None for env in (before, after))
            found[f"env[{name}]"] = (was, now)
    for mount in got.mounts[len(sent.mounts) :]:
        mode = "ro" if mount.readonly else "rw"
        found[f"mounts[{mount.container_path}]"] = (None, f"{mount.host_path}:{mount.container_path}:{mode}")
    for device in got.CDI_devices[len(sent.CDI_devices) :]:
        found[f"cdi_devices[{device.name}]"] = (None, device.name)
    return found


def resource_differences(
    sent: api_pb2.LinuxContainerResources, got: api_pb2.LinuxContainerResources
) -> Differences:
    found = map_differences("resources.unified", sent.unified, got.unified)
    for name, field in CRI_FIELDS.items():
        # 0 and an empty text have no bytes.
        values = [getattr(each, field.cri) for each in (sent, got)]
        before, after = (str(each) if each else None for each in values)
        if before != after:
            found[f"resources.{name}"] = (before, after)
    return found


def map_differences(group: str, sent: Any, got: Any) -> Differences:
    return {
        f"{group}[{key}]": (sent.get(key), got.get(key))
        for key in {*sent, *got}
        if sent.get(key) != got.get(key)
    }


def check(stand: Stand, manifest: dict[str, Any], *, webhook: bool) -> None:
    core = stand.parts.core
    node = core.node.latest
    assert node.state_of(Input.STRATEGIES) is InputState.KNOWN
    (calls,) = pod_calls(json.dumps(manifest).encode(), "pod.json", node, webhook=webhook)
    skip = ("runtimeproxy.koordinator.sh/skip-hookserver", "true")
    (pod,) = simulate([calls], core.policies.loaded.policies, node, ChainRules(skip_label=skip)).pods
    found, refusal = run(stand, calls)
    wanted = [(each.name, announced(each)) for each in pod.targets if not each.refusal]
    assert wanted == found
    assert next((each.refusal for each in pod.targets if each.refusal), "") == refusal


@given(pods(), st.booleans())
@settings(max_examples=40)
def test_the_runtime_gets_what_is_announced(stand: Stand, manifest: dict[str, Any], webhook: bool) -> None:
    check(stand, manifest, webhook=webhook)


@pytest.mark.slow
@given(pods(), st.booleans())
@settings(max_examples=300)
def test_the_runtime_gets_what_is_announced_for_many_pods(
    stand: Stand, manifest: dict[str, Any], webhook: bool
) -> None:
    check(stand, manifest, webhook=webhook)
