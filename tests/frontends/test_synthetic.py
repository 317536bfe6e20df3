"""A third front end: what it declares that it carries is all that the core has to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.frontends.front_end import FrontEnd
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    PodChange,
    PodView,
    Policy,
    ResourceChange,
)
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.node.snapshot import Node
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.resources import read_resources
from runtimeproxy.service.daemon import Daemon
from runtimeproxy.testing import CgroupFiles, FakeRuntime, KoordProxy
from runtimeproxy.testing.builders import default_resources
from tests.daemon.conftest import cgroup_files, runtime
from tests.daemon.driving import pod
from tests.frontends.synthetic import Synthetic, WithoutLimits
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient

__all__ = ["cgroup_files", "runtime"]

LIMIT_BYTES = 64 << 20
"""Of containers."""
QUOTA_US = 50_000
"""Of pods."""


class Wants(Policy):
    """Something of everything."""

    name = "wants"

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        return PodChange(
            labels={"team": "a"},
            resources=ResourceChange(cpu_shares=5),
            cgroup={"cpu.cfs_quota_us": QUOTA_US},
            reason="of pods",
        )

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        return ContainerChange(
            resources=ResourceChange(cpu_shares=77, memory_limit_bytes=LIMIT_BYTES),
            env={"GIVEN": "secret"},
            reason="of containers",
            reasons={"memory_limit_bytes": "of memory"},
        )


class Scene:
    """A daemon with a synthetic front end, and a pod that went through it."""

    def __init__(self, proxy: KoordProxy, front_end: Synthetic, kubelet: CriClient) -> None:
        self.proxy, self.front_end = proxy, front_end
        self._api = api_pb2_grpc.RuntimeProxyStub(proxy.channel)
        made = self._made = pod(kubelet)
        about, parent = made.config.metadata, made.config.linux.cgroup_parent
        draft = PodRecord(
            id="",
            uid=about.uid,
            name=about.name,
            namespace=about.namespace,
            labels=dict(made.config.labels),
            cgroup_parent=parent,
        )
        self.files.make(parent)
        self.pod = front_end.run_pod(draft, lambda: made.run().id)
        requested = read_resources(default_resources())
        box = ContainerRecord(id="", pod_id=made.id, name="main", requested=requested)
        self.box = front_end.create(self.pod, box, self._create)

    @property
    def files(self) -> CgroupFiles:
        found = self.proxy.fake_runtime.state.cgroups.files
        assert found is not None
        return found

    def _create(self, draft: ContainerRecord) -> str:
        sent, values = self._made.resources, draft.booked
        sent.cpu_shares, sent.memory_limit_in_bytes = values.cpu_shares or 0, values.memory_limit_bytes or 0
        return self._made.create().container

    def start(self) -> None:
        self._made.start()
        self.front_end.start(self.box)

    @property
    def cgroup(self) -> str:
        return f"{self.pod.cgroup_parent}/{self.box.id}"

    def entries(self, kind: AuditKind, count: int) -> dict[str, AuditEntry]:
        """So many, or more, by the pod's or container's name, and the field."""
        found = self.proxy.wait_for_audit(kind, count)
        return {f"{each.container or 'pod'} {each.field}": each for each in found if each.field}

    def unapplied(self) -> dict[str, api_pb2.UnappliedValue]:
        """The same of `status`."""
        status = self._api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S, wait_for_ready=True)
        assert status.daemon.mode == "synthetic"
        names = {f"default/{self.pod.name}": "pod", f"default/{self.pod.name}/main": "main"}
        return {f"{names[each.target]} {each.field}": each for each in status.ledger.unapplied}

    def explained(self) -> dict[str, api_pb2.ExplainedField]:
        """The same of `explain`."""
        request = api_pb2.ExplainRequest(pod=self.pod.uid)
        answer = self._api.Explain(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)
        return {
            f"{target.container or 'pod'} {field.name}": field
            for target in answer.targets
            for field in target.fields
        }


@pytest.fixture
def scene_of(
    socket_folder: Path, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[type[Synthetic]], Scene]]:
    with ExitStack() as stack:

        def make(kind: type[Synthetic]) -> Scene:
            front_end = kind()

            class WithSynthetic(Daemon):
                def _make_front_end(self, *_: object) -> FrontEnd:
                    return front_end

            monkeypatch.setattr("runtimeproxy.testing.koord_proxy.Daemon", WithSynthetic)
            proxy = stack.enter_context(KoordProxy(runtime, socket_folder, [Wants]))
            return Scene(proxy, front_end, stack.enter_context(CriClient(runtime.socket_path)))

        yield make


def test_only_what_it_carries_is_in_its_messages(scene_of: Callable[[type[Synthetic]], Scene]) -> None:
    scene = scene_of(Synthetic)
    resources = ResourceChange(cpu_shares=77, memory_limit_bytes=LIMIT_BYTES)
    assert scene.front_end.changes == [
        PodChange(cgroup={"cpu.cfs_quota_us": QUOTA_US}),
        ContainerChange(resources=resources),
    ]
    left_out = scene.entries(AuditKind.LEFT_OUT, 3)
    assert left_out.keys() == {"pod labels[team]", "pod resources.cpu_shares", "main env[GIVEN]"}
    assert all("mode synthetic does not carry it" in each.reason for each in left_out.values())
    changed = scene.entries(AuditKind.CHANGED, 3)
    assert changed.keys() == {
        "pod cgroup[cpu.cfs_quota_us]",
        "main resources.cpu_shares",
        "main resources.memory_limit_bytes",
    }
    assert not any("secret" in str(each) for each in scene.proxy.audit)


def test_what_it_never_carries_waits_for_no_other_sandbox(
    scene_of: Callable[[type[Synthetic]], Scene],
) -> None:
    scene = scene_of(Synthetic)
    scene.start()
    scene.front_end.evaluate(scene.pod)
    names = {"pod labels[team]", "pod resources.cpu_shares", "main env[GIVEN]"}
    unapplied = scene.unapplied()
    assert {name: (each.cause, each.is_problem) for name, each in unapplied.items()} == dict.fromkeys(
        names, ("not-in-mode", False)
    )
    assert all("mode synthetic" in each.reason for each in unapplied.values())
    fields = scene.explained()
    by, ways = api_pb2.ExplainedField, {name: each.way for name, each in fields.items()}
    assert ways == {
        **dict.fromkeys(names, by.WAY_UNSPECIFIED),
        "pod cpu.cfs_quota_us": by.WAY_FILE,
        "main cpu.shares": by.WAY_MESSAGE,
        "main memory.limit_in_bytes": by.WAY_MESSAGE,
    }
    assert all("mode synthetic" in fields[name].problem for name in names)
    assert not scene.entries(AuditKind.CHANGED, 3).keys() & names


def test_a_resource_that_its_message_does_not_carry_goes_by_file(
    scene_of: Callable[[type[Synthetic]], Scene],
) -> None:
    scene = scene_of(WithoutLimits)
    by_file = ContainerChange(
        resources=ResourceChange(cpu_shares=77), cgroup={"memory.limit_in_bytes": LIMIT_BYTES}
    )
    assert scene.front_end.changes[1] == by_file
    scene.start()
    assert scene.files.read(scene.cgroup, "memory.max") == str(LIMIT_BYTES)
    scene.front_end.evaluate(scene.pod)
    field = scene.explained()["main memory.limit_in_bytes"]
    assert (field.way, field.applied) == (api_pb2.ExplainedField.WAY_FILE, str(LIMIT_BYTES))
    assert {each.reason for each in field.claims} == {"of memory"}
    changed = scene.entries(AuditKind.CHANGED, 3)
    assert changed["main cgroup[memory.limit_in_bytes]"].reason == "of memory"
    assert "main memory.limit_in_bytes" not in scene.unapplied()
