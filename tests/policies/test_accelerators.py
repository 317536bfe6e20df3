"""Accelerators of other vendors than NVIDIA: Huawei's in depth, the other rows by table."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from policies.accelerators import (
    CAMBRICON,
    GPU_VENDOR_LABEL,
    HUAWEI,
    METAX,
    NVIDIA,
    OTHERS,
    Accelerator,
    Accelerators,
    accelerator_change,
    device_nodes,
    other_vendor,
)
from policies.annotations import DEVICE_ALLOCATED
from policies.device_allocations import GPU_MEMORY_RATIO
from runtimeproxy.hooks import ContainerChange, ContainerView, PodView
from runtimeproxy.node.devices import HostDevice, HostDevices
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import Node

NPUS = (
    *(f"/dev/davinci{number}" for number in range(8)),
    "/dev/davinci_manager",
    "/dev/devmm_svm",
    "/dev/hisi_hdc",
)
MLUS = ("/dev/cambricon_dev0", "/dev/cambricon_dev1", "/dev/cambricon_ipcm0", "/dev/cambricon_ctl")
WHOLE = {GPU_MEMORY_RATIO: "100"}
HUAWEI_POD = {"huawei.com/npu-core": "0,1", "predicate-time": "1"}


def npu(minor: object, resources: object = WHOLE, **more: Any) -> dict[str, Any]:
    return {"minor": minor, "resources": resources, **more}


def container(annotations: dict[str, str], *devices: object) -> ContainerView:
    allocated = {DEVICE_ALLOCATED: json.dumps({"gpu": devices})}
    return ContainerView(name="main", pod=PodView(uid="u1", annotations={**annotations, **allocated}))


def host(*nodes: str) -> HostDevices:
    return HostDevices(accelerators=frozenset(nodes))


def change_of(view: ContainerView, *nodes: str, vendor: str = "") -> ContainerChange | None:
    return accelerator_change(view, {GPU_VENDOR_LABEL: vendor} if vendor else {}, {}, host(*nodes))


def paths(change: ContainerChange) -> list[str]:
    assert all(each.host_path == each.container_path for each in change.devices)
    assert {each.permissions for each in change.devices} <= {"rw"}
    return [each.host_path for each in change.devices]


def test_whole_npus_are_visible_and_given() -> None:
    change = change_of(container(HUAWEI_POD, npu(4), npu(0)), *NPUS)
    assert change is not None
    assert change.env == {"ASCEND_VISIBLE_DEVICES": "4,0"}
    assert paths(change) == ["/dev/davinci4", "/dev/davinci0", *NPUS[8:]]
    assert (change.problems, change.missing, change.mounts) == ((), (), ())


@pytest.mark.parametrize(
    "share",
    [
        npu(0, WHOLE, extension={"gpuSharedResourceTemplate": "vir10_3c_32g"}),
        npu(0, {GPU_MEMORY_RATIO: "50"}),
        npu(0, {}, Extension={"GPUSharedResourceTemplate": "vir01"}),
    ],
)
def test_a_part_of_an_npu_is_left_to_the_vendors_plugin(share: dict[str, Any]) -> None:
    """It makes the virtual NPU, and sets the variable to that one's number."""
    assert change_of(container({"huawei.com/npu-core": "0-vir01"}, share), *NPUS) is None


@pytest.mark.parametrize(
    "device",
    [
        npu("0"),
        npu(-1),
        npu(0, {GPU_MEMORY_RATIO: "half"}),
        npu(0, WHOLE, extension={"gpuSharedResourceTemplate": 1}),
        npu(0, WHOLE, extension="x"),
        npu(0, "x"),
    ],
)
def test_what_cannot_be_read_may_be_a_part_so_nothing_is_given(device: dict[str, Any]) -> None:
    change = change_of(container(HUAWEI_POD, npu(1), device), *NPUS)
    assert change is not None
    assert change == ContainerChange(problems=change.problems)
    assert "device-allocated" in change.problems[0]


def test_an_npu_that_the_node_lacks_is_missing() -> None:
    change = change_of(container(HUAWEI_POD, npu(0), npu(9)), *NPUS)
    assert change is not None
    assert paths(change)[0] == "/dev/davinci0"
    assert change.missing == ("this node has no /dev/davinci9",)


