"""Node, policies and registrations of settings without a daemon, and a chain of their own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from runtimeproxy.config.settings import CgroupsSettings, HooksSettings, NodeSettings, Settings, StateSettings
from runtimeproxy.core.questions import Question
from runtimeproxy.errors import RefusalError
from runtimeproxy.hooks import Hook, PodChange, PodView, Policy
from runtimeproxy.hooks.audit import AuditEntry
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.settings import ChainRules, PolicySettings
from runtimeproxy.node.snapshot import Node
from runtimeproxy.offline import Offline, OfflineChain
from runtimeproxy.simulate.files import registered_servers

SKIP = ("skip", "yes")


class Marking(Policy):
    name = "marking"

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        if pod.name == "refused":
            raise RefusalError("not here")
        return PodChange(annotations={"mark": pod.name})


def settings(folder: Path) -> Settings:
    for name in ("servers", "objects", "cgroups"):
        (folder / name).mkdir()
    return Settings(
        hooks=HooksSettings(
            server_config_dir=str(folder / "servers"),
            third_party=False,
            skip_label_key=SKIP[0],
            skip_label_value=SKIP[1],
            budget_s=30.0,
        ),
        policies={"cpuset": PolicySettings(enabled=False), "no-such": PolicySettings()},
        node=NodeSettings(objects_dir=str(folder / "objects"), sysfs_root=str(folder), name="n"),
        cgroups=CgroupsSettings(root=str(folder / "cgroups")),
        state=StateSettings(dir=str(folder)),
    )


def test_the_parts_are_those_of_a_daemon_with_these_settings(tmp_path: Path) -> None:
    offline = Offline(settings(tmp_path))
    (tmp_path / "objects" / "node.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"zone": "a"}}})
    )
    (tmp_path / "objects" / "bad.json").write_text("{")
    names = {each.name for each in offline.policies.policies}
    assert "batch-resource" in names
    assert "cpuset" not in names
    assert [each.name for each in offline.policies.problems] == ["no-such"]
    assert offline.inputs.node.labels == {"zone": "a"}
    assert any("bad.json" in each for each in offline.inputs.problems)
    assert offline.settings.hooks.rules == ChainRules(skip_label=SKIP, budget_s=30.0)


def test_registrations_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    offline = Offline(settings(tmp_path))
    folder = tmp_path / "servers"
    hooks = {"remote-endpoint": "/run/server.sock", "runtime-hooks": ["PreRunPodSandbox"]}
    (folder / "good.json").write_text(json.dumps(hooks))
    (folder / "bad.json").write_text("[]")
    (folder / "link.json").symlink_to(folder / "nowhere")
    found = offline.registrations
    assert {name for name, each in found.items() if each.registration is not None} == {"good.json"}
    assert found["bad.json"].problems
    assert found["link.json"].problems == ("is a dangling symbolic link",)
    assert [each.name for each in registered_servers(folder)] == ["good.json"]
    assert registered_servers(folder / "missing") == []


def decided(name: str, labels: dict[str, str] | None = None) -> Decision | None:
    pod = PodView(name=name, uid="u", namespace="d", labels=labels or {})
    entries: list[AuditEntry] = []

    async def decide() -> Decision | None:
        chain = OfflineChain([bind(Marking())], ChainRules(skip_label=SKIP), entries.append)
        try:
            return await chain.decide(Question(Hook.PRE_RUN_POD_SANDBOX, pod, lambda: pod))
        finally:
            chain.close()

    return asyncio.run(decide())


def test_a_question_is_decided() -> None:
    decision = decided("web")
    assert decision is not None
    assert decision.refusal is None
    assert decision.merged.new_pod.annotations == {"mark": "web"}


def test_a_refusal_changes_nothing() -> None:
    decision = decided("refused")
    assert decision is not None
    assert decision.refusal is not None
    assert decision.change is None
    assert decision.merged.new_pod.annotations == {}


def test_no_policy_is_about_a_pod_with_the_skip_label() -> None:
    assert decided("web", dict([SKIP])) is None
