"""What a node cannot take of an answer, on a real containerd: every other field is in the kernel's files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtime.v1.api_pb2 import LinuxContainerResources
from tests.e2e.conftest import OF_MANY_TESTS
from tests.e2e.test_hook_servers import ASKED, FILE, HOOKS, environment, oom_score_adj, pod
from tests.e2e.values import MIB
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab import cgroup_v1
from tests.lab.cgroup_v1 import CgroupValues
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import running_pod, update_resources
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

POLICY = """
from runtimeproxy.hooks import ContainerChange, PodChange, Policy, ResourceChange


class Daring(Policy):
    name = "daring"

    def pod(self, pod, node):
        values = {"cpu.shares": 300, "cpu.bvt_warp_ns": 2, "memory.usage_in_bytes": 5}
        return PodChange(cgroup=values)

    def container(self, container, node):
        return ContainerChange(
            resources=ResourceChange(
                cpu_shares=300,
                cpu_quota_us=-1,
                memory_limit_bytes=12,
                oom_score_adj=5_000,
                cpuset_cpus="0-999",
                cpuset_mems="0-999",
                unified={"memory.high": "max"},
            ),
            env={"ADDED": "1", "BAD=NAME": "2"},
            cgroup={"cpu.bvt_warp_ns": 2, "cpu.shares": 301},
        )
"""
"""One that answers what no node takes, and some that any does."""


@pytest.fixture
def daring(containerd: Containerd, folder: Path) -> Iterator[ProxyProcess]:
    """A proxy with such a policy, which must not fail. It is about all pods, so this ends with the test."""
    config = '[policies.daring]\nfailure_policy = "fail"\n'
    own = ProxyProcess(
        Path(tempfile.mkdtemp(dir=folder)), ProxyOptions(str(containerd.socket), config=config)
    )
    own.policies_folder.mkdir(mode=0o755, exist_ok=True)
    (own.policies_folder / "daring.py").write_text(POLICY)
    with own as running:
        yield running


def audit(proxy: ProxyProcess, uid: str, kind: str, hook: str) -> dict[str, str]:
    """The fields of the audit's lines about a pod, with their reasons."""
    lines = [
        record
        for record in proxy.log_records
        if record["logger"] == "runtimeproxy.audit"
        and (record["uid"], record["kind"], record["hook"]) == (uid, kind, hook)
    ]
    return {change["field"]: change["reason"] for line in lines for change in line["changes"]}


def is_told(proxy: ProxyProcess, uid: str) -> bool:
    """Whether the log has the container's shares: after its start, or as soon as its cgroup was there."""
    lines = [each for each in proxy.log_records if each.get("uid") == uid and each.get("kind") != "pending"]
    changes = [change for each in lines for change in each.get("changes", ())]
    return any("cpu.shares" in each["field"] and each["to"] == "301" for each in changes)


def test_a_policy_that_answers_what_the_node_lacks(daring: ProxyProcess, logs: Path) -> None:
    spec = PodSpec("daring", "burstable", containers=(ContainerSpec(resources=ASKED),))
    with CriClient(daring.socket) as client, running_pod(client, spec, logs) as running:
        uid = running.spec.uid
        expected = CgroupValues(301, -1, 64 * MIB, "0")
        wait_until(lambda: running.values() == expected, f"{expected}, not {running.values()}")
        wait_until(lambda: is_told(daring, uid), "a line about it")
        assert cgroup_v1.read("cpu", running.spec.cgroup_parent, "cpu.shares") == "300"
        assert "ADDED=1" in environment(running)
        assert oom_score_adj(running) == 500
    left_out = audit(daring, uid, "left-out", "pre_create_container")
    assert left_out.keys() == {
        "resources.memory_limit_bytes",
        "resources.oom_score_adj",
        "resources.cpuset_cpus",
        "resources.cpuset_mems",
        "resources.unified[memory.high]",
        "env",
        "cgroup[cpu.bvt_warp_ns]",
    }
    assert "not online" in left_out["resources.cpuset_cpus"]
    assert "version 1" in left_out["resources.unified[memory.high]"]
    assert "this kernel has no" in left_out["cgroup[cpu.bvt_warp_ns]"]
    pod_fields = audit(daring, uid, "left-out", "pre_run_pod_sandbox")
    assert pod_fields.keys() == {"cgroup[cpu.bvt_warp_ns]", "cgroup[memory.usage_in_bytes]"}
    assert audit(daring, uid, "changed", "pre_run_pod_sandbox").keys() == {"cgroup[cpu.shares]"}
    assert audit(daring, uid, "pending", "pre_create_container").keys() == {"cgroup[cpu.shares]"}
    (line,) = (
        each
        for each in daring.log_records
        if (each.get("uid"), each.get("kind")) == (uid, "left-out") and each["container"]
    )
    assert line["level"] == "warning"
    assert line["sandbox"]