def test_where_dev_is_out_of_sight_the_variable_is_given_and_the_status_says_so() -> None:
    change = change_of(container(HUAWEI_POD, npu(0)))
    assert change is not None
    assert change.env == {"ASCEND_VISIBLE_DEVICES": "0"}
    assert (change.devices, change.missing) == ((), ())
    assert "none of the host's /dev/davinci*" in change.problems[0]


@pytest.mark.parametrize("annotations", [{}, {DEVICE_ALLOCATED: "{}"}, {DEVICE_ALLOCATED: '{"gpu": []}'}])
def test_pods_without_accelerators_get_nothing(annotations: dict[str, str]) -> None:
    view = ContainerView(pod=PodView(annotations={**HUAWEI_POD, **annotations}))
    assert change_of(view, *NPUS) is None


@pytest.mark.parametrize("text", ["[]", "{", '{"gpu": 1}', '{"gpu": [' + '{"minor":0},' * 9_999 + "{}]}"])
def test_of_a_malformed_allocation_nothing_is_used(text: str) -> None:
    view = ContainerView(pod=PodView(annotations={**HUAWEI_POD, DEVICE_ALLOCATED: text}))
    change = change_of(view, *NPUS)
    assert change is not None
    assert change == ContainerChange(problems=change.problems)


@pytest.mark.parametrize(
    ("annotations", "vendor", "row"),
    [
        ({"huawei.com/npu-core": "0"}, "", HUAWEI),
        ({"CAMBRICON_DSMLU_PROFILE": "0_50_64"}, "", CAMBRICON),
        ({"metax-tech.com/gpu-devices-allocated": "[]"}, "", METAX),
        ({}, "huawei", HUAWEI),
        ({}, "cambricon", CAMBRICON),
        ({}, "metax", METAX),
        ({"huawei.com/npu-core": "0"}, "nvidia", HUAWEI),
        ({}, "nvidia", None),
        ({}, "", None),
        ({}, "someone", None),
    ],
)
def test_a_vendor_is_known_by_the_pods_annotation_or_the_nodes_label(
    annotations: dict[str, str], vendor: str, row: Accelerator | None
) -> None:
    assert other_vendor(PodView(annotations=annotations), {GPU_VENDOR_LABEL: vendor}) is row


@pytest.mark.parametrize(
    ("vendor", "annotations", "env", "nodes"),
    [
        pytest.param(
            "cambricon",
            {},
            {"CAMBRICON_VISIBLE_DEVICES": "0,1"},
            ["/dev/cambricon_dev0", "/dev/cambricon_ipcm0", "/dev/cambricon_dev1", "/dev/cambricon_ctl"],
            id="cambricon",
        ),
        pytest.param("cambricon", {"CAMBRICON_DSMLU_PROFILE": "0_50_64"}, None, [], id="cambricon-share"),
        pytest.param("nvidia", {}, None, [], id="nvidia-is-gpu-envs"),
        pytest.param("", {}, None, [], id="not-known"),
    ],
)
def test_the_other_rows(
    vendor: str, annotations: dict[str, str], env: dict[str, str] | None, nodes: list[str]
) -> None:
    change = change_of(container(annotations, npu(0), npu(1)), *MLUS, vendor=vendor)
    assert (change.env if change is not None else None) == env
    assert (paths(change) if change is not None else []) == nodes


METAX_POD = {"metax-tech.com/gpu-devices-allocated": '[[{"uuid":"GPU-a","compute":100,"vRam":65536}]]'}
METAX_HOST = HostDevices(
    drm={
        "0000:0e:00.0": (HostDevice("/dev/dri/card1", 226, 1), HostDevice("/dev/dri/renderD129", 226, 129)),
        "0000:0f:00.0": (HostDevice("/dev/dri/card2", 226, 2), HostDevice("/dev/dri/renderD130", 226, 130)),
    },
    accelerators=frozenset({"/dev/mxcd", "/dev/mxgd", "/dev/nvidia0"}),
)


def metax_change(
    *devices: object, node: object = None, on: HostDevices = METAX_HOST, annotated: bool = True
) -> ContainerChange:
    listed = [{"uuid": "GPU-a", "bdf": "0000:0E:00.0", "numa": 0}, {"uuid": "GPU-b", "bdf": "0000:0f:00.0"}]
    node_annotations = {METAX.inventory: json.dumps(listed if node is None else node)} if annotated else {}
    change = accelerator_change(container(METAX_POD, *devices), {}, node_annotations, on)
    assert change is not None
    return change


