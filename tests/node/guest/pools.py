"""Katalyst's pools on two sockets with two NUMA nodes, in the modes `proxy` and `nri`.

Pods come and go. After each step CPUs and NUMA nodes in the kernel's files are those of the saved state.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import grpc

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.katalyst.levels import CPU_ENHANCEMENT, MEMORY_ENHANCEMENT, QOS_LEVEL
from runtimeproxy.katalyst.names import RECLAIMED_MILLICPU, QosLevel
from runtimeproxy.katalyst.pools import PoolPod, PoolState, problems
from runtimeproxy.katalyst.topology import Topology
from runtimeproxy.ledger.journal import read_boot_id
from runtimeproxy.ledger.pools import FILE as POOLS_FILE
from runtimeproxy.ledger.pools import pools_file, saved_state
from runtimeproxy.node.machine import read_cpus, read_memory
from runtimeproxy.units import format_cpu_list, parse_cpu_list
from tests.e2e.values import MIB, as_resources
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.pods import ContainerSpec, KubeQos
from tests.node.guest.cgroup_v2 import ROOT
from tests.node.guest.kubelet import remove_pod, run_pod, update
from tests.node.guest.machine import (
    CONFIG,
    CONTAINERD,
    PATIENCE_S,
    PATIENTLY,
    PROGRAM,
    SERVICE,
    SOCKET_UNIT,
    UnexpectedError,
    expect,
    expect_text,
    main_pid,
    run,
    systemctl,
    wait_for_another_process,
)
from tests.node.guest.modes import (
    Mode,
    kubelets_endpoint,
    make_slice,
    remove_all,
    restart,
    wait_for_daemon,
)
from tests.node.guest.node import Check, Node, Pod
from tests.node.guest.pods import SlicePodSpec, V1Values

_STATE = Path("/var/lib/koord-runtime-proxy", POOLS_FILE)
_KUBELET = Path("/var/lib/kubelet")
_RESERVED = "0"
_RAMP_UP_S = 20
"""An emulated node takes this long for two pods."""
_HELD_S = 30
"""Two files of a container take several seconds there, and others leave their CPUs while a call is held."""
_CPUS, _MEMS = "cpuset.cpus.effective", "cpuset.mems.effective"
_FIRST = "first"
# Builtins only until both are read: nothing else runs before.
_SCRIPT = f"""
for file in {_CPUS} {_MEMS}; do
  read -r value </sys/fs/cgroup/$file; echo "$file=$value" >&3
