"""CPU sets. Cases Vnnn are those of Koordinator's cpuset/rule_test.go (CONTRIBUTING.md).

Pools are sets of CPUs here: Koordinator's `0-7,8-15` is `0-15`.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.annotations import RESOURCE_STATUS, AnnotationError, ResourceStatus, resource_status
from policies.cpuset import CpuRule, Cpuset, CpusetOptions, container_cpus, host_cpus
from runtimeproxy.hooks import CLEAR, Clear, ContainerView, PodView, ResourceChange, Resources
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import Input, KubeletFacts, Node, Pool, Pools
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.slo.schema import HostApplication
from runtimeproxy.slo.strategies import Strategies
from runtimeproxy.units import parse_cpu_list
from tests.lab.cpu_claims import device_of

NUMA_ONLY = '{"numaNodeResources": [{"node": 0, "resources": {"cpu": "4"}}]}'
NONE, STATIC = "none", "static"
GUARANTEED, BURSTABLE, BEST_EFFORT = KubeQoSClass


def pools(*, system: str = "", be: tuple[str, str] = ("0-7", "8-15")) -> Pools:
    ls = ("0-7", "8-15")
    return Pools(
        ls=tuple(Pool(socket=0, numa_node=n, cpus=parse_cpu_list(cpus)) for n, cpus in enumerate(ls)),
        be=tuple(Pool(socket=0, numa_node=n, cpus=parse_cpu_list(cpus)) for n, cpus in enumerate(be)),
        system_cpus=parse_cpu_list(system),
    )


def status(text: str) -> dict[str, str]:
    return {RESOURCE_STATUS: text}


@pytest.mark.parametrize(
    ("text", "cpus", "nodes"),
    [
        pytest.param('{"cpuset": "2-4"}', "2-4", (), id="V064"),
        pytest.param('{"CPUSet": "8,0-3"}', "8,0-3", (), id="verbatim-in-any-case"),
        pytest.param('{"cpuset": ""}', None, (), id="empty"),
        pytest.param(NUMA_ONLY, None, (0,), id="V076-numa-only"),
        pytest.param("null", None, (), id="null"),
        pytest.param(
            '{"numaNodeResources": [{"node": 1, "resources": {"kubernetes.io/batch-cpu": "2000"}}]}',
            None,
            (1,),
            id="V070",
        ),
        pytest.param(
            '{"numaNodeResources": [{"node": 0, "resources": {"memory": "1Gi", "cpu": "0"}}, {"node": 1}]}',
            None,
            (),
            id="no-cpu",
        ),
        pytest.param(
            '{"numaNodeResources": [{"node": 1, "resources": {"cpu": "500m"}}, {"resources": {"cpu": 1}}]}',
            None,
            (1, 0),
            id="two-nodes",
        ),
        pytest.param('{"cpuset": "2-4", "numaNodeResources": 1}', "2-4", (), id="beside-cpus"),
    ],
)
def test_the_scheduler_allocates_cpus_or_nodes(text: str, cpus: str | None, nodes: tuple[int, ...]) -> None:
    assert resource_status(status(text)) == ResourceStatus(cpus, nodes)


def test_a_pod_without_the_annotation_has_no_allocated_cpus() -> None:
    assert resource_status({}) == ResourceStatus()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"cpuset": 2-4}', id="V065"),
        pytest.param('{"cpuset": 24}', id="number"),
        pytest.param('{"cpuset": "4-2"}', id="reversed"),
        pytest.param('{"cpuset": "0-3;reboot"}', id="no-list"),
        pytest.param("[]", id="list"),
        pytest.param('{"numaNodeResources": [{"node": "0"}]}', id="node"),
        pytest.param('{"numaNodeResources": [{"resources": {"cpu": "four"}}]}', id="quantity"),
    ],
)
def test_a_malformed_annotation_is_an_error(text: str) -> None:
    with pytest.raises(AnnotationError, match="resource-status"):
        resource_status(status(text))


CPUS = ResourceStatus("2-4")
NODE_0 = ResourceStatus(None, (0,))
NODE_1 = ResourceStatus(None, (1,))
NO_STATUS = ResourceStatus()


@pytest.mark.parametrize(
    ("qos", "kube_qos", "allocated", "rule", "expected"),
    [
        pytest.param(QoSClass.LSR, GUARANTEED, CPUS, CpuRule(), "2-4", id="V064"),
        pytest.param(QoSClass.LS, BURSTABLE, NO_STATUS, CpuRule(), None, id="no-pools"),
        pytest.param(QoSClass.LS, BURSTABLE, NO_STATUS, CpuRule(pools=pools()), "0-15", id="V067"),
        pytest.param(QoSClass.LS, BURSTABLE, NODE_0, CpuRule(pools=pools()), "0-7", id="V068"),
        pytest.param(
            QoSClass.BE, BEST_EFFORT, NODE_1, CpuRule(pools=pools(), uses_be_pools=True), "8-15", id="V070"
        ),
        pytest.param(QoSClass.BE, BEST_EFFORT, NODE_1, CpuRule(pools=pools()), CLEAR, id="gate-off"),
        pytest.param(QoSClass.NONE, BEST_EFFORT, NO_STATUS, CpuRule(pools=pools()), CLEAR, id="V071"),
        pytest.param(
            QoSClass.SYSTEM, BURSTABLE, NO_STATUS, CpuRule(pools=pools(system="14-15")), "14-15", id="SYSTEM"
        ),
        pytest.param(QoSClass.SYSTEM, BURSTABLE, NO_STATUS, CpuRule(pools(), NONE), "0-15", id="V073"),
        pytest.param(QoSClass.NONE, BURSTABLE, NO_STATUS, CpuRule(pools(), NONE), "0-15", id="V074-none"),
        pytest.param(QoSClass.NONE, BURSTABLE, NO_STATUS, CpuRule(pools(), STATIC), None, id="V074-static"),
        pytest.param(QoSClass.NONE, BURSTABLE, NO_STATUS, CpuRule(pools()), None, id="policy-not-known"),
        pytest.param(
            QoSClass.LS, BURSTABLE, ResourceStatus(None, (7,)), CpuRule(pools()), None, id="no-node"
        ),
        pytest.param(QoSClass.LS, BURSTABLE, NO_STATUS, CpuRule(Pools()), None, id="empty-pools"),
    ],
)
def test_the_cpus_of_a_container(
    qos: QoSClass,
    kube_qos: KubeQoSClass,
    allocated: ResourceStatus,
    rule: CpuRule,
    expected: str | Clear | None,
) -> None:
    assert container_cpus(qos, kube_qos, allocated, rule, has_static_cpus=False) == expected


@given(
    st.sampled_from(list(QoSClass)),
    st.sampled_from(list(KubeQoSClass)),
    st.sampled_from([NODE_0, NODE_1, NO_STATUS]),
    st.sampled_from([None, NONE, STATIC]),
    st.booleans(),
)
def test_cpus_that_the_kubelet_gave_away_stay_as_they_are(
    qos: QoSClass, kube_qos: KubeQoSClass, allocated: ResourceStatus, policy: str | None, uses_be_pools: bool
) -> None:
    """#1214: koordlet puts an LS pod with CPUs of the kubelet's static policy into the shared pool; the
    kubelet writes its own CPUs back every 10 s, and both overwrite each other for ever."""
    rule = CpuRule(pools=pools(), cpu_manager_policy=policy, uses_be_pools=uses_be_pools)
    assert container_cpus(qos, kube_qos, allocated, rule, has_static_cpus=True) is None
    # An allocation of the scheduler's stands above it.
    assert container_cpus(qos, kube_qos, CPUS, rule, has_static_cpus=True) == "2-4"


# --- the policy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", QoSClass)
def test_containers_of_every_class_get_the_allocated_cpus_and_lse_and_lsr_no_quota(qos: QoSClass) -> None:
    pod = PodView(qos=qos, annotations=status('{"cpuset": "2-4"}'))
    change = Cpuset().container(ContainerView(name="main", pod=pod), Node())
    assert change is not None
    is_exclusive = qos in (QoSClass.LSE, QoSClass.LSR)
    quota_us = -1 if is_exclusive else None
    assert change.resources == ResourceChange(cpuset_cpus="2-4", cpu_quota_us=quota_us)
    of_pod = Cpuset().pod(pod, Node())
    if is_exclusive:
        assert of_pod is not None
        assert of_pod.cgroup == {"cpu.cfs_quota_us": -1}
        reason = f"CPUs that the {qos} pod has for itself need no quota = -1"
        assert of_pod.reasons == {"cpu.cfs_quota_us": reason}
    else:
        assert of_pod is None


def test_numa_resources_alone_do_not_unset_the_quota() -> None:
    """V076."""
    pod = PodView(annotations=status(NUMA_ONLY))
    assert Cpuset().pod(pod, Node()) is None
    assert Cpuset().container(ContainerView(pod=pod), Node()) is None


def test_quotas_can_be_kept() -> None:
    """V077."""
    policy = Cpuset(CpusetOptions(disable_unset_cpu_quota=True))
    pod = PodView(annotations=status('{"cpuset": "2-4"}'))
    change = policy.container(ContainerView(pod=pod), Node())
    assert policy.pod(pod, Node()) is None
    assert change is not None
    assert change.resources == ResourceChange(cpuset_cpus="2-4")


@pytest.mark.parametrize("cpus", [None, "0-15", "9"])
def test_an_update_of_the_kubelets_cpu_manager_gets_the_same_answer(cpus: str | None) -> None:
    """#3129: koordlet's answer to an update names no container, so the kubelet's CPUs win until the next
    round of its reconciler. Here the update itself carries the policy's CPUs, whatever the kubelet asks."""
    pod = PodView(qos=QoSClass.LSR, annotations=status('{"cpuset": "2-4"}'))
    asked = Resources(cpuset_cpus=cpus)
    view = ContainerView(id="c", name="main", pod=pod, requested=asked, updated=asked)
    change = Cpuset().container(view, Node(pools=pools()))
    assert change is not None
    assert change.resources == ResourceChange(cpuset_cpus="2-4", cpu_quota_us=-1)


