"""The kubelet's files, good and bad."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.documents.reading import InputError, parse_documents, parse_json
from runtimeproxy.node.kubelet import (
    CpuManagerState,
    KubeletConfig,
    class_memory,
    parse_allocated_pods,
    parse_config,
    parse_cpu_manager_state,
)
from runtimeproxy.qos import KubeQoSClass

KUBEADM = b"""
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 0s
reservedSystemCPUs: 0-1,64
kubeReserved:
  cpu: 200m
  memory: 150Mi
systemReserved:
  cpu: "1"
  memory: 1Gi
  ephemeral-storage: 1G
"""


def test_a_configuration_of_kubeadm() -> None:
    assert parse_config(parse_documents(KUBEADM)[0]) == KubeletConfig(
        cgroup_driver="systemd",
        cpu_manager_policy="static",
        reserved_cpus=frozenset({0, 1, 64}),
        reserved={"cpu": 1200, "memory": 150 * 2**20 + 2**30, "ephemeral-storage": 10**9},
    )


def test_what_a_configuration_does_not_say_is_not_known() -> None:
    assert parse_config({"kind": "KubeletConfiguration", "cgroupDriver": ""}) == KubeletConfig()


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ([], "is a list, not a mapping"),
        ({"kind": "Deployment"}, "kind: is 'Deployment', not KubeletConfiguration"),
        ({"cgroupDriver": "docker"}, "cgroupDriver: is 'docker', not systemd or cgroupfs"),
        ({"cgroupDriver": ["x"]}, "cgroupDriver: is ['x'], not systemd or cgroupfs"),
        ({"cpuManagerPolicy": 5}, "cpuManagerPolicy: is 5, not none or static"),
        ({"reservedSystemCPUs": "0-"}, "reservedSystemCPUs: not a CPU list: '0-'"),
        ({"reservedSystemCPUs": {"a": 1}}, "reservedSystemCPUs: is a mapping, not a CPU list"),
        ({"reservedSystemCPUs": True}, "reservedSystemCPUs: is a boolean, not a CPU list"),
        ({"kubeReserved": "1"}, "kubeReserved: is a text, not a mapping"),
        ({"kubeReserved": {"cpu": "a lot"}}, "kubeReserved.cpu: is not a quantity: 'a lot'"),
        ({"systemReserved": {"memory": None}}, "systemReserved.memory: is null, not a quantity"),
        ({"systemReserved": {"memory": "-1Gi"}}, "systemReserved.memory: is below 0: '-1Gi'"),
        ({"featureGates": {"MemoryQoS": "on"}}, "featureGates.MemoryQoS: is neither true nor false"),
        (
            {"memoryReservationPolicy": "Hard"},
            "memoryReservationPolicy: is 'Hard', not None or TieredReservation",
        ),
    ],
)
def test_a_bad_configuration(config: Any, problem: str) -> None:
    with pytest.raises(InputError) as error:
        parse_config(config)
    assert str(error.value) == problem


def test_a_single_cpu_may_be_a_number() -> None:
    assert parse_config(parse_documents(b"reservedSystemCPUs: 3")[0]).reserved_cpus == {3}


MIN, LOW = "memory.min", "memory.low"


@pytest.mark.parametrize(
    ("version", "fields", "of_all", "of_burstable"),
    [
        pytest.param("v1.34.2", {}, "", "", id="1.34"),
        pytest.param("v1.34.2", {"featureGates": {"MemoryQoS": True}}, MIN, MIN, id="1.34-on"),
        pytest.param("v1.34.2", {"featureGates": {"AllAlpha": True}}, MIN, MIN, id="1.34-all-alpha"),
        pytest.param("v1.35.9", {"featureGates": {"MemoryQoS": True}}, MIN, MIN, id="1.35-on"),
        pytest.param("v1.36.0", {}, "", "", id="1.36"),
        pytest.param("v1.36.0", {"featureGates": {"MemoryQoS": True}}, MIN, LOW, id="1.36-on"),
        pytest.param("v1.37.2", {}, "", "", id="1.37"),
        pytest.param("v1.37.2", {"featureGates": {"MemoryQoS": True}}, "", "", id="1.37-on"),
        pytest.param("v1.37.2", {"memoryReservationPolicy": "None"}, "", "", id="1.37-none"),
        pytest.param(
            "v1.37.2-x.1",
            {"memoryReservationPolicy": "TieredReservation"},
            f"{LOW} {MIN}",
            LOW,
            id="1.37-tiered",
        ),
        pytest.param(
            "v1.38.0",
            {"memoryReservationPolicy": "TieredReservation", "featureGates": {"AllBeta": False}},
            "",
            "",
            id="1.38-no-beta",
        ),
        pytest.param("", {}, "", "", id="unknown"),
        pytest.param("", {"featureGates": {"MemoryQoS": False}}, "", "", id="unknown-off"),
        pytest.param("?", {"featureGates": {"MemoryQoS": True}}, MIN, f"{LOW} {MIN}", id="unknown-on"),
        pytest.param(
            "", {"memoryReservationPolicy": "TieredReservation"}, f"{LOW} {MIN}", LOW, id="unknown-tiered"
        ),
    ],
)
def test_what_memory_qos_of_the_kubelet_writes(
    version: str, fields: dict[str, Any], of_all: str, of_burstable: str
) -> None:
    written = class_memory(parse_config(fields), version)
    found = {qos: " ".join(sorted(written.get(qos, ()))) for qos in KubeQoSClass}
    assert found == {
        KubeQoSClass.GUARANTEED: of_all,
        KubeQoSClass.BURSTABLE: of_burstable,
        KubeQoSClass.BEST_EFFORT: "",
    }


STATE = {
    "policyName": "static",
    "defaultCpuSet": "0-1,4-7",
    "entries": {"6a3b": {"main": "2-3", "side": ""}},
    "checksum": 1356122217,
}
"""As the kubelet writes it."""


def test_a_state_of_the_cpu_manager() -> None:
    assert parse_cpu_manager_state(STATE) == CpuManagerState(
        policy="static", static_cpus={("6a3b", "main"): frozenset({2, 3}), ("6a3b", "side"): frozenset()}
    )


def test_the_states_of_a_kubelet_without_a_policy_and_of_old_kubelets() -> None:
    none = {"policyName": "none", "defaultCpuSet": "", "checksum": 1353318690}
    assert parse_cpu_manager_state(none) == CpuManagerState(policy="none")
    old = {"policyName": "static", "defaultCpuSet": "0", "entries": {"4ce1a": "1-2"}}
    assert parse_cpu_manager_state(old) == CpuManagerState(policy="static")


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (None, "policyName: is missing"),
        ("static", "is a text, not a mapping"),
        ({"entries": {}}, "policyName: is missing"),
        ({"policyName": 1}, "policyName: is a number, not a text"),
        ({**STATE, "entries": []}, "entries: is a list, not a mapping"),
        ({**STATE, "entries": {"uid": ["1"]}}, "entries.uid: is a list, not a mapping"),
        ({**STATE, "entries": {"uid": {"main": "x"}}}, "entries.uid.main: not a CPU list: 'x'"),
        (
            {**STATE, "entries": {"uid": {"main": "9999"}}},
            "entries.uid.main: CPU range 9999 is reversed or above 8191",
        ),
        ({**STATE, "entries": {"uid": {"main": {}}}}, "entries.uid.main: is a mapping, not a CPU list"),
    ],
)
def test_a_bad_state_of_the_cpu_manager(state: Any, problem: str) -> None:
    with pytest.raises(InputError) as error:
        parse_cpu_manager_state(state)
    assert str(error.value) == problem


def allocated(entries: Any) -> dict[str, Any]:
    """The state in the form of Kubernetes 1.33."""
    return {"data": json.dumps({"entries": entries}), "checksum": 1178570812}


def test_requests_of_admitted_pods() -> None:
    entries = {
        "uid-1": {
            "ContainerResources": {
                "app": {
                    "limits": {"cpu": "1", "memory": "512Mi"},
                    "requests": {"cpu": "250m", "memory": "256Mi", "kubernetes.io/batch-cpu": "500"},
                },
                "plain": {},
            },
            "PodLevelResources": {"requests": {"cpu": "500m"}},
        },
        "uid-2": {"ContainerResources": None},
    }
    assert parse_allocated_pods(allocated(entries)) == {
        ("uid-1", "app"): {"cpu": 250, "memory": 256 * 2**20, "kubernetes.io/batch-cpu": 500},
        ("uid-1", "plain"): {},
    }


def test_the_version_with_the_pods_as_protobuf_keeps_the_entries() -> None:
    data = {"podList": "CgA=", "entries": {"u": {"ContainerResources": {"app": {"requests": {"cpu": "1"}}}}}}
    state = {"version": "v2", "data": json.dumps(data), "checksum": 1}
    assert parse_allocated_pods(state) == {("u", "app"): {"cpu": 1000}}


def test_a_state_without_pods() -> None:
    assert parse_allocated_pods({"data": "{}", "checksum": 0}) == {}


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ([], "is a list, not a mapping"),
        ({}, "data: is missing"),
        ({"data": {}}, "data: is a mapping, not a text"),
        ({"data": ""}, "data: is empty"),
        ({"data": "{"}, "data: line 1 column 2: Expecting property name enclosed in double quotes"),
        ({"data": "[]"}, "data: is a list, not a mapping"),
        (allocated([]), "data.entries: is a list, not a mapping"),
        (allocated({"u": 1}), "data.entries.u: is a number, not a mapping"),
        (
            allocated({"u": {"ContainerResources": 1}}),
            "data.entries.u.ContainerResources: is a number, not a mapping",
        ),
        (
            allocated({"u": {"ContainerResources": {"app": {"requests": {"memory": "much"}}}}}),
            "data.entries.u.ContainerResources.app.requests.memory: is not a quantity: 'much'",
        ),
    ],
)
def test_a_bad_state_of_admitted_pods(state: Any, problem: str) -> None:
    with pytest.raises(InputError) as error:
        parse_allocated_pods(state)
    assert str(error.value) == problem


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "data",
                    "entries",
                    "policyName",
                    "cgroupDriver",
                    "kubeReserved",
                    "cpu",
                    "ContainerResources",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_whatever_the_files_hold_it_is_read_or_refused(value: object) -> None:
    readers: list[Callable[[object], object]] = [parse_config, parse_cpu_manager_state, parse_allocated_pods]
    for read in readers:
        with suppress(InputError):
            read(value)


@given(st.binary(max_size=64))
def test_half_written_json_is_refused(data: bytes) -> None:
    with suppress(InputError):
        parse_json(data)
