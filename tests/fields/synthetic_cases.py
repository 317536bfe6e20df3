"""What becomes of fields that nothing but `declaring.py` knows. `test_synthetic_fields.py` runs this."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1 import api_pb2 as proxy_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc
from runtimeproxy.fields.tables import PARAMETERS
from runtimeproxy.hooks import CLEAR, ContainerChange, ContainerView, Hook, ResourceChange, Scale
from runtimeproxy.hooks.fields import Merged
from runtimeproxy.hooks.validation import usable
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.daemon.conftest import Daemons, daemons, loop, runtime
from tests.daemon.driving import Pod
from tests.fields import wanting
from tests.fields.declaring import FILES
from tests.fields.wanting import ANNOTATION
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects
from tests.lab.proxy_process import ProxyProcess
from tests.service.api.conftest import status_of

__all__ = ["daemons", "loop", "runtime"]

REQUESTED_BYTES = 8 << 20
OWNER = """
[owners.claimer]
allow = ["cpu.made_up_ns add container", "cpuset.cpus.made_up at_most pod container"]
"""
ON, OFF = (f"[policies.wanting]\nenabled = {each}\n{OWNER}" for each in ("true", "false"))
WANTED = {
    "cpu.made_up_ns": "7",
    "cpuset.cpus.made_up": "0-3",
    "cpuset.mems.made_up": "0",
    "cpuset.made_up_kind": "root",
    "memory.made_up": str(1 << 20),
    "pids.made_up.max": "64",
}
BY_STRATEGY = {name: str(value) for name, value in wanting.BY_STRATEGY.items()}
MIN_PERCENT = {"resource-threshold-config": {"clusterStrategy": {"cpuSuppressMinPercent": 50}}}
REQUESTED = {**{name: FILES[name] for name in WANTED}, "memory.made_up": str(REQUESTED_BYTES)}


@pytest.fixture
def installed() -> Mapping[str, str]:
    return {"PYTHONPATH": os.environ["SITE"]}


@pytest.fixture
def cgroup_files(socket_folder: Path) -> CgroupFiles:
    return CgroupFiles(socket_folder / "cgroup", version=2, more=FILES)


class Site:
    """A daemon, and one running container."""

    def __init__(self, daemon: ProxyProcess, client: CriClient, files: CgroupFiles, state: Any) -> None:
        self.daemon, self.files, self._state = daemon, files, state
        config = pod_sandbox_config("web", annotations={ANNOTATION: "yes"})
        files.make(config.linux.cgroup_parent)
        self.pod = Pod(client, config).run()
        container = container_config("main", pod=config)
        container.linux.resources.made_up_in_bytes = REQUESTED_BYTES  # type: ignore[attr-defined]
        request = create_container_request(self.pod.id, container, config)
        answer = client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S)
        self.pod.container = answer.container_id
        self.pod.start()

    @property
    def api(self) -> Any:
        return api_pb2_grpc.RuntimeProxyStub(self.pod.client.channel)

    @property
    def path(self) -> str:
        return f"{self.pod.config.linux.cgroup_parent}/{self.pod.container}"

    @property
    def resources(self) -> Any:
        """What the runtime has."""
        return self._state.containers[self.pod.container].resources

    def texts(self, path: str = "") -> dict[str, str]:
        return {name: self.files.read(path or self.path, name) for name in WANTED}

    def wait_for(self, path: str = "", **changed: str) -> None:
        wanted = WANTED | changed
        wait_until(lambda: self.texts(path) == wanted, f"{wanted}")

    def update(self, **values: Any) -> None:
        linux = api_pb2.LinuxContainerResources(**values)
        request = api_pb2.UpdateContainerResourcesRequest(container_id=self.pod.container, linux=linux)
        self.pod.client.runtime.UpdateContainerResources(request, timeout=CALL_TIMEOUT_S)

    def explained(self) -> dict[str, Any]:
        """Of the container, by field."""
        request = proxy_pb2.ExplainRequest(pod="web", container="main")
        (target,) = (
            each
            for each in self.api.Explain(request, timeout=30, wait_for_ready=True).targets
            if each.level == proxy_pb2.LEVEL_CONTAINER
        )
        return {each.name: each for each in target.fields}

    def configure(self, config: str) -> None:
        (self.daemon.folder / "config.toml").write_text(config)
        self.daemon.signal(signal.SIGHUP)


@pytest.fixture
def site(daemons: Daemons, cgroup_files: CgroupFiles, runtime: FakeRuntime) -> Iterator[Site]:
    daemon = daemons.start(ON)
    with CriClient(daemon.socket) as client:
        yield Site(daemon, client, cgroup_files, runtime.state)


def test_from_creation_to_restore(site: Site) -> None:
    # Creation.
    assert site.resources.made_up_in_bytes == 1 << 20
    assert site.resources.made_up_score == -3
    assert dict(site.resources.unified) == {"memory.made_up.max": "65536"}
    site.wait_for()
    parent = site.pod.config.linux.cgroup_parent
    site.wait_for(parent, **{"memory.made_up": str(1 << 30)})
    # An update: the kubelet's value is remembered, and the policy's bound holds; the score stays as it is.
    site.update(made_up_in_bytes=4 << 20, made_up_score=9)
    assert (site.resources.made_up_in_bytes, site.resources.made_up_score) == (1 << 20, -3)
    site.wait_for()
    # Explanation.
    fields = site.explained()
    for name, value in {
        "cpu.made_up_ns": "7",
        "cpuset.cpus.made_up": "0-3",
        "cpuset.mems.made_up": "0",
        "cpuset.made_up_kind": "root",
    }.items():
        assert (fields[name].applied, fields[name].observed_value, fields[name].problem) == (value, value, "")
        assert [(each.owner, each.value) for each in fields[name].claims] == [("wanting", value)]
    of_message = fields["memory.made_up_in_bytes"]
    assert (of_message.requested, of_message.resolved, of_message.booked) == (
        str(4 << 20),
        str(1 << 20),
        str(1 << 20),
    )
    # Nothing of the CRI: a file has it, or only another mode does.
    assert fields["pids.made_up.max"].way == proxy_pb2.ExplainedField.WAY_FILE
    assert "mode proxy does not carry it" in fields["resources.made_up_class"].problem
    claims_hold_and_end(site)
    # A strategy.
    strategies = NodeObjects(site.daemon.objects_folder)
    strategies.strategies(MIN_PERCENT)
    site.wait_for(**BY_STRATEGY)
    site.wait_for(parent, **{**BY_STRATEGY, "memory.made_up": str(1 << 30)})
    strategies.strategies({})
    site.wait_for()
    # The policy goes: the kubelet's values come back.
    site.configure(OFF)
    requested = REQUESTED | {"memory.made_up": str(4 << 20)}
    wait_until(lambda: site.texts() == requested, "what the kubelet asked for")
    neutral = {name: FILES[name] for name in WANTED}
    wait_until(lambda: site.texts(parent) == neutral, "what the pod had")
    site.configure(ON)
    site.wait_for()
    # Restore, after a restart.
    assert site.daemon.terminate() == 0
    site.daemon.start()
    wait_until(lambda: status_of(site.api).records.is_recovered, "the records are compared")
    site.wait_for()
    assert site.daemon.terminate() == 0
    done = site.daemon.run("restore")
    assert "made_up_score" in done.stdout, done.stdout + done.stderr
    assert site.texts() == requested, done.stdout + done.stderr
    assert site.texts(parent) == neutral
    assert site.resources.made_up_in_bytes == 4 << 20
    assert site.resources.unified["memory.made_up.max"] == "max"


def claims_hold_and_end(site: Site) -> None:
    kinds, target = proxy_pb2.ExplainedClaim, proxy_pb2.ClaimTarget(container_id=site.pod.container)
    wanted = (
        ("cpu.made_up_ns", kinds.ROLE_ADD, "5"),
        ("cpuset.cpus.made_up", kinds.ROLE_AT_MOST, "2-7"),
    )
    claims = [
        proxy_pb2.Claim(key=proxy_pb2.ClaimKey(target=target, field=name, role=role), value=value)
        for name, role, value in wanted
    ]
    request = proxy_pb2.SetClaimsRequest(
        owner="claimer", session="one", sequence=1, claims=claims, is_whole=True
    )
    with grpc.insecure_channel(f"unix:{site.daemon.folder / 'admin' / 'api.sock'}") as channel:
        admin = api_pb2_grpc.AdminStub(channel)
        answer = admin.SetClaims(request, timeout=30, wait_for_ready=True)
        assert [*answer.refused, *answer.failed] == []
        site.wait_for(**{"cpu.made_up_ns": "12", "cpuset.cpus.made_up": "2-3"})
        text = [
            proxy_pb2.Claim(
                key=proxy_pb2.ClaimKey(target=target, field="cpuset.made_up_kind", role=kinds.ROLE_SET)
            )
        ]
        request = proxy_pb2.SetClaimsRequest(owner="claimer", session="one", sequence=2, claims=text)
        assert "may not claim" in admin.SetClaims(request, timeout=30).refused[0].reason
        admin.ReleaseClaims(proxy_pb2.ReleaseClaimsRequest(owner="claimer"), timeout=30)
    site.wait_for()


OUT_OF_RANGE: dict[str, Any] = {"made_up_score": 11}
NO_PROCESS: dict[str, Any] = {"made_up_pids": 0}
NO_NAME: dict[str, Any] = {"made_up_class": "a/b"}
SCALED: dict[str, Any] = {"made_up_class": Scale(2.0)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (ContainerChange(cgroup={"cpu.made_up_ns": 1_001}), "not in -5 to 1000"),
        (ContainerChange(cgroup={"cpuset.cpus.made_up": 3}), "not a list such as"),
        (
            ContainerChange(cgroup={"cpuset.cpus.made_up": Scale(2.0)}),
            "is a CPU list, which Scale cannot change",
        ),
        (ContainerChange(cgroup={"cpuset.mems.made_up": "a"}), "not a CPU list"),
        (ContainerChange(cgroup={"cpuset.made_up_kind": "isolated"}), "is not one of member, root"),
        (ContainerChange(cgroup={"cpuset.made_up_kind": Scale(2.0)}), "is a text, which Scale cannot change"),
        (ContainerChange(cgroup={"memory.made_up.max": 5}), "is not a known cgroup parameter"),
        (ContainerChange(resources=ResourceChange(**OUT_OF_RANGE)), "not in -10 to 10"),
        (ContainerChange(resources=ResourceChange(**NO_PROCESS)), "not in 1 to"),
        (ContainerChange(resources=ResourceChange(**NO_NAME)), "is not a name"),
        (ContainerChange(resources=ResourceChange(**SCALED)), "takes a value only"),
        (
            ContainerChange(resources=ResourceChange(unified={"memory.made_up.max": "x"})),
            "is not a whole number",
        ),
    ],
)
def test_values_that_cannot_be_used_are_left_out(change: ContainerChange, reason: str) -> None:
    found = usable(Hook.PRE_CREATE_CONTAINER, change, Merged(ContainerView()))
    assert not found.fields
    assert reason in found.left_out[0].reason


def test_what_is_cleared_becomes_neutral() -> None:
    names = [name for name in PARAMETERS if "made_up" in name]
    change = ContainerChange(cgroup=dict.fromkeys(names, CLEAR))
    assert not usable(Hook.PRE_CREATE_CONTAINER, change, Merged(ContainerView())).left_out
    assert len(names) == 6