def test_a_best_effort_container_gets_no_list_of_its_own() -> None:
    """#871, #395: under its static policy the kubelet sends a list for best-effort containers, too, which may
    exceed the suppressed list of their parent: version 1 refuses it, and the container fails."""
    pod = PodView(qos=QoSClass.BE, kube_qos=BEST_EFFORT)
    view = ContainerView(name="main", pod=pod, requested=Resources(cpuset_cpus="0-15"))
    node = Node(pools=pools(), kubelet=KubeletFacts(cpu_manager_policy=STATIC))
    change = Cpuset().container(view, node)
    assert change is not None
    assert change.resources == ResourceChange(cpuset_cpus=CLEAR)


def test_the_kubelets_facts_come_from_the_node() -> None:
    """V074, #1214, through the policy."""
    view = ContainerView(name="main", pod=PodView(uid="u", kube_qos=BURSTABLE))
    labelled = ContainerView(name="main", pod=PodView(uid="u", qos=QoSClass.LS))
    free = Node(pools=pools(), kubelet=KubeletFacts(cpu_manager_policy=NONE))
    change = Cpuset().container(view, free)
    assert change is not None
    assert change.resources == ResourceChange(cpuset_cpus="0-15")
    given_away = KubeletFacts(cpu_manager_policy=STATIC, static_cpus={("u", "main"): frozenset({1, 2})})
    taken = Node(pools=pools(), kubelet=given_away)
    assert Cpuset().container(labelled, taken) is None
    assert Cpuset().container(ContainerView(name="side", pod=labelled.pod), taken) is not None


