"""Katalyst's advisor and one of its evictions beside the daemon, on two sockets and cgroup version 2."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1 import api_pb2 as own_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc as own_grpc
from runtimeproxy.documents.reading import quantity_of
from runtimeproxy.katalyst.levels import AGGREGATED_REQUESTS
from runtimeproxy.katalyst.names import RECLAIMED_MILLICPU, QosLevel
from runtimeproxy.units import parse_cpu_list
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.node.guest import pools
from tests.node.guest.cgroup_v2 import processes
from tests.node.guest.kubelet import remove_pod
from tests.node.guest.machine import (
    CONFIG,
    CONTAINERD,
    ENDPOINT,
    MANAGER,
    PATIENCE_S,
    SHARED_UNITS,
    SOCKET_UNIT,
    UNITS,
    UnexpectedError,
    expect,
    run,
    systemctl,
)
from tests.node.guest.modes import Mode, daemon_status, remove_all, restart
from tests.node.guest.node import Check, Node, Pod

_MODE: Mode = "proxy"
_THREADS = 4
_REQUESTED = 5
"""CPUs: what so many busy threads need with the margin."""
_USABLE = 7
"""One of 8 is reserved."""
_STEADY_REPORTS = 4
"""Of the manager, one each 5 s, in which the load is constant."""
_OLD_REPORTS = 2
"""The last one before the size was seen, and one that may have been made at the same time."""
_WORKER = "while :; do if [ -e /lab/out/high ]; then :; else sleep 1; fi; done &"
_SERVICE = f"{_WORKER * _THREADS} wait"
_HOG = "dd if=/dev/zero bs=48M count=1 | sleep 1000000"
"""What it has read waits for somebody to take it."""
_CASES = {
    "web": (pools.Case(QosLevel.SHARED, "guaranteed", 1_000 * _REQUESTED), _SERVICE),
    "batch": (pools.Case(QosLevel.RECLAIMED, "besteffort", 0), "exec sleep 1000000"),
    "hog": (
        pools.Case(
            QosLevel.RECLAIMED,
            "besteffort",
            0,
            annotations={AGGREGATED_REQUESTS: json.dumps({"memory": "16Mi"})},
        ),
        _HOG,
    ),
}
_PLUGINS = """
[plugins.katalyst-advisor]
mode = "enforce"
[plugins.katalyst-advisor.options]
window_s = 5.0
hold_s = 10.0
fall_percent = 100
[owners.katalyst-advisor]
allow = ["pool.required_cpus set pool", "pool.headroom_millicpu set pool", "pool.headroom_bytes set pool"]
[plugins.katalyst-reporter]
mode = "enforce"
[plugins.katalyst-rss-overuse]
mode = "enforce"
"""


def it_follows_a_service_and_evicts(node: Node) -> str:
    """The pool has CPUs for busy threads and gives them back; what is above its memory request is stopped."""
    with _manager(node):
        for title, (case, script) in _CASES.items():
            node.pods[title] = pools.run_case(_MODE, title, case, node, script)
        _wait_for_the_end(node.pods.pop("hog"))
        web, batch = node.pods["web"], node.pods["batch"]
        high = node.logs / web.spec.uid / "high"
        low = _wait_for_size(web, lambda size: size <= 2)
        idle = _headroom()
        high.touch()
        _wait_for_size(web, lambda size: size == _REQUESTED)
        sizes, most = _steady(web)
        expect("sizes at a constant load", sizes, {_REQUESTED})
        if most > 1_000 * (_USABLE - _REQUESTED):
            raise UnexpectedError(f"a headroom of {most}m beside {_THREADS} busy threads; {idle}m before")
        high.unlink()
        last = _wait_for_size(web, lambda size: size <= 2)
        _wait_for_size(batch, lambda size: size == _USABLE - last)
    seen = f"share {low}, {_REQUESTED}, {last} CPUs; headroom {idle}m, at most {most}m under load"
    return f"hog: exit code 137; {seen}"


@contextmanager
def _manager(node: Node) -> Iterator[None]:
    """The daemon with pools, and the unit of the manager as it comes; without pods and manager afterwards."""
    pools.write_managers(cpu="none", memory="None")
    CONFIG.write_text(pools.configuration(_MODE, ramp_up_s=0) + _PLUGINS)
    run("install", "-m", "0644", SHARED_UNITS / MANAGER, UNITS)
    systemctl("daemon-reload")
    systemctl("start", SOCKET_UNIT)
    restart(_MODE)
    systemctl("start", MANAGER)
    try:
        yield
    finally:
        remove_all(node)
        systemctl("stop", MANAGER)
        (UNITS / MANAGER).unlink()
        systemctl("daemon-reload")


def _wait_for_the_end(pod: Pod) -> None:
    """Waits until it was evicted, and removes it."""
    request = api_pb2.ContainerStatusRequest(container_id=pod.container_id)
    with CriClient(CONTAINERD) as client:

        def exit_code() -> int | None:
            status = client.runtime.ContainerStatus(request, timeout=PATIENCE_S).status
            return status.exit_code if status.state == api_pb2.CONTAINER_EXITED else None

        expect("exit code", wait_until(exit_code, "the end of the pod", PATIENCE_S), 137)
        left = processes(pod.container_cgroup) if pod.container_cgroup.exists() else []
        expect("its processes", left, [])
        remove_pod(client, pod.sandbox_id)


def _size(pod: Pod) -> int:
    """The CPUs that its processes can use, by the kernel."""
    return len(parse_cpu_list((pod.container_cgroup / "cpuset.cpus.effective").read_text().strip()))


def _wait_for_size(pod: Pod, is_wanted: Callable[[int], bool]) -> int:
    """Waits until it has so many CPUs, and returns how many."""

    def wanted() -> int:
        size = _size(pod)
        return size if is_wanted(size) else 0

    try:
        return wait_until(wanted, "CPUs", PATIENCE_S)
    except TimeoutError:
        about = daemon_status().qos_manager.report.plugins
        raise UnexpectedError(f"{pod.spec.name} has {_size(pod)} CPUs: {about}") from None


def _steady(pod: Pod) -> tuple[set[int], int]:
    """How many CPUs it has during some reports of the manager, and the largest headroom then."""
    sizes, headrooms, heard = set[int](), set[int](), set[int]()

    def have_come() -> bool:
        sizes.add(_size(pod))
        headroom = _headroom()
        heard.add(daemon_status().qos_manager.last_heard.ToNanoseconds())
        if len(heard) > _OLD_REPORTS:
            headrooms.add(headroom)
        return len(heard) > _STEADY_REPORTS

    wait_until(have_come, "reports of the manager", PATIENCE_S)
    return sizes, max(headrooms)


def _headroom() -> int:
    """What the CustomNodeResource says of `reclaimed_cores`, in millicores."""

    def reported() -> str:
        with CriClient(ENDPOINT) as client:
            api = own_grpc.RuntimeProxyStub(client.channel)
            answer = api.GetCustomNodeResource(own_pb2.GetCustomNodeResourceRequest(), timeout=PATIENCE_S)
        document = json.loads(answer.report.json or "{}")
        amounts = document.get("status", {}).get("resources", {}).get("allocatable", {})
        return str(amounts.get(RECLAIMED_MILLICPU, ""))

    return quantity_of(RECLAIMED_MILLICPU, wait_until(reported, "a headroom", PATIENCE_S))


CHECKS = (Check("advisor: the pool follows a service; one pod is evicted", it_follows_a_service_and_evicts),)
"""After those of the pools."""
