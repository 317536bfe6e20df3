"""GPU environment. Cases Vnnn are those of Koordinator's gpu_test.go (CONTRIBUTING.md)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.accelerators import GPU_VENDOR_LABEL
from policies.annotations import DEVICE_ALLOCATED
from policies.device_allocations import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from policies.gpu_env import (
    ISOLATION_PROVIDER_LABEL,
    GpuEnv,
    GpuEnvOptions,
    gpu_change,
    prepare_cache_directory,
)
from runtimeproxy.hooks import ContainerChange, ContainerView, MountSpec, PodView
from runtimeproxy.node.devices import HostDevices
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import Node

LIBRARY = "/usr/local/vgpu/libvgpu.so"
HAMI = {ISOLATION_PROVIDER_LABEL: "HAMi-core"}
SHARE = {GPU_CORE: "50", GPU_MEMORY: "16Gi", GPU_MEMORY_RATIO: "50"}
HAMI_ENV = {
    "NVIDIA_VISIBLE_DEVICES": "1",
    "CUDA_DEVICE_MEMORY_LIMIT": "17179869184",
    "CUDA_DEVICE_SM_LIMIT": "50",
    "LD_PRELOAD": LIBRARY,
}


def container(allocated: object, labels: dict[str, str] | None = None) -> ContainerView:
    annotations = {DEVICE_ALLOCATED: json.dumps(allocated)}
    return ContainerView(name="main", pod=PodView(uid="u1", labels=labels or {}, annotations=annotations))


def gpus(*devices: dict[str, Any]) -> dict[str, Any]:
    return {"gpu": devices}


def change_of(view: ContainerView, options: GpuEnvOptions | None = None) -> ContainerChange:
    change = gpu_change(view, options or GpuEnvOptions())
    assert change is not None
    return change


def test_containers_see_the_allocated_gpus() -> None:
    """V079."""
    change = change_of(container(gpus({"minor": 0}, {"minor": 1})))
    assert change.env == {"NVIDIA_VISIBLE_DEVICES": "0,1"}
    assert change.mounts == ()


@pytest.mark.parametrize(
    "allocated", [pytest.param({"fpga": [{"minor": 0}]}, id="V080"), {"gpu": []}, {"gpu": None}, {}, None]
)
def test_pods_without_gpus_get_nothing(allocated: object) -> None:
    assert gpu_change(container(allocated), GpuEnvOptions()) is None
    assert gpu_change(ContainerView(), GpuEnvOptions()) is None


def test_a_share_of_a_gpu_is_bounded_by_hami() -> None:
    """V082."""
    change = change_of(container(gpus({"minor": 1, "resources": SHARE}), HAMI))
    assert change.env == HAMI_ENV
    assert change.mounts == (
        MountSpec(host_path=LIBRARY, container_path=LIBRARY),
        MountSpec(host_path="/tmp/vgpulock", container_path="/tmp/vgpulock", readonly=False),
    )


def test_the_monitor_gets_a_cache_directory() -> None:
    """V083."""
    view = container(gpus({"minor": 1, "resources": SHARE}), HAMI)
    change = change_of(view, GpuEnvOptions(hami_vgpu_monitor=True))
    cache = "/usr/local/vgpu/u1_main.cache"
    assert change.env == {**HAMI_ENV, "CUDA_DEVICE_MEMORY_SHARED_CACHE": cache}
    host_path = "/usr/local/vgpu/containers/u1_main"
    assert change.mounts[2:] == (
        MountSpec(host_path=host_path, container_path="/usr/local/vgpu", readonly=False),
    )


@pytest.mark.parametrize(
    "resources",
    [
        pytest.param({GPU_CORE: "50", GPU_MEMORY: "16Gi"}, id="V085-no-ratio"),
        pytest.param({GPU_MEMORY_RATIO: "50"}, id="no-memory"),
        pytest.param({GPU_MEMORY_RATIO: "half"}, id="no-quantity"),
    ],
)
def test_without_hamis_amounts_the_gpus_are_set_all_the_same(resources: dict[str, str]) -> None:
    """An image whose own default is `all` would see every GPU."""
    change = change_of(container(gpus({"minor": 1, "resources": resources}), HAMI))
    assert change.env == {"NVIDIA_VISIBLE_DEVICES": "1"}
    assert change.mounts == ()
    said = (*change.problems, *change.missing)
    assert "device-allocated" in said[0]
    assert change.missing[0].startswith("no limits by HAMi-core: ")


def test_a_core_share_that_cannot_be_read_costs_its_limit() -> None:
    resources = {GPU_CORE: "half", GPU_MEMORY: "16Gi", GPU_MEMORY_RATIO: "50"}
    change = change_of(container(gpus({"minor": 1, "resources": resources}), HAMI))
    assert change.env == {name: value for name, value in HAMI_ENV.items() if "SM_LIMIT" not in name}
    assert len(change.mounts) == 2
    place = f"{DEVICE_ALLOCATED}[gpu][0].resources[{GPU_CORE}]"
    assert change.problems == (f"annotation {place} is not a quantity",)


def test_a_gpu_without_a_number_costs_itself() -> None:
    change = change_of(container(gpus({"minor": "zero"}, {"minor": 2})))
    assert change.env == {"NVIDIA_VISIBLE_DEVICES": "2"}
    assert change.problems == (f"annotation {DEVICE_ALLOCATED}[gpu][0].minor is not a whole number",)


def test_an_unreadable_first_gpu_costs_hamis_limits() -> None:
    """They are the first one's, and the second one's share is another."""
    change = change_of(
        container(gpus({"minor": "zero", "resources": SHARE}, {"minor": 2, "resources": SHARE}), HAMI)
    )
    assert change.env == {"NVIDIA_VISIBLE_DEVICES": "2"}
    assert change.mounts == ()
    assert change.missing == (
        "no limits by HAMi-core: the first GPU of the annotation, whose share they are, cannot be read",
    )


def test_a_share_without_cores_is_bounded_in_memory_only() -> None:
    resources = {GPU_MEMORY: "1Gi", GPU_MEMORY_RATIO: "10"}
    change = change_of(container(gpus({"minor": 1, "resources": resources}), HAMI))
    assert "CUDA_DEVICE_SM_LIMIT" not in change.env


def test_a_whole_gpu_needs_no_hami() -> None:
    change = change_of(container(gpus({"minor": 1, "resources": {GPU_MEMORY_RATIO: "100"}}), HAMI))
    assert change.env == {"NVIDIA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"gpu": {}}',
        '{"gpu": [{"minor": "0"}]}',
        '{"gpu": [{"minor": -1}]}',
        '{"gpu": [1]}',
        '{"gpu": [null]}',
    ],
)
def test_of_a_malformed_allocation_nothing_is_used(text: str) -> None:
    change = change_of(ContainerView(pod=PodView(annotations={DEVICE_ALLOCATED: text})))
    assert change == ContainerChange(problems=change.problems)
    assert "device-allocated" in change.problems[0]


@pytest.mark.parametrize(("uid", "name"), [("../../etc", "main"), ("u1", "a/b"), ("", "main")])
def test_names_that_leave_the_cache_directory_cost_the_directory(uid: str, name: str) -> None:
    annotations = {DEVICE_ALLOCATED: json.dumps(gpus({"minor": 1, "resources": SHARE}))}
    view = ContainerView(name=name, pod=PodView(uid=uid, labels=HAMI, annotations=annotations))
    change = change_of(view, GpuEnvOptions(hami_vgpu_monitor=True))
    assert change.env == HAMI_ENV
    assert len(change.mounts) == 2
    assert change.problems == ("pod uid and container name do not make a directory's name",)


def test_a_relative_library_is_refused() -> None:
    with pytest.raises(ValueError, match="absolute"):
        GpuEnvOptions(hami_library_path="libvgpu.so")


def test_the_cache_directory_loses_the_old_cache_only(tmp_path: Path) -> None:
    """Removing all that a container has left there would take as long as it likes."""
    path = tmp_path / "containers" / "u1_main"
    prepare_cache_directory(str(path))
    (path / "u1_main.cache").touch()
    (path / "other").touch()
    prepare_cache_directory(str(path))
    assert [each.name for each in path.iterdir()] == ["other"]
    assert path.stat().st_mode & 0o777 == 0o777


def test_a_link_in_place_of_the_cache_is_removed_itself(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "containers" / "u1_main", tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    prepare_cache_directory(str(path))
    (path / "u1_main.cache").symlink_to(elsewhere)
    prepare_cache_directory(str(path))
    assert list(path.iterdir()) == []
    assert elsewhere.read_text() == "kept"


def test_without_the_cache_directory_the_limits_stay(tmp_path: Path) -> None:
    (tmp_path / "containers").write_text("no folder")
    library = str(tmp_path / "libvgpu.so")
    policy = GpuEnv(GpuEnvOptions(hami_library_path=library, hami_vgpu_monitor=True))
    change = policy.container(container(gpus({"minor": 1, "resources": SHARE}), HAMI), Node())
    assert change is not None
    assert change.env == {**HAMI_ENV, "LD_PRELOAD": library}
    assert len(change.mounts) == 2
    assert "no directory for HAMi's monitor" in change.problems[0]


@pytest.mark.parametrize(
    "text",
    [
        '{"gpu": [{"minor": 1, "hostPath": "/etc", "id": "/etc", "resources": %s}]}',
        '{"gpu": [{"minor": 1, "resources": %s, "mounts": [{"host_path": "/", "container_path": "/host"}]}]}',
        '{"gpu": [{"minor": 3, "busID": "../../dev/sda", "resources": %s}], "rdma": [{"id": "/etc"}]}',
        '{"gpu": [{"minor": 1, "resources": %s}, {"minor": "/etc", "resources": {"/etc": "1"}}]}',
    ],
)
@pytest.mark.parametrize(("uid", "name"), [("u1", "main"), ("..", ".."), ("u1\n", "-v :host")])
def test_no_pod_names_what_is_mounted(text: str, uid: str, name: str) -> None:
    annotations = {DEVICE_ALLOCATED: text % json.dumps(SHARE), "hami_library_path": "/etc/shadow"}
    labels = {**HAMI, "hami_library_path": "/etc/shadow"}
    view = ContainerView(name=name, pod=PodView(uid=uid, labels=labels, annotations=annotations))
    change = change_of(view, GpuEnvOptions(hami_vgpu_monitor=True))
    hosts = [each.host_path for each in change.mounts]
    assert hosts == [LIBRARY, "/tmp/vgpulock", f"/usr/local/vgpu/containers/{uid}_{name}"]
    assert [each.container_path for each in change.mounts] == [LIBRARY, "/tmp/vgpulock", "/usr/local/vgpu"]
    assert [each.readonly for each in change.mounts] == [True, False, False]
    assert change.devices == ()


@pytest.mark.parametrize("dry_run", [False, True])
def test_only_an_enforcing_policy_makes_the_cache_directory(tmp_path: Path, dry_run: bool) -> None:
    library = str(tmp_path / "libvgpu.so")
    policy = GpuEnv(GpuEnvOptions(hami_library_path=library, hami_vgpu_monitor=True))
    policy.dry_run = dry_run
    policy.container(container(gpus({"minor": 1, "resources": SHARE}), HAMI), Node())
    assert (tmp_path / "containers" / "u1_main").exists() is not dry_run


def test_the_cache_directory_of_a_running_container_is_left_alone(tmp_path: Path) -> None:
    library = str(tmp_path / "libvgpu.so")
    policy = GpuEnv(GpuEnvOptions(hami_library_path=library, hami_vgpu_monitor=True))
    view = container(gpus({"minor": 1, "resources": SHARE}), HAMI)
    created = policy.container(view, Node())
    (tmp_path / "containers" / "u1_main" / "in use").touch()
    assert policy.container(replace(view, id="running"), Node()) == created
    assert (tmp_path / "containers" / "u1_main" / "in use").exists()


def node(*accelerators: str, has_driver: bool = True) -> Node:
    devices = HostDevices(accelerators=frozenset(accelerators), has_nvidia_driver=has_driver)
    return Node(facts=NodeFacts(devices=devices))


WITH_NODES = GpuEnvOptions(device_nodes=True)


def test_the_gpus_nodes_are_given_with_those_that_all_need() -> None:
    """What NVIDIA's runtime adds by itself is lost at a daemon-reload (#2809)."""
    there = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm")
    change = gpu_change(container(gpus({"minor": 2}, {"minor": 0})), WITH_NODES, node(*there))
    assert change is not None
    assert [(each.host_path, each.container_path, each.permissions) for each in change.devices] == [
        (path, path, "rw") for path in ("/dev/nvidia2", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
    ]
    assert (change.problems, change.missing) == ((), ())


def test_a_gpu_that_the_node_lacks_is_missing() -> None:
    change = gpu_change(container(gpus({"minor": 0}, {"minor": 7})), WITH_NODES, node("/dev/nvidia0"))
    assert change is not None
    assert [each.host_path for each in change.devices] == ["/dev/nvidia0"]
    assert change.env == {"NVIDIA_VISIBLE_DEVICES": "0,7"}
    assert change.missing == ("this node has no /dev/nvidia7",)


@pytest.mark.parametrize(
    ("of", "options", "problems"),
    [
        pytest.param(node(), WITH_NODES, 1, id="out-of-sight"),
        pytest.param(node(has_driver=False), WITH_NODES, 0, id="no-driver"),
        pytest.param(node("/dev/nvidia0"), GpuEnvOptions(), 0, id="by-default"),
        pytest.param(Node(), WITH_NODES, 0, id="not-known"),
    ],
)
def test_nodes_out_of_sight_are_said_where_there_is_a_driver(
    of: Node, options: GpuEnvOptions, problems: int
) -> None:
    change = gpu_change(container(gpus({"minor": 0})), options, of)
    assert change is not None
    assert (change.env, change.devices, change.missing) == ({"NVIDIA_VISIBLE_DEVICES": "0"}, (), ())
    assert len(change.problems) == problems
    assert all("60-devices.conf" in each for each in change.problems)


@pytest.mark.parametrize(
    ("annotations", "labels"),
    [
        ({"huawei.com/npu-core": "0"}, {}),
        ({"CAMBRICON_DSMLU_PROFILE": "0_50_64"}, {}),
        ({"metax-tech.com/gpu-devices-allocated": "[[]]"}, {}),
        ({}, {GPU_VENDOR_LABEL: "metax"}),
    ],
)
def test_accelerators_of_other_vendors_are_no_gpus(
    annotations: dict[str, str], labels: dict[str, str]
) -> None:
    view = container(gpus({"minor": 0}))
    pod = replace(view.pod, annotations={**view.pod.annotations, **annotations})
    assert gpu_change(replace(view, pod=pod), GpuEnvOptions(), Node(labels=labels)) is None


@pytest.mark.parametrize("is_there", [False, True])
def test_a_library_that_is_not_there_costs_the_limits_before_the_container_is_created(
    tmp_path: Path, is_there: bool
) -> None:
    """A runtime makes a folder in its place, or does not start the container."""
    library = tmp_path / "libvgpu.so"
    if is_there:
        library.touch()
    else:
        # As containerd leaves one in the library's place.
        library.mkdir()
    policy = GpuEnv(GpuEnvOptions(hami_library_path=str(library), hami_vgpu_monitor=True))
    change = policy.container(container(gpus({"minor": 1, "resources": SHARE}), HAMI), node(has_driver=False))
    assert change is not None
    assert ("LD_PRELOAD" in change.env) is is_there
    assert len(change.mounts) == (3 if is_there else 0)
    assert len(change.missing) == (0 if is_there else 1)
    assert all(str(library) in each for each in change.missing)
    assert (tmp_path / "containers").exists() is is_there


def test_the_policy_answers_the_change() -> None:
    view = container(gpus({"minor": 3}))
    assert GpuEnv().container(view, Node()) == change_of(view)
