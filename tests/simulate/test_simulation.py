"""Simulations whose policies fail or hang, and what they leave behind."""

from __future__ import annotations

import sys
import threading
from typing import ClassVar

from runtimeproxy.errors import RefusalError
from runtimeproxy.frontends.modes import carried_in
from runtimeproxy.hooks import ContainerChange, ContainerView, PodChange, PodView, Policy, ResourceChange
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.node.snapshot import Node
from runtimeproxy.simulate.reading import pod_calls
from runtimeproxy.simulate.simulation import simulate

POD = b"kind: Pod\nspec: {containers: [{name: a}, {name: b}]}"
NODE = Node(cgroup_driver="cgroupfs")


class Hanging(Policy):
    """Hangs until it is told to go on."""

    name: ClassVar[str] = "hanging"
    timeout_s: ClassVar[float] = 0.05

    def __init__(self) -> None:
        self.released = threading.Event()
        self.threads: list[threading.Thread] = []

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        self.threads.append(threading.current_thread())
        self.released.wait()
        return None


class Light(Policy):
    """Sets shares."""

    name: ClassVar[str] = "light"
    priority: ClassVar[int] = 60

    def container(self, container: ContainerView, node: Node) -> ContainerChange:
        return ContainerChange(resources=ResourceChange(cpu_shares=5))


def test_a_policy_that_hangs_is_left_behind() -> None:
    policy, usual_s = Hanging(), sys.getswitchinterval()
    calls = pod_calls(POD, "x", NODE)
    (pod,) = simulate(calls, [bind(policy), bind(Light())], NODE).pods
    assert sys.getswitchinterval() == usual_s
    _, first, second = pod.targets
    for target in (first, second):
        (remark,) = target.remarks
        assert (remark.policy, remark.kind) == ("hanging", AuditKind.FAILED)
        assert target.fields[0].after == "5"
    assert "no answer within 0.05 s" in first.remarks[0].reason
    # It would take every thread if it ran again.
    assert "still hangs" in second.remarks[0].reason
    (thread,) = policy.threads
    policy.released.set()
    thread.join(30)
    assert not thread.is_alive()


def test_simulations_leave_no_thread() -> None:
    calls = pod_calls(POD, "x", NODE)
    before = set(threading.enumerate())
    for _ in range(3):
        (pod,) = simulate(calls, [bind(Light())], NODE).pods
        assert [each.after for target in pod.targets for each in target.fields] == ["5", "5"]
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()


class Marking(Policy):
    """Gives the pod a label, and a container a variable beside its shares."""

    name: ClassVar[str] = "marking"

    def pod(self, pod: PodView, node: Node) -> PodChange:
        return PodChange(labels={"team": "a"}, cgroup={"cpu.cfs_quota_us": 5_000})

    def container(self, container: ContainerView, node: Node) -> ContainerChange:
        assert "team" not in container.pod.labels
        return ContainerChange(resources=ResourceChange(cpu_shares=5), env={"A": "secret"})


class Refusing(Policy):
    """Refuses each pod."""

    name: ClassVar[str] = "refusing"

    def pod(self, pod: PodView, node: Node) -> PodChange:
        raise RefusalError("no")


def test_a_mode_without_messages_has_values_by_file_and_says_what_it_does_not_carry() -> None:
    calls, carried = pod_calls(POD, "pod.yaml", NODE), carried_in("standalone")
    (pod,) = simulate(calls, [bind(Marking()), bind(Refusing())], NODE, carried=carried).pods
    fields = {f"{target.kind} {field.name}": field.after for target in pod.targets for field in target.fields}
    assert fields == {"pod cgroup[cpu.cfs_quota_us]": "5000", "container resources.cpu_shares": "5"}
    remarks = [each for target in pod.targets for each in target.remarks]
    left_out = [each for each in remarks if each.kind is AuditKind.LEFT_OUT]
    assert [(each.policy, each.field) for each in left_out] == [
        ("marking", "labels[team]"),
        *[("marking", "env[A]")] * 2,
    ]
    assert {each.reason for each in left_out} == {carried.reason}
    # Nothing can be refused once it runs.
    assert not any(target.refusal for target in pod.targets)
    assert [each.policy for each in remarks if each.kind is AuditKind.FAILED] == ["refusing"]
