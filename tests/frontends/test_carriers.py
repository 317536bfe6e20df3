"""All that messages can carry, in the modes: in the message, by file, or reported as not carried."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.fields.tables import CRI_FIELDS, RESOURCE_FIELDS
from runtimeproxy.frontends.modes import carried_in
from runtimeproxy.hooks import ContainerView, Hook
from runtimeproxy.hooks.fields import CGROUP, CGROUP_PARENT, GROUPS, Merged, fields_of
from runtimeproxy.hooks.validation import usable
from runtimeproxy.hooks.ways import SETTABLE, left_undone
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons, cgroup_files, daemons, installed, loop, runtime
from tests.daemon.driving import Pod, pod
from tests.frontends import carriers_policy
from tests.frontends.carriers_policy import ALL, ANNOTATION, ATTRIBUTES, RESOURCES, change_of
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

__all__ = ["cgroup_files", "daemons", "installed", "loop", "runtime"]

PIDS = str(RESOURCES["pids_limit"])
CLASSES = {"resources.rdt_class", "resources.blockio_class"}
DEVICE = "cdi_devices[vendor.com/carried=one]"
Field = api_pb2.ExplainedField


def test_the_policy_sets_all_there_is() -> None:
    assert RESOURCES.keys() == {*RESOURCE_FIELDS, "unified"}
    change, groups = change_of([ALL]), GROUPS[Hook.PRE_CREATE_CONTAINER] - {CGROUP, CGROUP_PARENT}
    given = {**ATTRIBUTES, "resources": change.resources}
    assert {field.group for field in fields_of(given, groups)} == groups
    assert not [
        each
        for each in usable(Hook.PRE_CREATE_CONTAINER, change, Merged(ContainerView())).left_out
        if each.field not in CLASSES
    ]


@pytest.mark.parametrize(
    ("mode", "undone"), [("proxy", {"rdt_class", "blockio_class"}), ("nri", set[str]())], ids=["proxy", "nri"]
)
def test_what_a_mode_leaves_undone_is_known_before_an_answer(mode: str, undone: set[str]) -> None:
    fields = carriers_policy.Carriers.sets_fields
    assert fields["container"] <= SETTABLE["container"]
    assert set(left_undone(carried_in(mode), fields)) == undone


@pytest.fixture
def opened() -> Iterator[Callable[[Path], CriClient]]:
    """Opens clients of sockets."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(CriClient(path))


@pytest.fixture
def start(daemons: Daemons, socket_folder: Path) -> Callable[[str], ProxyProcess]:
    """Starts a daemon in a mode, with the policy in a file."""

    def make(mode: str) -> ProxyProcess:
        daemon = daemons.prepare(f'[daemon]\nmode = "{mode}"\nlock = "{socket_folder}/lock"\n')
        daemon.policies_folder.mkdir()
        shutil.copy(str(carriers_policy.__file__), daemon.policies_folder / "carriers.py")
        daemon.start()
        return daemon

    return make


def run(kubelet: CriClient, files: CgroupFiles) -> Pod:
    made = pod(kubelet, annotations={ANNOTATION: ALL})
    files.make(made.config.linux.cgroup_parent)
    return made.run().create().start()


def pids_of(made: Pod, files: CgroupFiles) -> str:
    return files.read(f"{made.config.linux.cgroup_parent}/{made.container}", "pids.max")


def explained(daemon: ProxyProcess, made: Pod) -> dict[str, Field]:
    """The container's fields."""
    with CriClient(daemon.socket) as client:
        request = api_pb2.ExplainRequest(pod=made.config.metadata.name, container="main")
        answer = api_pb2_grpc.RuntimeProxyStub(client.channel).Explain(request, timeout=CALL_TIMEOUT_S)
    (target,) = (each for each in answer.targets if each.level == api_pb2.LEVEL_CONTAINER)
    return {each.name: each for each in target.fields}


def problems(daemon: ProxyProcess) -> list[str]:
    """Of the policy, in the status."""
    with CriClient(daemon.socket) as client:
        status = api_pb2_grpc.RuntimeProxyStub(client.channel).GetStatus(
            api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S
        )
    return [each for each in status.problems if "carriers" in each]


def not_in_mode(fields: dict[str, Field]) -> set[str]:
    causes = {name: [each.cause for each in field.unapplied] for name, field in fields.items()}
    return {name for name, found in causes.items() if found == ["not-in-mode"]}


def test_the_proxy_carries_what_the_cri_has_and_writes_the_limit_of_pids(
    start: Callable[[str], ProxyProcess],
    opened: Callable[[Path], CriClient],
    runtime: FakeRuntime,
    cgroup_files: CgroupFiles,
) -> None:
    daemon = start("proxy")
    made = run(opened(daemon.socket), cgroup_files)
    config = runtime.state.containers[made.container].config
    assert [each.name for each in config.CDI_devices] == ["vendor.com/carried=one"]
    resources = {name: getattr(config.linux.resources, each.cri) for name, each in CRI_FIELDS.items()}
    assert {**resources, "unified": dict(config.linux.resources.unified)} == {
        name: value for name, value in RESOURCES.items() if name in CRI_FIELDS or name == "unified"
    }
    wait_until(lambda: pids_of(made, cgroup_files) == PIDS, "the limit of pids")
    fields = explained(daemon, made)
    assert not_in_mode(fields) == CLASSES
    assert all("mode proxy does not carry it" in fields[name].problem for name in CLASSES)
    assert (fields["pids.max"].way, fields["pids.max"].applied) == (Field.WAY_FILE, PIDS)
    assert (fields[DEVICE].way, fields[DEVICE].applied) == (Field.WAY_MESSAGE, "vendor.com/carried=one")
    assert problems(daemon) == []
    # An update has nothing of it, and harms nothing.
    update = cri.UpdateContainerResourcesRequest(container_id=made.container)
    update.linux.cpu_shares = 512
    made.client.runtime.UpdateContainerResources(update, timeout=CALL_TIMEOUT_S)
    assert pids_of(made, cgroup_files) == PIDS
    # What the policy wanted goes with it.
    assert daemon.terminate() == 0
    done = daemon.run("restore")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert pids_of(made, cgroup_files) == "max", done.stdout + done.stderr


def test_stand_alone_writes_the_limit_of_pids_and_reports_the_rest(
    start: Callable[[str], ProxyProcess],
    opened: Callable[[Path], CriClient],
    runtime: FakeRuntime,
    cgroup_files: CgroupFiles,
) -> None:
    daemon = start("standalone")
    made = run(opened(runtime.socket_path), cgroup_files)
    wait_until(lambda: pids_of(made, cgroup_files) == PIDS, "the limit of pids")
    missing = {*CLASSES, DEVICE, "env[CARRIED]", "mounts[/carried]", "devices[/dev/carried]"}
    wait_until(lambda: not_in_mode(explained(daemon, made)) >= missing, "what is not carried")
    fields = explained(daemon, made)
    assert (fields["pids.max"].way, fields["pids.max"].applied) == (Field.WAY_FILE, PIDS)