done 3>/lab/out/new
mv /lab/out/new /lab/out/{_FIRST}
exec sleep 1000000
"""


@dataclass(frozen=True)
class Case:
    """A pod with one container, and what it has alone or with its pool.

    Attributes:
        cpus: None: those of the state, whatever they are.
        numa_nodes: Likewise.
    """

    level: QosLevel
    kube_qos: KubeQos
    millicpu: int
    enhancements: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cpus: str | None = None
    numa_nodes: str | None = None

    @property
    def requested(self) -> V1Values:
        quota_us = self.millicpu * 100 if self.kube_qos == "guaranteed" else -1
        return V1Values(max(2, self.millicpu * 1024 // 1000), quota_us, 64 * MIB, "")


_BOUND = {MEMORY_ENHANCEMENT: {"numa_binding": "true"}}
_EXCLUSIVE = {MEMORY_ENHANCEMENT: {"numa_binding": "true", "numa_exclusive": "true"}}
_CASES = {
    "system": Case(
        QosLevel.SYSTEM, "burstable", 100, {CPU_ENHANCEMENT: {"cpuset_pool": "reserve"}}, cpus=_RESERVED
    ),
    "shared": Case(QosLevel.SHARED, "burstable", 1500),
    "batch": Case(QosLevel.RECLAIMED, "besteffort", 0, annotations={RECLAIMED_MILLICPU: "1000"}),
    "named": Case(QosLevel.SHARED, "burstable", 500, {CPU_ENHANCEMENT: {"cpuset_pool": "web"}}),
    # Of NUMA node 0 one CPU is reserved, and both are free.
    "exclusive": Case(QosLevel.DEDICATED, "guaranteed", 2000, _EXCLUSIVE),
    "dedicated": Case(QosLevel.DEDICATED, "guaranteed", 1000, _BOUND),
}
_TOO_LARGE = Case(QosLevel.DEDICATED, "guaranteed", 8000, _EXCLUSIVE)
_ONE_TOO_MANY = Case(QosLevel.SHARED, "burstable", 6000)


def the_node_has_two_sockets(_: Node) -> str:
    """Of two cores with two threads each, and a NUMA node with memory each."""
    topology = _topology()
    expect(
        "NUMA nodes",
        {node: format_cpu_list(own) for node, own in topology.by_numa.items()},
        {0: "0-3", 1: "4-7"},
    )
    expect("sockets", len({topology.sockets_of((node,)) for node in topology.by_numa}), 2)
    expect("threads of a core", topology.threads_per_core, 2)
    expect("NUMA nodes with memory", sorted(topology.memory_bytes), [0, 1])
    return f"{len(topology.all_cpus)} CPUs, memory {dict(topology.memory_bytes)}"


def _topology() -> Topology:
    sysfs, procfs = Path("/sys"), Path("/proc")
    return Topology.of(read_cpus(sysfs) or (), read_memory(sysfs, procfs))


def managers_of_the_kubelet_keep_pools_off(_: Node) -> str:
    """With a static CPU manager there are no pools, and the status says why."""
    write_managers(cpu="static", memory="None")
    CONFIG.write_text(configuration("proxy"))
    systemctl("start", SOCKET_UNIT)
    restart("proxy")
    shown = run(PROGRAM, "status", *PATIENTLY, code=None)
    seen = expect_text("status", shown, r"^.*CPU manager policy is static.*$").strip()
    write_managers(cpu="none", memory="None")
    wait_until(lambda: "static" not in run(PROGRAM, "status", *PATIENTLY, code=None), "pools", PATIENCE_S)
    return seen


def write_managers(*, cpu: str, memory: str) -> None:
    """The kubelet's state: the policies of its managers."""
    _KUBELET.mkdir(exist_ok=True)
    for name, policy in (("cpu", cpu), ("memory", memory)):
        text = json.dumps({"policyName": policy, "entries": {}, "machineState": {}, "checksum": 0})
        (_KUBELET / f"{name}_manager_state").write_text(text)


def starts_in(mode: Mode, _: Node) -> str:
    """The unit as it comes, with both policies, serves without a problem."""
    write_managers(cpu="none", memory="None")
    CONFIG.write_text(configuration(mode))
    run(PROGRAM, "check-config")
    systemctl("start", SOCKET_UNIT)
    took_s = restart(mode)
    run(PROGRAM, "status", *PATIENTLY)
    return f"serves after {took_s:.1f} s"


def configuration(mode: Mode, ramp_up_s: int = _RAMP_UP_S) -> str:
    """The daemon's, with both policies."""
    return f"""
[daemon]
mode = "{mode}"
[hooks]
budget_s = {_HELD_S}
[katalyst]
on_error = "reject"
[policies.cpuset]
enabled = false
[policies.katalyst-qos]
enabled = true
[policies.katalyst-pools]
enabled = true
[policies.katalyst-pools.options]
reserved_cpus = "{_RESERVED}"
enable_reclaim = true
reclaim_reserve = 1
ramp_up_s = {ramp_up_s}
"""


def comes(mode: Mode, title: str, node: Node) -> str:
    """Runs a pod: what its program has read before anything else, then all pods have what the state says."""
    case = _CASES[title]
    pod = node.pods[title] = run_case(mode, title, case, node)
    if case.level is QosLevel.DEDICATED:
        # Not later: what it has alone the others had left before it was created.
        _expect_alone(title, node)
    state = _wait_for_agreement(node)
    placed = state.pods[pod.spec.uid]
    expect("problem", placed.problem, "")
    first = _first_seen(pod, node)
    if case.level is QosLevel.DEDICATED:
        expect("first seen", first, (format_cpu_list(placed.cpus), format_cpu_list(placed.mems)))
        expect("CPUs alone", placed.cpus, placed.dedicated)
    elif not first[0]:
        raise UnexpectedError("its program has had no CPU at first")
    if case.cpus is not None:
        expect("CPUs", format_cpu_list(placed.cpus), case.cpus)
    if title == "exclusive":
        expect("NUMA nodes", len(placed.mems), 1)
        own = state.topology.cpus_of(placed.mems) - state.reserved
        expect("all CPUs of its NUMA node", placed.cpus, own)
    return f"{_text(placed)}; first seen {' / '.join(first)}; {_pools_text(state)}"