def test_metaxs_gpus_are_found_by_the_inventory_of_the_node() -> None:
    change = metax_change(npu(7, id="GPU-b"), npu(0, id="GPU-a"))
    assert change.env == {}
    assert [(each.host_path, each.numbers) for each in change.devices] == [
        ("/dev/dri/card2", (226, 2)),
        ("/dev/dri/renderD130", (226, 130)),
        ("/dev/dri/card1", (226, 1)),
        ("/dev/dri/renderD129", (226, 129)),
        ("/dev/mxcd", None),
        ("/dev/mxgd", None),
    ]
    assert paths(change)
    assert (change.problems, change.missing) == ((), ())


def test_a_part_of_metaxs_gpu_is_left_to_its_plugin() -> None:
    view = container(METAX_POD, npu(0, {GPU_MEMORY_RATIO: "50"}, id="GPU-a"))
    assert accelerator_change(view, {}, {METAX.inventory: "[]"}, METAX_HOST) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda: metax_change(npu(0, id="GPU-c")), "no PCI address of the GPU 'GPU-c'"),
        (lambda: metax_change(npu(0)), "no PCI address of the GPU ''"),
        (lambda: metax_change(npu(0, id=5)), "no PCI address of the GPU ''"),
        (lambda: metax_change(npu(0, id="GPU-a"), node=[{"uuid": "GPU-a", "bdf": "../0"}]), "no PCI address"),
        (lambda: metax_change(npu(0, id="GPU-a"), node=[{"uuid": "GPU-a"}, {"uuid": 1}]), "no PCI address"),
        (lambda: metax_change(npu(0, id="GPU-a"), on=HostDevices()), "PCI device 0000:0e:00.0 has no nodes"),
    ],
)
def test_metaxs_gpus_that_are_not_found_are_missing(
    change: Callable[[], ContainerChange], reason: str
) -> None:
    found = change()
    assert (found.devices, found.problems) == ((), ())
    assert reason in found.missing[0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda: metax_change(npu(0, id="GPU-a"), annotated=False), f"has no annotation {METAX.inventory}"),
        (lambda: metax_change(npu(0, id="GPU-a"), node={}), "is not a list"),
        (lambda: metax_change(npu(0, id="GPU-a"), node=["x", None]), "is null"),
        (
            lambda: metax_change(npu(0, id="GPU-a"), on=HostDevices(drm=METAX_HOST.drm)),
            "the daemon sees none of the host's /dev/mxcd",
        ),
    ],
)
def test_what_is_left_to_metaxs_plugin_is_reported(
    change: Callable[[], ContainerChange], problem: str
) -> None:
    assert problem in change().problems[0]


def test_each_vendor_has_one_row() -> None:
    assert len({each.vendor for each in (NVIDIA, *OTHERS)}) == 4
    assert len([key for each in OTHERS for key in each.annotations]) == 3


@pytest.mark.parametrize("row", [each for each in (NVIDIA, *OTHERS) if each.device])
def test_the_node_looks_for_each_name_in_the_table(row: Accelerator, tmp_path: Any) -> None:
    from runtimeproxy.node.devices import read_devices

    wanted = [row.device.format(3), *(each.format(3) for each in row.beside), *row.shared]
    for path in wanted:
        (tmp_path / path.removeprefix("/dev/")).touch()
    found = read_devices(tmp_path, tmp_path)
    assert found is not None
    assert found.accelerators == set(wanted)
    assert [each.host_path for each in device_nodes(row, [3], found).devices] == wanted


def test_the_policy_takes_what_is_known_of_the_node() -> None:
    view = container({}, npu(0))
    known = Node(labels={GPU_VENDOR_LABEL: "huawei"}, facts=NodeFacts(devices=host(*NPUS)))
    assert Accelerators().container(view, known) == change_of(view, *NPUS, vendor="huawei")
    listed = json.dumps([{"uuid": "GPU-a", "bdf": "0000:0e:00.0"}])
    with_inventory = Node(annotations={METAX.inventory: listed}, facts=NodeFacts(devices=METAX_HOST))
    change = Accelerators().container(container(METAX_POD, npu(0, id="GPU-a")), with_inventory)
    assert change is not None
    assert len(change.devices) == 4
    assert Accelerators().container(view, Node()) is None
    unknown = Accelerators().container(container(HUAWEI_POD, npu(0)), Node())
    assert unknown is not None
    assert (unknown.env, unknown.devices) == ({"ASCEND_VISIBLE_DEVICES": "0"}, ())