@pytest.mark.parametrize("qos", [QoSClass.LS, QoSClass.BE, QoSClass.NONE])
def test_host_applications_of_ls_get_the_pools(qos: QoSClass) -> None:
    application = HostApplication(name="nginx", qos=qos)
    node = Node(pools=pools(), strategies=Strategies(host_applications=(application,)))
    change = Cpuset().node(node)
    assert change is not None
    expected = {"/host-latency-sensitive/nginx": {"cpuset.cpus": "0-15"}}
    assert change.cgroups == (expected if qos is QoSClass.LS else {})
    assert Cpuset().node(Node(strategies=node.strategies)) is None
    assert host_cpus(QoSClass.LS, Pools()) is None


def test_it_works_without_pools() -> None:
    assert Cpuset.inputs == frozenset()
    assert Input.POOLS in Cpuset.optional_inputs
    selector = Cpuset.selector_without[Input.POOLS]
    assert not selector.matches(PodView())
    assert selector.matches(PodView(annotations=status("{}")))


KATA = PodView(qos=QoSClass.LS, kube_qos=BURSTABLE, runtime_handler="kata-qemu")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(KATA, {"cpuset.cpus": "0-15"}, id="shared"),
        pytest.param(
            replace(KATA, qos=QoSClass.LSR, annotations=status('{"cpuset": "2-4"}')),
            {"cpuset.cpus": "2-4", "cpu.cfs_quota_us": -1},
            id="allocated",
        ),
        pytest.param(replace(KATA, runtime_handler="runc"), None, id="runc"),
        pytest.param(replace(KATA, runtime_handler="katalog"), None, id="another-handler"),
        pytest.param(replace(KATA, qos=QoSClass.BE, kube_qos=BEST_EFFORT), None, id="best-effort"),
        pytest.param(replace(KATA, uid="static"), None, id="static-cpus"),
    ],
)
def test_a_pod_in_a_vm_has_its_cpus_in_its_own_cgroup(
    pod: PodView, expected: dict[str, object] | None
) -> None:
    kubelet = KubeletFacts(cpu_manager_policy=NONE, static_cpus={("static", "main"): frozenset({1})})
    change = Cpuset().pod(pod, Node(pools=pools(), kubelet=kubelet))
    assert (change.cgroup if change is not None else None) == expected
    if change is not None:
        assert set(change.reasons) == set(change.cgroup)
    # The runtime of the VM gets those of containers, too.
    of_container = Cpuset().container(
        ContainerView(name="main", pod=pod), Node(pools=pools(), kubelet=kubelet)
    )
    assert (of_container is None) == (pod.uid == "static")