def run_case(mode: Mode, title: str, case: Case, node: Node, script: str = _SCRIPT) -> Pod:
    """Runs a pod, whose container has `/lab/out` for itself."""
    annotations = {QOS_LEVEL: case.level.value, **case.annotations}
    annotations |= {name: json.dumps(values) for name, values in case.enhancements.items()}
    spec = SlicePodSpec(title, case.kube_qos, {}, annotations, ())
    out = node.logs / spec.uid
    out.mkdir()
    container = ContainerSpec(
        resources=as_resources(case.requested),
        command=("/bin/sh", "-c", script),
        mounts={"/lab/out": str(out)},
    )
    spec = replace(spec, containers=(container,))
    make_slice(spec, case.requested)
    with CriClient(kubelets_endpoint(mode)) as client:
        sandbox, container_id = _run_until_ready(client, spec, str(out))
    cgroup = ROOT / spec.cgroup_parent.lstrip("/")
    return Pod(spec, sandbox, container_id, cgroup, cgroup / f"cri-containerd-{container_id}.scope")


def _run_until_ready(client: CriClient, spec: SlicePodSpec, logs: str) -> tuple[str, str]:
    """Runs a pod; tries again, as the kubelet does, while others have not left its CPUs yet."""

    def attempt() -> tuple[str, str] | None:
        try:
            return run_pod(client, spec, logs, handler="")
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return None

    return wait_until(attempt, "a pod that others make room for", PATIENCE_S)


def _first_seen(pod: Pod, node: Node) -> tuple[str, str]:
    seen = node.logs / pod.spec.uid / _FIRST
    wait_until(seen.exists, "what the program has seen", PATIENCE_S)
    found = dict(line.split("=", 1) for line in seen.read_text().splitlines())
    return found[_CPUS], found[_MEMS]


def _kernels(pod: Pod) -> tuple[str, str]:
    """CPUs and NUMA nodes of a container, which its processes can use."""
    cpus, mems = ((pod.container_cgroup / name).read_text().strip() for name in (_CPUS, _MEMS))
    return cpus, mems


def _expect_alone(title: str, node: Node) -> None:
    own = parse_cpu_list(_kernels(node.pods[title])[0])
    for other, pod in node.pods.items():
        shared = own & parse_cpu_list(_kernels(pod)[0]) if other != title else frozenset()
        if shared:
            raise UnexpectedError(f"{title} and {other} both have CPUs {format_cpu_list(shared)}")


def _state() -> PoolState:
    topology = _topology()
    file = pools_file(_STATE.parent, read_boot_id())
    found = file.load(lambda saved: saved_state(saved, topology))
    if found is None:
        raise UnexpectedError("no state of the pools is saved")
    return found


def _wait_for_agreement(node: Node) -> PoolState:
    """Waits until the kernel has what the saved state says, of these pods alone; returns the state."""
    state, differing = None, [""]

    def agree() -> bool:
        nonlocal state, differing
        state = _state()
        differing = list(_differences(state, node))
        return not differing

    try:
        wait_until(agree, "the values of the state", PATIENCE_S)
    except TimeoutError:
        raise UnexpectedError("; ".join(differing)) from None
    assert state is not None
    expect("invariants", problems(state), ())
    # Written and effective: an empty file would have those of the pod's slice.
    for pod in node.pods.values():
        written = (pod.container_cgroup / "cpuset.cpus").read_text().strip()
        expect(f"cpuset.cpus of {pod.spec.name}", written, _kernels(pod)[0])
    return state


