"""RDMA devices of pods, by the functions that the scheduler has allocated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.annotations import DEVICE_ALLOCATED
from policies.rdma_devices import RdmaDevices, rdma_change
from runtimeproxy.hooks import ContainerChange, ContainerView, DeviceSpec, PodView
from runtimeproxy.node.devices import HostDevice, HostDevices
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import Input, Node

CM = "/dev/infiniband/rdma_cm"
HOST = HostDevices(
    rdma={
        "0000:1f:00.0": HostDevice("/dev/infiniband/uverbs0", 231, 192),
        "0000:1f:00.2": HostDevice("/dev/infiniband/uverbs2", 231, 194),
        "0000:1f:00.3": HostDevice("/dev/infiniband/uverbs3", 231, 195),
        "0000:90:00.0": HostDevice("/dev/infiniband/uverbs4", 231, 196),
    },
    rdma_cm=HostDevice(CM, 10, 122),
)
NUMBERS = {each.path: (each.major, each.minor) for each in (*HOST.rdma.values(), HostDevice(CM, 10, 122))}


def container(allocated: object) -> ContainerView:
    text = allocated if isinstance(allocated, str) else json.dumps(allocated)
    return ContainerView(name="main", pod=PodView(uid="u1", annotations={DEVICE_ALLOCATED: text}))


def device(identity: str, *functions: str) -> dict[str, Any]:
    found = {"minor": 0, "id": identity, "resources": {"koordinator.sh/rdma": "100"}}
    vfs = [{"minor": number, "busID": each} for number, each in enumerate(functions)]
    return {**found, "extension": {"vfs": vfs}} if functions else found


def change_of(allocated: object, host: HostDevices = HOST) -> ContainerChange:
    change = rdma_change(container(allocated), host)
    assert change is not None
    return change


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        pytest.param([device("0000:1f:00.0")], ["uverbs0"], id="function"),
        pytest.param([device("0000:1f:00.0", "0000:1f:00.2")], ["uverbs2"], id="vf"),
        pytest.param(
            [device("0000:1f:00.0", "0000:1f:00.3", "0000:1f:00.2"), device("0000:90:00.0")],
            ["uverbs3", "uverbs2", "uverbs4"],
            id="vfs-and-function",
        ),
        pytest.param([device("0000:90:00.0"), device("0000:90:00.0")], ["uverbs4"], id="twice"),
        pytest.param([device("0000:1F:00.0")], ["uverbs0"], id="upper-case"),
        pytest.param(
            [{**device("0000:1f:00.0"), "extension": {"vfs": []}}], ["uverbs0"], id="no-vfs-but-the-member"
        ),
        pytest.param([{"ID": "0000:90:00.0", "Extension": {"VFs": None}}], ["uverbs4"], id="any-case"),
    ],
)
def test_the_connection_manager_comes_first_then_each_function(
    devices: list[dict[str, Any]], names: list[str]
) -> None:
    change = change_of({"rdma": devices})
    paths = [CM, *(f"/dev/infiniband/{name}" for name in names)]
    assert change.devices == tuple(
        DeviceSpec(host_path=path, container_path=path, permissions="rwm", numbers=NUMBERS[path])
        for path in paths
    )
    assert (change.problems, change.missing) == ((), ())
    assert all(path in change.reason for path in paths[1:])


@pytest.mark.parametrize("allocated", [{"gpu": [{"minor": 0}]}, {"rdma": []}, {"rdma": None}, {}, "null"])
def test_pods_without_rdma_get_nothing(allocated: object) -> None:
    assert rdma_change(container(allocated), HOST) is None
    assert rdma_change(ContainerView(), HOST) is None


def test_a_function_without_a_device_costs_itself_and_says_so() -> None:
    change = change_of({"rdma": [device("0000:1f:00.7"), device("0000:90:00.0")]})
    assert [each.host_path for each in change.devices] == [CM, "/dev/infiniband/uverbs4"]
    assert change.missing == (
        "PCI device 0000:1f:00.7 has no RDMA device on this node (no infiniband_verbs in sysfs)",
    )


def test_without_the_connection_manager_the_others_are_given() -> None:
    change = change_of({"rdma": [device("0000:90:00.0")]}, HostDevices(rdma=HOST.rdma))
    assert [each.host_path for each in change.devices] == ["/dev/infiniband/uverbs4"]
    assert change.missing == (f"this node has no {CM}: the kernel's module rdma_ucm is not loaded",)


@pytest.mark.parametrize(
    "address",
    [
        "../../../../etc",
        "/dev/sda",
        "0000:1f:00.2/../0000:1f:00.0",
        "0000:1f:00.2\n",
        "0000:1f:00.8",
        "0000:1f:20.0",
        "1f:00.2",
        "",
        7,
        None,
        [],
        "٠٠٠٠:1f:00.2",  # noqa: RUF001 - digits of another script
    ],
)
@pytest.mark.parametrize("as_function", [False, True])
def test_no_pod_names_a_device(address: object, as_function: bool) -> None:
    bad = {"extension": {"vfs": [{"busID": address}]}} if as_function else {"id": address}
    change = change_of({"rdma": [bad, device("0000:90:00.0")]})
    assert [each.host_path for each in change.devices] == [CM, "/dev/infiniband/uverbs4"]
    (missing,) = change.missing
    assert missing.startswith(f"annotation {DEVICE_ALLOCATED}[rdma][0].")


@pytest.mark.parametrize(
    "allocated",
    [
        "[]",
        "{",
        {"rdma": {}},
        {"rdma": [1]},
        {"rdma": [None]},
        {"rdma": "x"},
        '{"rdma": [' + "{}," * 9_999 + "{}]}",
    ],
    ids=["list", "torn", "object", "number", "null", "text", "10,000 devices"],
)
def test_of_a_malformed_allocation_nothing_is_used(allocated: object) -> None:
    change = change_of(allocated)
    assert not {CM} & {each.host_path for each in change.devices} or change.missing
    assert len(change.devices) <= 1
    assert any("device-allocated" in each for each in (*change.problems, *change.missing))


@pytest.mark.parametrize("extension", [1, [], {"vfs": {}}, {"vfs": ["x"]}, {"vfs": [None]}, {"vfs": [{}]}])
def test_a_device_of_another_shape_costs_itself(extension: object) -> None:
    bad = {"id": "0000:1f:00.0", "extension": extension}
    if extension == []:
        bad["extension"] = [1]
    change = change_of({"rdma": [bad, device("0000:90:00.0")]})
    assert [each.host_path for each in change.devices] == [CM, "/dev/infiniband/uverbs4"]
    assert len(change.missing) == 1


def test_the_policy_depends_on_the_nodes_devices() -> None:
    view = container({"rdma": [device("0000:90:00.0")]})
    assert RdmaDevices.inputs == {Input.DEVICES}
    assert RdmaDevices().container(view, Node(facts=NodeFacts(devices=HOST))) == rdma_change(view, HOST)
    assert RdmaDevices().container(view, Node()) is None