# --- NUMA nodes of memory ----------------------------------------------------------------------------------

BINDS = Cpuset(CpusetOptions(bind_memory=True))
BOTH = frozenset({0, 1})
ONE = frozenset({0})


def with_memory(nodes: frozenset[int] | None) -> Node:
    return Node(facts=NodeFacts(online_memory_nodes=nodes))


def numa(*nodes: int, resource: str = "memory", cpus: str = "") -> dict[str, str]:
    entries = [{"node": each, "resources": {resource: "1Gi"}} for each in nodes]
    return status(json.dumps({"cpuset": cpus, "numaNodeResources": entries}))


@pytest.mark.parametrize(
    ("annotations", "there", "expected", "problem"),
    [
        pytest.param(numa(1), BOTH, "1", "", id="one"),
        pytest.param(numa(1, 0), BOTH, "0-1", "", id="both"),
        pytest.param(numa(1, cpus="2-4"), BOTH, "1", "", id="beside-cpus"),
        pytest.param(numa(0, resource="kubernetes.io/batch-memory"), BOTH, "0", "", id="batch-memory"),
        pytest.param(numa(0, resource="cpu"), BOTH, None, "", id="without-memory"),
        pytest.param(numa(1), None, "1", "", id="not-known"),
        pytest.param(numa(0, 1), ONE, "0", "NUMA node 1 has no memory", id="empty-node"),
        pytest.param(numa(0, 3), ONE, "0", "bound to the others", id="offline"),
        pytest.param(numa(2, 3), ONE, None, "NUMA nodes 2, 3 have no memory", id="all-offline"),
        pytest.param(numa(-1), ONE, None, "is not bound", id="negative"),
        pytest.param(
            status('{"cpuset": "2-4", "numaNodeResources": 1}'), BOTH, None, "is not a list", id="bad"
        ),
        pytest.param({}, BOTH, None, "", id="no-annotation"),
    ],
)
def test_memory_is_bound_to_the_nodes_that_it_is_allocated_from(
    annotations: dict[str, str], there: frozenset[int] | None, expected: str | None, problem: str
) -> None:
    view = ContainerView(name="main", pod=PodView(qos=QoSClass.LSR, annotations=annotations))
    change = BINDS.container(view, with_memory(there))
    found = change.resources.cpuset_mems if change is not None and change.resources is not None else None
    assert found == expected
    assert problem in " ".join(change.problems if change is not None else ())
    assert bool(problem) == bool(change is not None and change.problems)
    if change is not None and change.resources is not None and expected is not None:
        reason = f"NUMA nodes of the memory allocated by the scheduler (resource-status) = {expected}"
        assert str(change.reasons["cpuset_mems"]) == reason
    # Without the option nothing is bound, and nothing is a problem.
    plain = Cpuset().container(view, with_memory(there))
    assert plain is None or (plain.resources is not None and plain.resources.cpuset_mems is None)
    assert plain is None or not plain.problems