@pytest.fixture(scope="session")
def strict_server(folder: Path) -> Iterator[HookServerProcess]:
    with HookServerProcess(Path(tempfile.mkdtemp(dir=folder)) / "hook.sock") as running:
        yield running


@pytest.fixture(scope="session")
def strict(containerd: Containerd, folder: Path, strict_server: HookServerProcess) -> Iterator[ProxyProcess]:
    """A proxy with a hook server that must not fail."""
    options = ProxyOptions(str(containerd.socket), config=OF_MANY_TESTS)
    own = ProxyProcess(Path(tempfile.mkdtemp(dir=folder)), options)
    strict_server.register(own.hook_folder, FILE, *HOOKS, failure_policy="Fail")
    with own as running:
        wait_until(lambda: any("hook server" in line and "is used" in line for line in running.log), FILE)
        yield running


UNUSABLE: dict[str, tuple[dict[str, Any], set[str]]] = {
    "cpus that are not online": ({"cpuset_cpus": "0-999"}, {"cpuset_cpus"}),
    "nodes that are not online": ({"cpuset_mems": "7"}, {"cpuset_mems"}),
    "an empty list": ({"cpuset_cpus": ","}, {"cpuset_cpus"}),
    "a file of version 2": ({"unified": {"memory.high": "max"}}, {"unified[memory.high]"}),
    "an OOM score": ({"oom_score_adj": 5_000}, {"oom_score_adj"}),
    "a period, which takes its quota along": (
        {"cpu_period": 5, "cpu_quota": 30_000},
        {"cpu_period_us", "cpu_quota_us"},
    ),
    "memory of less than a page": ({"memory_limit_in_bytes": 12}, {"memory_limit_bytes"}),
    "a quota below -1": ({"cpu_quota": -7}, {"cpu_quota_us"}),
}
GOOD = {"cpu_shares": 256, "cpu_quota": 25_000, "memory_limit_in_bytes": 32 * MIB, "cpuset_cpus": "1"}
"""What stands in the same answer."""
IN_FILES = {"cpu_shares": 256, "cpu_quota_us": 25_000, "memory_limit_bytes": 32 * MIB, "cpuset_cpus": "1"}
KEPT = {"cpu_shares": 512, "cpu_quota_us": 50_000, "memory_limit_bytes": 64 * MIB, "cpuset_cpus": "0"}
"""What the kubelet asks for."""


@pytest.mark.parametrize(("overlay", "lost"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_hook_server_that_answers_what_the_node_lacks(
    overlay: dict[str, Any],
    lost: set[str],
    strict: ProxyProcess,
    strict_server: HookServerProcess,
    logs: Path,
) -> None:
    strict_server.behave("koordlet")
    answer = {**GOOD, **overlay, "env": {"NVIDIA_VISIBLE_DEVICES": "0"}}
    expected = {name: KEPT[name] if name in lost else value for name, value in IN_FILES.items()}
    with CriClient(strict.socket) as client, running_pod(client, pod(answer), logs) as running:
        assert running.values() == CgroupValues(**expected)  # type: ignore[arg-type]
        assert "NVIDIA_VISIBLE_DEVICES=0" in environment(running)
        assert oom_score_adj(running) == 500
        uid = running.spec.uid
    wait_until(lambda: bool(audit(strict, uid, "left-out", "pre_create_container")), "audit")
    left_out = audit(strict, uid, "left-out", "pre_create_container")
    assert left_out.keys() == {f"resources.{name}" for name in lost}


def test_koordlets_list_of_a_node_with_an_empty_pool(
    strict: ProxyProcess, strict_server: HookServerProcess, logs: Path
) -> None:
    strict_server.behave("koordlet")
    answer = {**GOOD, "cpuset_cpus": ",1", "cpuset_mems": " 0,\n"}
    with CriClient(strict.socket) as client, running_pod(client, pod(answer), logs) as running:
        assert running.values() == CgroupValues(**IN_FILES)  # type: ignore[arg-type]
        assert audit(strict, running.spec.uid, "left-out", "pre_create_container") == {}


def test_koordlets_quota_that_is_too_small(
    strict: ProxyProcess, strict_server: HookServerProcess, logs: Path
) -> None:
    """Only for a container that runs: one with such a quota takes long to start."""
    strict_server.behave("koordlet", overlay={})
    with CriClient(strict.socket) as client, running_pod(client, pod({}), logs) as running:
        strict_server.behave("partial", overlay={"cpu_quota": 834, "cpu_shares": 256})
        update_resources(client, running.container_id(), LinuxContainerResources(cpu_shares=700))
        assert running.values() == CgroupValues(256, 1_000, 64 * MIB, "0")
        uid = running.spec.uid
        hook = "pre_update_container_resources"
        wait_until(lambda: bool(audit(strict, uid, "changed", hook)), "audit")
    assert "834 is not in 1000" in audit(strict, uid, "changed", hook)["resources.cpu_quota_us"]
