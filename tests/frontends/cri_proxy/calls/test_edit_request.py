"""Changes applied to messages: nothing but what was meant differs afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.calls.messages import edit_container as edit_container_sent
from runtimeproxy.frontends.cri_proxy.calls.messages import (
    edit_entries,
    edit_pod,
    edit_resources,
    requested_summary,
)
from runtimeproxy.hooks import (
    CLEAR,
    ContainerChange,
    DeviceSpec,
    MountSpec,
    PodChange,
    ResourceChange,
    Resources,
)
from runtimeproxy.pods.records import PodRecord
from runtimeproxy.pods.resources import read_resources

UNKNOWN = b"\xfa\xff\x07\x05extra"
"""A field with the number 16383 that no schema has."""

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
variables = st.lists(st.tuples(st.sampled_from("ABCD"), st.binary(max_size=6)), max_size=8)


def edit_container(found: api_pb2.ContainerConfig, change: ContainerChange) -> bool:
    return edit_container_sent(found, change, read_resources(found.linux.resources))


def edit_update(found: api_pb2.LinuxContainerResources, change: ResourceChange, in_force: Resources) -> bool:
    return edit_resources(found, change, read_resources(found), in_force, update=True)


def with_unknown(message: api_pb2.ContainerConfig, *path: str) -> None:
    """Adds an unknown field to the message at a path of fields."""
    target = message
    for name in path:
        target = getattr(target, name)
    target.MergeFromString(UNKNOWN)


def config(envs: list[tuple[str, bytes]] | None = None) -> api_pb2.ContainerConfig:
    found = api_pb2.ContainerConfig(
        command=["a", "b"],
        envs=[api_pb2.KeyValue(key=key, value=value) for key, value in envs or []],
        mounts=[
            api_pb2.Mount(container_path="/b", host_path="/x", recursive_read_only=True, image_sub_path="s"),
            api_pb2.Mount(container_path="/a", uidMappings=[api_pb2.IDMapping(host_id=1, length=2)]),
        ],
        devices=[api_pb2.Device(container_path="/dev/b"), api_pb2.Device(container_path="/dev/a")],
        labels={"l": "1"},
        annotations={"keep": "1", "change": "2"},
    )
    found.linux.resources.cpu_shares = 2
    found.linux.resources.hugepage_limits.add(page_size="2MB", limit=1)
    return found


@given(variables, variables.map(dict), st.integers(2, 262_144), texts)
def test_only_what_was_meant_differs(
    before: list[tuple[str, bytes]], wanted: dict[str, bytes], shares: int, annotation: str
) -> None:
    request = api_pb2.CreateContainerRequest(pod_sandbox_id="p", config=config(before))
    paths = ((), ("linux",), ("linux", "resources"), ("metadata",), ("image",))
    for path in paths:
        with_unknown(request.config, *path)
    request.MergeFromString(UNKNOWN)
    raw = request.SerializeToString()
    env = {name: value.hex() for name, value in wanted.items()}
    change = ContainerChange(
        resources=ResourceChange(cpu_shares=shares), annotations={"change": annotation}, env=env
    )
    edited = api_pb2.CreateContainerRequest.FromString(raw)
    edit_container(edited.config, change)
    expected = api_pb2.CreateContainerRequest.FromString(raw)
    expected.config.linux.resources.cpu_shares = shares
    expected.config.annotations["change"] = annotation
    del expected.config.envs[:]
    for name, value in intended(before, env):
        expected.config.envs.add(key=name, value=value)
    again = edited.SerializeToString()
    assert api_pb2.CreateContainerRequest.FromString(again) == expected
    assert again.count(UNKNOWN) == len(paths) + 1


def intended(before: list[tuple[str, bytes]], env: dict[str, str]) -> list[tuple[str, bytes]]:
    """Each name's last value replaced, others in their places, new names at the end."""
    after = list(before)
    for name, value in env.items():
        places = [index for index, (known, _) in enumerate(after) if known == name]
        if places:
            after[places[-1]] = (name, value.encode())
        else:
            after.append((name, value.encode()))
    return after


