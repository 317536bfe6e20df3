"""What a front end does not carry of a hook server's answers is told once of each server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtimeproxy.frontends.modes import carried_in
from runtimeproxy.hooks import ContainerChange, ContainerView, Hook, PodChange, PodView, Policy
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.carried import NOT_CARRIED, CarriedFields
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.loaded import LoadedPolicy, bind
from runtimeproxy.hooks.remote.server import HookServer
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.node.snapshot import Node
from tests.hooks.asking import decide
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server import HookServing
from tests.hooks.remote.servers import PATIENT_S, POD, PRE, VIEW
from tests.hooks.remote.test_server import with_overlay

RUN = Hook.PRE_RUN_POD_SANDBOX
OVERLAY = {
    "labels": {"team": "a", "tier": "b"},
    "cgroup_parent": "/kubepods/besteffort/other",
    "cpu_shares": 77,
    "cpuset_cpus": "0",
    "env": {"GIVEN": "1"},
}
SAYS_IT_ONCE = (
    "pre_create_container: cgroup_parent",
    "pre_run_pod_sandbox: annotations, cgroup_parent, labels, resources.cpuset_cpus",
)
"""All that mode nri does not carry of that: the pod's own cgroup has its shares by file."""


class Scene:
    """A chain in one mode, and its audit."""

    def __init__(self, workers: Workers, carried: CarriedFields, *policies: LoadedPolicy) -> None:
        self.audit: list[AuditEntry] = []
        self.chain = Chain(policies, workers, sink=self.audit.append, carried=carried)

    async def run(self, pods: int = 3) -> tuple[PodChange | None, ContainerChange | None]:
        """Some pods with a container each; returns the changes of the last one."""
        changes: list[object] = []
        for number in range(pods):
            pod = replace(POD, uid=f"u{number}", annotations={"a": "1"})
            views: dict[Hook, PodView | ContainerView] = {RUN: pod, PRE: replace(VIEW, pod=pod)}
            changes = [
                (await decide(self.chain, hook, view=view, budget_s=PATIENT_S)).change
                for hook, view in views.items()
            ]
        # Reports wait for a turn of the loop.
        await decide(self.chain, Hook.POST_STOP_CONTAINER, view=VIEW, budget_s=PATIENT_S)
        of_pod, of_container = changes
        assert isinstance(of_pod, PodChange | None)
        assert isinstance(of_container, ContainerChange | None)
        return of_pod, of_container

    @property
    def left_out(self) -> list[tuple[str, str, str]]:
        return [(each.hook, each.field, each.note) for each in self.audit if each.kind is AuditKind.LEFT_OUT]

    def told(self, server: str) -> tuple[str, ...]:
        found = self.chain.counts.uncarried.of(server)
        return tuple(f"{hook}: {', '.join(fields)}" for hook, fields in found.items())


async def test_of_many_answers_the_first_one_tells_it(
    ignored: HookServer, serving: HookServing, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    serving.behave(Behaviour(overlay={**OVERLAY, "annotations": {"x": "y"}}))
    scene = Scene(workers, carried_in("nri"), ignored.as_policy())
    of_pod, of_container = await scene.run()
    assert of_pod == PodChange(cgroup={"cpu.shares": 77})
    assert of_container is not None
    assert (of_container.env, of_container.annotations) == ({"GIVEN": "1"}, {"x": "y"})
    assert of_container.cgroup_parent is None
    assert sorted(scene.left_out) == [
        (PRE, "cgroup_parent", NOT_CARRIED),
        (RUN, "annotations", NOT_CARRIED),
        (RUN, "cgroup_parent", NOT_CARRIED),
        (RUN, "labels", NOT_CARRIED),
        (RUN, "resources.cpuset_cpus", NOT_CARRIED),
    ]
    assert {each.pod_uid for each in scene.audit if each.kind is AuditKind.LEFT_OUT} == {"u0"}
    assert scene.told("koordlet.json") == SAYS_IT_ONCE
    lines = [each.getMessage() for each in caplog.records if "does not carry" in each.getMessage()]
    assert len(lines) == len(scene.left_out)
    assert any("koordlet.json: mode nri does not carry labels of" in each for each in lines)


async def test_the_proxy_carries_all(ignored: HookServer, serving: HookServing, workers: Workers) -> None:
    serving.behave(Behaviour(overlay=OVERLAY))
    scene = Scene(workers, carried_in("proxy"), ignored.as_policy())
    of_pod, _ = await scene.run()
    assert of_pod is not None
    assert of_pod.labels == OVERLAY["labels"]
    assert (scene.left_out, scene.told("koordlet.json")) == ([], ())


async def test_a_server_that_is_registered_again_is_told_of_again(
    ignored: HookServer, serving: HookServing, workers: Workers
) -> None:
    serving.behave(Behaviour(overlay={"labels": {"team": "a"}}))
    scene = Scene(workers, carried_in("nri"), ignored.as_policy())
    await scene.run()
    scene.chain.use([ignored.as_policy()])
    await scene.run()
    assert len(scene.left_out) == 1
    scene.chain.use([])
    assert not scene.told("koordlet.json")
    scene.chain.use([ignored.as_policy()])
    await scene.run()
    assert len(scene.left_out) == 2


class Labels(Policy):
    """A policy of this process."""

    name = "labels"

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        return PodChange(labels={"team": "a"})


async def test_a_policy_of_this_process_is_told_of_with_each_pod(workers: Workers) -> None:
    scene = Scene(workers, carried_in("nri"), bind(Labels()))
    await scene.run()
    assert scene.left_out == [(RUN, "labels[team]", NOT_CARRIED)] * 3


async def test_other_fields_that_cannot_be_used_are_told_of_with_each_pod(
    ignored: HookServer, serving: HookServing, workers: Workers
) -> None:
    scene = Scene(workers, carried_in("nri"), ignored.as_policy())
    for _ in range(2):
        view = with_overlay('{"cpuset_cpus": "banana"}')
        await decide(scene.chain, view=view, budget_s=PATIENT_S)
    await scene.run(1)
    assert scene.left_out == [(PRE, "resources.cpuset_cpus", "")] * 2
    assert not scene.told("koordlet.json")
