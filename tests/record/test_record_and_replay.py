"""What a real daemon records is decided again as it was; with other policies it differs where they differ."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.errors import RefusalError
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    PodChange,
    PodView,
    Policy,
    ResourceChange,
)
from runtimeproxy.hooks.loaded import LoadedPolicy, bind
from runtimeproxy.hooks.loading import built_in, load
from runtimeproxy.hooks.settings import ChainRules, PolicySettings
from runtimeproxy.node.snapshot import Input, Node
from runtimeproxy.node.sources import NodeSources
from runtimeproxy.record.replay import Difference, replay
from runtimeproxy.simulate.reading import pod_calls
from runtimeproxy.slo.names import CPU_BURST
from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, KoordProxy, PodCgroups, RuntimeState
from tests.lab.deadline import wait_until
from tests.record.stand import Tape, recorded
from tests.simulate.test_agreement import KUBELET, NODE, STRATEGIES, TOPOLOGY

PODS = 24
QOS = ("LS", "BE", "LSR", "")
SKIP = ("runtimeproxy.koordinator.sh/skip-hookserver", "true")
CLEAR_TEXT = "hunter2-in-the-clear"


class Marking(Policy):
    """Marks pods, refuses some of them, and sets shares of containers, also in updates."""

    name = "marking"
    shares: ClassVar = 77

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        if pod.labels.get("refused") == "true":
            raise RefusalError("not here")
        return PodChange(annotations={"koordinator.sh/mark": pod.name}, labels={"marked": "true"})

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        # It sees what the pod's call has become.
        assert container.pod.labels["marked"] == "true"
        return ContainerChange(resources=ResourceChange(cpu_shares=self.shares), env={"MARK": "1"})


class OtherShares(Marking):
    shares: ClassVar = 78


class Nothing(Marking):
    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        return PodChange(labels={"marked": "true"})


def manifest(number: int) -> dict[str, Any]:
    qos = QOS[number % len(QOS)]
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    if number == PODS - 1:
        labels["refused"] = "true"
    limits = {"cpu": "1", "memory": "256Mi"} if number % 3 else {}
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", CLEAR_TEXT],
        "env": [{"name": "PASSWORD", "value": CLEAR_TEXT}],
        "resources": {"limits": limits, "requests": limits},
    }
    annotations = {"example.com/token": CLEAR_TEXT, CPU_BURST: '{"policy": "cpuBurstOnly"}'}
    return {
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "labels": labels, "annotations": annotations},
        "spec": {"containers": [container, {**container, "name": "side"}]},
    }


@pytest.fixture(scope="module")
def tape() -> Iterator[Tape]:
    """The recording of some dozens of pods, with updates, and a change of the strategies meanwhile."""
    with tempfile.TemporaryDirectory(prefix="rec-") as name:
        folder = Path(name)
        (folder / "sys/devices/system/cpu").mkdir(parents=True)
        (folder / "sys/devices/system/cpu/online").write_text("0-5")
        (folder / "node.d").mkdir()
        objects = folder / "node.d/node.json"
        objects.write_text(json.dumps({"kind": "List", "items": [NODE, TOPOLOGY, STRATEGIES]}))
        (folder / "kubelet").mkdir()
        (folder / "kubelet/config.yaml").write_text(KUBELET)
        files = CgroupFiles(folder / "cgroup", version=2)
        files.make("/kubepods")
        state = RuntimeState(PodCgroups(CgroupDriver.CGROUPFS, files))
        chosen = {each.name: PolicySettings(enabled=True) for each in built_in()}
        with (
            FakeRuntime(folder / "fake.sock", state=state) as fake,
            KoordProxy(fake, folder, [*built_in(), Marking], settings=chosen) as proxy,
        ):
            early = Run(proxy, 0)
            with recorded(proxy) as tape:
                early.update()
                for number in range(1, PODS // 2):
                    Run(proxy, number).update()
                change_strategies(proxy, objects)
                for number in range(PODS // 2, PODS - 1):
                    Run(proxy, number).end()
                with pytest.raises(grpc.RpcError):
                    Run(proxy, PODS - 1)
                # The refused call has no response.
                tape.wait_for("response", len(tape.wait_for("call", CALLS)) - 1)
            yield tape


UPDATED, ENDED = PODS // 2, PODS // 2 - 1
CALLS = 1 + 4 * (UPDATED - 1) + 5 * ENDED + 1
"""An update of a pod from before, pods with an update each, pods with an end, a refused pod."""


class Run:
    """A pod that the kubelet runs through the proxy."""

    def __init__(self, proxy: KoordProxy, number: int) -> None:
        self.runtime = proxy.runtime
        node = source_of(proxy).latest
        (calls,) = pod_calls(json.dumps(manifest(number)).encode(), "pod.json", node)
        request = api_pb2.RunPodSandboxRequest(config=calls.config)
        self.sandbox = self.runtime.RunPodSandbox(request, timeout=30).pod_sandbox_id
        self.containers = [
            self.runtime.CreateContainer(
                api_pb2.CreateContainerRequest(
                    pod_sandbox_id=self.sandbox, config=each.config, sandbox_config=calls.config
                ),
                timeout=30,
            ).container_id
            for each in calls.containers
        ]

    def update(self) -> None:
        linux = api_pb2.LinuxContainerResources(cpu_shares=512)
        self.runtime.UpdateContainerResources(
            api_pb2.UpdateContainerResourcesRequest(container_id=self.containers[0], linux=linux), timeout=30
        )

    def end(self) -> None:
        self.runtime.StopPodSandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=self.sandbox), timeout=30)
        self.runtime.RemovePodSandbox(
            api_pb2.RemovePodSandboxRequest(pod_sandbox_id=self.sandbox), timeout=30
        )


def source_of(proxy: KoordProxy) -> NodeSources:
    assert proxy._daemon is not None
    assert proxy._daemon.parts is not None
    return proxy._daemon.parts.core.node


def change_strategies(proxy: KoordProxy, objects: Path) -> None:
    source = source_of(proxy)
    before = source.latest.generations.get(Input.STRATEGIES, 0)
    data = {**STRATEGIES["data"], "cpu-burst-config": '{"clusterStrategy": {"policy": "none"}}'}  # type: ignore[dict-item]
    changed = objects.with_name("new")
    changed.write_text(json.dumps({"kind": "List", "items": [NODE, TOPOLOGY, {**STRATEGIES, "data": data}]}))
    changed.rename(objects)
    wait_until(lambda: source.latest.generations.get(Input.STRATEGIES, 0) != before, "the strategies")


def policies(*classes: type[Policy]) -> list[LoadedPolicy]:
    chosen = {each.name: PolicySettings(enabled=True) for each in built_in()}
    return [*load(built_in(), chosen), *(bind(each()) for each in classes)]


def test_the_same_policies_decide_the_same(tape: Tape) -> None:
    found = replay(tape.recording(), policies(Marking), ChainRules(skip_label=SKIP))
    assert found.differences == []
    assert found.failures == {}
    assert found.skipped == {}
    assert found.calls == CALLS
    assert not found.is_cut_off
    # Not because nothing was decided.
    decided = [each for call in tape.of_kind("call") for each in call["decisions"]]
    assert sum(len(each.get("fields", ())) for each in decided) > 4 * PODS
    assert len([each for each in decided if "refusal" in each]) == 1


def about(difference: Difference) -> tuple[str, str, str, str | None, str | None]:
    return difference.method, difference.container, difference.field, difference.was, difference.now


def test_a_changed_policy_differs_where_it_differs(tape: Tape) -> None:
    found = replay(tape.recording(), policies(OtherShares), ChainRules(skip_label=SKIP))
    fields = {about(each) for each in found.differences}
    shares = ("resources.cpu_shares", "77", "78")
    assert {each for each in fields if each[2] != "resources.unified[cpu.weight]"} == {
        ("CreateContainer", "main", *shares),
        ("CreateContainer", "side", *shares),
        ("UpdateContainerResources", "main", *shares),
    }
    created = 2 * (PODS - 2)
    assert found.differing == created + UPDATED
    assert found.differing < found.calls


def test_a_policy_that_is_gone(tape: Tape) -> None:
    found = replay(tape.recording(), policies(Nothing), ChainRules(skip_label=SKIP))
    last = [each for each in found.differences if each.pod == f"pod-{PODS - 1}"]
    # It is not refused any more, so it gets what the others have.
    assert (last[0].field, last[0].was) == ("refusal", "marking: not here")
    assert all(each.was is None and each.now for each in last[1:])
    others = [each for each in found.differences if each.pod != f"pod-{PODS - 1}"]
    assert {(each.method, each.field) for each in others} == {
        ("RunPodSandbox", "annotations[koordinator.sh/mark]")
    }
    assert [(each.was, each.now) for each in others] == [(each.pod, None) for each in others]
    assert len(others) == PODS - 2


def test_the_strategies_of_the_time_of_the_call_count(tape: Tape) -> None:
    changes = [each for each in tape.of_kind("node") if "strategies" in each]
    assert len(changes) == 2


def test_nothing_secret_is_in_it(tape: Tape) -> None:
    assert CLEAR_TEXT.encode() not in tape.data
    assert b"PASSWORD" in tape.data
    assert os.fsencode("cpuBurstOnly") in tape.data


def test_a_recording_that_was_cut_off(tape: Tape) -> None:
    recording = tape.recording()
    whole = replay(recording, policies(Marking), ChainRules(skip_label=SKIP)).calls
    last = tape.data.rindex(b'{"call"')
    for data, calls in ((tape.data[: last + 20], whole - 1), (tape.data[:last], whole - 1)):
        short = Tape()
        short.data = data
        found = replay(short.recording(), policies(Marking), ChainRules(skip_label=SKIP))
        assert (found.calls, found.differences) == (calls, [])
        assert found.is_cut_off is not data.endswith(b"\n")