@given(variables)
def test_a_change_to_what_is_there_already_is_none(before: list[tuple[str, bytes]]) -> None:
    found = config(before)
    raw = found.SerializeToString(deterministic=True)
    env = {name: value.decode() for name, value in dict(before).items() if value.isascii()}
    change = ContainerChange(
        resources=ResourceChange(cpu_shares=2, cpuset_cpus=CLEAR),
        annotations={"keep": "1", "x": CLEAR},
        env=env,
    )
    assert not edit_container(found, change)
    assert found.SerializeToString(deterministic=True) == raw


def test_an_empty_change_makes_no_empty_messages() -> None:
    found = api_pb2.ContainerConfig()
    change = ContainerChange(
        resources=ResourceChange(cpu_shares=CLEAR, unified={"a.b": CLEAR}), env={"A": CLEAR}
    )
    assert not edit_container(found, change)
    assert found == api_pb2.ContainerConfig()
    assert not found.HasField("linux")
    pod = api_pb2.PodSandboxConfig()
    assert not edit_pod(pod, PodChange(resources=ResourceChange(), labels={"a": CLEAR}))
    assert not pod.HasField("linux")


def test_a_value_in_an_absent_message_makes_it_present() -> None:
    found = api_pb2.ContainerConfig()
    assert edit_container(found, ContainerChange(resources=ResourceChange(unified={"memory.high": "1"})))
    assert found.linux.resources.unified == {"memory.high": "1"}


@pytest.mark.parametrize(
    ("before", "value", "expected"),
    [
        pytest.param([("A", b"1"), ("B", b"2")], CLEAR, [("B", b"2")], id="one"),
        pytest.param([("A", b"1"), ("B", b"2"), ("A", b"3")], CLEAR, [("B", b"2")], id="duplicates"),
        pytest.param(
            [("B", b"\xff\xfe")], "x", [("B", b"\xff\xfe"), ("A", b"x")], id="others-keep-their-bytes"
        ),
        pytest.param([("A", b"\xff")], "x", [("A", b"x")], id="not-utf-8-is-replaced"),
    ],
)
def test_environment(before: list[tuple[str, bytes]], value: str, expected: list[tuple[str, bytes]]) -> None:
    found = config(before)
    assert edit_container(found, ContainerChange(env={"A": value}))
    assert [(variable.key, variable.value) for variable in found.envs] == expected


def test_mounts_and_devices_come_after_the_kubelets() -> None:
    found = config()
    change = ContainerChange(
        mounts=(MountSpec(host_path="/h", container_path="/c"),),
        devices=(DeviceSpec(host_path="/dev/h", container_path="/dev/c", permissions="r"),),
    )
    assert edit_container(found, change)
    assert [mount.container_path for mount in found.mounts] == ["/b", "/a", "/c"]
    assert found.mounts[0].recursive_read_only
    assert found.mounts[2].readonly
    assert [device.permissions for device in found.devices] == ["", "", "r"]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        pytest.param(["/x", "/c", "/y"], ["/x", "/y", "/c"], id="the same path"),
        pytest.param(["//c/", "/x/../c"], ["/c"], id="other spellings"),
        pytest.param(["/c/below", "/"], ["/c/below", "/", "/c"], id="other paths"),
        pytest.param(["/x", *["/c"] * 40], ["/x", "/c"], id="many"),
    ],
)
def test_a_mount_replaces_those_of_its_path(paths: list[str], expected: list[str]) -> None:
    found = api_pb2.ContainerConfig()
    for path in paths:
        found.mounts.add(container_path=path, host_path="/of-the-pod")
    mount = MountSpec(host_path="/h", container_path="/c")
    assert edit_container(found, ContainerChange(mounts=(mount,)))
    assert [each.container_path for each in found.mounts] == expected
    assert found.mounts[-1] == api_pb2.Mount(container_path="/c", host_path="/h", readonly=True)


def test_a_mount_that_is_there_already_is_no_change() -> None:
    found = api_pb2.ContainerConfig()
    found.mounts.add(container_path="/c/", host_path="/h", readonly=True, selinux_relabel=True)
    raw = found.SerializeToString()
    mount = MountSpec(host_path="/h", container_path="/c")
    assert not edit_container(found, ContainerChange(mounts=(mount,)))
    assert found.SerializeToString() == raw
    writable = replace(mount, readonly=False)
    assert edit_container(found, ContainerChange(mounts=(writable,)))
    assert [each.readonly for each in found.mounts] == [False]