def _differences(state: PoolState, node: Node) -> Iterator[str]:
    uids = {pod.spec.uid: title for title, pod in node.pods.items()}
    if state.pods.keys() != uids.keys():
        names = sorted(each.name for each in state.pods.values())
        yield f"the state has {names} instead of {sorted(node.pods)}"
        return
    for uid, placed in state.pods.items():
        pod = node.pods[uids[uid]]
        ids = [each.id for each in placed.containers.values()]
        if ids != [pod.container_id]:
            yield f"{uids[uid]}: the state has the containers {ids}"
        cpus, mems = _kernels(pod)
        wanted = format_cpu_list(placed.cpus)
        if cpus != wanted:
            yield f"{uids[uid]}: CPUs {cpus} instead of {wanted}"
        wanted = format_cpu_list(placed.mems)
        if wanted and mems != wanted:
            yield f"{uids[uid]}: NUMA nodes {mems} instead of {wanted}"


def _text(placed: PoolPod) -> str:
    return f"{placed.owner or 'ramping up'}: {format_cpu_list(placed.cpus)} / {format_cpu_list(placed.mems)}"


def _pools_text(state: PoolState) -> str:
    return ", ".join(f"{name} {format_cpu_list(cpus) or '-'}" for name, cpus in sorted(state.pools.items()))


def joins_its_pool(title: str, pool: str, node: Node) -> str:
    """When its ramp-up is over a pod has the CPUs of its pool, without any call."""
    uid = node.pods[title].spec.uid
    wait_until(lambda: _state().pods[uid].owner == pool, f"pool {pool}", PATIENCE_S)
    state = _wait_for_agreement(node)
    expect("CPUs", state.pods[uid].cpus, state.pools[pool])
    return _pools_text(state)


def is_refused(mode: Mode, case: Case, reason: str, node: Node) -> str:
    """A pod that does not fit fails with the reason, and all others have what they had."""
    before = _state()
    seen = {title: _kernels(pod) for title, pod in node.pods.items()}
    try:
        run_case(mode, "refused", case, node)
    except grpc.RpcError as error:
        text = f"{error.code().name}: {error.details()}"
    else:
        raise UnexpectedError("it was created")
    expect_text("the error", text, reason)
    state = _wait_for_agreement(node)
    expect("pools", state.pools, before.pools)
    expect("CPUs and NUMA nodes", {title: _kernels(pod) for title, pod in node.pods.items()}, seen)
    return text


def updates_keep_the_pool(mode: Mode, node: Node) -> str:
    """An update of a container does not take it out of its pool, and a dedicated one is not resized."""
    with CriClient(kubelets_endpoint(mode)) as client:
        moved = api_pb2.LinuxContainerResources(cpuset_cpus="0-7", cpuset_mems="0-1")
        update(client, node.pods["batch"].container_id, moved)
        update(client, node.pods["exclusive"].container_id, moved)
    return _pools_text(_wait_for_agreement(node))


def a_killed_daemon_goes_on(mode: Mode, node: Node) -> str:
    """`kill -9`, then a restart: the same pools, the same values in the kernel at every moment."""
    before = _wait_for_agreement(node)
    with _unchanged(node):
        killed = main_pid()
        os.kill(killed, signal.SIGKILL)
        wait_for_another_process(killed)
        wait_for_daemon(mode)
        after_kill = _wait_for_agreement(node)
        took_s = restart(mode)
        after = _wait_for_agreement(node)
    for state in (after_kill, after):
        expect("pools", state.pools, before.pools)
        expect("pods", _places(state), _places(before))
    return f"restarted in {took_s:.1f} s; {_pools_text(after)}"


@contextmanager
def _unchanged(node: Node) -> Iterator[None]:
    seen = {title: _kernels(pod) for title, pod in node.pods.items()}
    yield
    expect("CPUs and NUMA nodes", {title: _kernels(pod) for title, pod in node.pods.items()}, seen)


def _places(state: PoolState) -> dict[str, tuple[str, frozenset[int], frozenset[int]]]:
    return {uid: (pod.owner, pod.cpus, pod.mems) for uid, pod in state.pods.items()}


def pods_go_while_it_is_down(mode: Mode, title: str, node: Node) -> str:
    """A pod that has gone while no daemon ran is in no pool after the start; others have its CPUs."""
    systemctl("stop", SOCKET_UNIT, SERVICE)
    with CriClient(CONTAINERD) as client:
        remove_pod(client, node.pods.pop(title).sandbox_id)
    systemctl("start", SOCKET_UNIT)
    restart(mode)
    return _pools_text(_wait_for_agreement(node))