def test_the_nodes_of_the_kubelets_memory_manager_stay() -> None:
    asked = Resources(cpuset_mems="0")
    view = ContainerView(name="main", pod=PodView(annotations=numa(1)), requested=asked)
    assert BINDS.container(view, with_memory(BOTH)) is None
    # Who asked for those of a recovered container is not known: they may be ours.
    change = BINDS.container(replace(view, is_recovered=True), with_memory(BOTH))
    assert change is not None
    assert change.resources == ResourceChange(cpuset_mems="1")


# --- CPUs of DRA claims ------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", QoSClass)
@pytest.mark.parametrize("annotations", [{}, status(NUMA_ONLY), status('{"cpuset": "2-4"}')])
def test_cpus_of_a_claim_stay_as_they_are(qos: QoSClass, annotations: dict[str, str]) -> None:
    node = Node(pools=pools(), claimed_cpus={device_of("a"): frozenset({5})})
    view = ContainerView(
        name="main", pod=PodView(qos=qos, annotations=annotations), cpu_claims=(device_of("a"),)
    )
    change = Cpuset().container(view, node)
    if "2-4" in str(annotations):
        assert change is not None
        assert change.resources is None
        assert "the CPUs of a DRA claim instead" in change.problems[0]
    else:
        assert change is None
    # Another container of the pod is as ever.
    other = Cpuset().container(replace(view, cpu_claims=()), node)
    assert other is None or other.resources is not None


def test_cpus_from_the_scheduler_that_a_claim_has_are_a_problem() -> None:
    pod = PodView(qos=QoSClass.LSR, annotations=status('{"cpuset": "2-5"}'))
    claims = {
        device_of("a"): frozenset({5, 6}),
        device_of("b"): frozenset({9}),
        device_of("c"): frozenset[int](),
    }
    change = Cpuset().container(ContainerView(pod=pod), Node(claimed_cpus=claims))
    assert change is not None
    assert change.resources == ResourceChange(cpuset_cpus="2-5", cpu_quota_us=-1)
    assert change.problems == (f"annotation {RESOURCE_STATUS}: CPUs 5 are those of a DRA claim, too",)


def test_an_unreadable_allocation_is_reported_and_sets_nothing() -> None:
    """V065."""
    pod = PodView(qos=QoSClass.LS, annotations=status("{"))
    for change in (
        Cpuset().pod(pod, Node(pools=pools())),
        Cpuset().container(ContainerView(pod=pod), Node(pools=pools())),
    ):
        assert change is not None
        assert not change.cgroup
        assert "resource-status" in change.problems[0]