def test_a_device_replaces_those_of_its_path() -> None:
    found = config()
    found.devices.add(container_path="/dev/c", host_path="/dev/of-the-pod", permissions="rwm")
    found.devices.add(container_path="/dev/c", host_path="/dev/h", permissions="r")
    device = DeviceSpec(host_path="/dev/h", container_path="/dev/c", permissions="r")
    assert edit_container(found, ContainerChange(devices=(device,)))
    assert [(each.container_path, each.host_path) for each in found.devices] == [
        ("/dev/b", ""),
        ("/dev/a", ""),
        ("/dev/c", "/dev/h"),
    ]
    raw = found.SerializeToString()
    assert not edit_container(found, ContainerChange(devices=(device,)))
    assert found.SerializeToString() == raw


def test_cdi_devices_come_after_the_kubelets_and_once() -> None:
    found, sent = config(), ("vendor.com/gpu=1", "vendor.com/gpu=0")
    for name in sent:
        found.CDI_devices.add(name=name)
    change = ContainerChange(cdi_devices=("vendor.com/gpu=0", "vendor.com/nic=a"))
    assert edit_container(found, change)
    names = [device.name for device in found.CDI_devices]
    assert names == [*sent, "vendor.com/nic=a"]
    assert not edit_container(found, change)


def test_what_the_cri_lacks_is_in_no_message() -> None:
    found = config()
    resources = ResourceChange(pids_limit=10, rdt_class="gold", blockio_class="slow")
    assert not edit_container(found, ContainerChange(resources=resources))
    assert found == config()


def test_a_pod() -> None:
    found = api_pb2.PodSandboxConfig(labels={"a": "1", "b": "2"}, annotations={"c": "3"})
    found.linux.sysctls["x"] = "y"
    change = PodChange(
        labels={"a": CLEAR, "n": "4"},
        annotations={"c": "5"},
        cgroup_parent="/other",
        resources=ResourceChange(cpu_quota_us=-1),
    )
    assert edit_pod(found, change)
    assert found.labels == {"b": "2", "n": "4"}
    assert found.annotations == {"c": "5"}
    assert (found.linux.cgroup_parent, found.linux.resources.cpu_quota) == ("/other", -1)
    assert found.linux.sysctls == {"x": "y"}


def test_an_update_stays_partial() -> None:
    request = api_pb2.UpdateContainerResourcesRequest(container_id="c", annotations={"own": "1"})
    request.linux.cpuset_cpus = "0-1"
    in_force = Resources(cpu_shares=2048, cpu_quota_us=5000, unified={"memory.high": "1"})
    change = ResourceChange(cpu_shares=2048, cpu_quota_us=-1, unified={"memory.high": "1"})
    assert edit_update(request.linux, change, in_force)
    assert edit_entries(request.annotations, {"more": "2"})
    expected = api_pb2.LinuxContainerResources(cpuset_cpus="0-1", cpu_quota=-1)
    assert request.linux == expected
    assert request.annotations == {"own": "1", "more": "2"}


def test_an_update_that_wants_what_is_in_force_changes_nothing() -> None:
    request = api_pb2.UpdateContainerResourcesRequest(container_id="c")
    assert not edit_update(request.linux, ResourceChange(cpu_shares=2), Resources(cpu_shares=2))
    assert not request.HasField("linux")


def test_the_annotations_of_most_pods_are_read_without_a_detour() -> None:
    """For the others, whose annotations a policy has changed, it takes a twentieth of the call's time."""
    config = api_pb2.PodSandboxConfig(annotations={"a": "1", "b": "2"})
    plain = requested_summary(config, PodRecord(id="p"))
    assert type(plain.annotations) is type(config.annotations)
    changed = requested_summary(config, PodRecord(id="p", annotation_changes={"a": None, "c": "3"}))
    assert dict(changed.annotations) == {"b": "2", "c": "3"}