def is_adopted(mode: Mode, title: str, node: Node) -> str:
    """Without the saved state the pods that run keep what they have; one that is dedicated its CPUs."""
    before = _wait_for_agreement(node)
    own = before.pods[node.pods[title].spec.uid]
    systemctl("stop", SOCKET_UNIT, SERVICE)
    _STATE.unlink()
    systemctl("start", SOCKET_UNIT)
    restart(mode)
    wait_until(_STATE.exists, "the state", PATIENCE_S)
    state = _wait_for_agreement(node)
    expect("CPUs", state.pods[own.uid].cpus, own.cpus)
    expect("NUMA nodes", state.pods[own.uid].mems, own.mems)
    return f"{_text(state.pods[own.uid])}; {_pools_text(state)}"


def goes(mode: Mode, title: str, node: Node) -> str:
    """Removes a pod: the others have its CPUs at once."""
    with CriClient(kubelets_endpoint(mode)) as client:
        remove_pod(client, node.pods.pop(title).sandbox_id)
    state = _wait_for_agreement(node)
    return _pools_text(state)


def is_explained(node: Node) -> str:
    """`explain` names level and pool; `status` has no problem."""
    shown = run(PROGRAM, "explain", *PATIENTLY, f"lab/{node.pods['exclusive'].spec.name}")
    expect_text("explain", shown, "katalyst-pools")
    text = expect_text("explain", shown, r"dedicated_cores.*")
    run(PROGRAM, "status", *PATIENTLY)
    return text


def all_go(mode: Mode, node: Node) -> str:
    """The last ones go: the state has no pod, and all CPUs but the reserved one are to be reclaimed."""
    for title in list(node.pods):
        with CriClient(kubelets_endpoint(mode)) as client:
            remove_pod(client, node.pods.pop(title).sandbox_id)
    state = _wait_for_agreement(node)
    reclaim = state.topology.all_cpus - state.reserved
    expect("reclaim", format_cpu_list(state.pools["reclaim"]), format_cpu_list(reclaim))
    return _pools_text(state)


def _checks(mode: Mode) -> Iterator[Check]:
    named: list[tuple[str, Callable[[Node], str]]] = [
        ("the unit as it comes serves, with pools", partial(starts_in, mode)),
        *((f"a pod comes: {title}", partial(comes, mode, title)) for title in ("system", "shared", "batch")),
        ("shared joins the pool share", partial(joins_its_pool, "shared", "share")),
        ("a pod comes: exclusive", partial(comes, mode, "exclusive")),
        ("a dedicated pod that does not fit", partial(is_refused, mode, _TOO_LARGE, "katalyst-pools: ")),
        ("a shared pod that does not fit", partial(is_refused, mode, _ONE_TOO_MANY, "katalyst-pools: .*CPU")),
        ("UpdateContainerResources keeps what pools own", partial(updates_keep_the_pool, mode)),
        ("explain and status", is_explained),
        ("kill -9 and restart", partial(a_killed_daemon_goes_on, mode)),
        ("a pod comes: named", partial(comes, mode, "named")),
        ("named joins the pool web", partial(joins_its_pool, "named", "web")),
        ("a pod goes: exclusive", partial(goes, mode, "exclusive")),
        ("a pod comes: dedicated", partial(comes, mode, "dedicated")),
        ("without the saved state pods are adopted", partial(is_adopted, mode, "dedicated")),
        ("a pod goes while the daemon is down", partial(pods_go_while_it_is_down, mode, "shared")),
        ("a pod goes: dedicated", partial(goes, mode, "dedicated")),
        ("all pods go", partial(all_go, mode)),
        ("nothing is left of them", _nothing_is_left),
    ]
    return (Check(f"pools, mode {mode}: {name}", function) for name, function in named)


def _nothing_is_left(node: Node) -> str:
    """Also of checks that have failed, for the next mode."""
    left = list(node.pods)
    remove_all(node)
    expect("pods", left, [])
    return "no pods"


CHECKS = (
    Check("pools: two sockets, two NUMA nodes, SMT", the_node_has_two_sockets),
    Check("pools: off beside a static CPU manager", managers_of_the_kubelet_keep_pools_off),
    *_checks("proxy"),
    *_checks("nri"),
)
"""After `RUNTIME` of the modes: containerd 2.2, for NRI."""
