"""Katalyst's advisor and two of its evictions beside the daemon, on two sockets and cgroup version 2."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
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
    expect_text,
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

_LOAD = "katalyst-cpu-load"
_POOL = 2
"""CPUs of the pool `share`: each of its pods requests one."""
_MORE = 30
"""Busy processes beside one for each CPU: a load far above the threshold, which is far above one for each."""
_UPPER, _LOWER, _RING, _MET = 4.0, 0.25, 5, 4
_BUSY = "while :; do :; done &"
_CROWD = f"{_BUSY * _POOL} until [ -e /lab/out/high ]; do sleep 1; done; {_BUSY * _MORE} wait"
_OF_SHARE = pools.Case(QosLevel.SHARED, "burstable", 1_000)
_ON_LOAD = {
    "calm": (_OF_SHARE, "exec sleep 1000000"),
    "batch": _CASES["batch"],
    "crowd": (_OF_SHARE, _CROWD),
}
_LOAD_PLUGIN = f"""
[plugins.{_LOAD}]
mode = "enforce"
[plugins.{_LOAD}.options]
upper_ratio = {_UPPER}
lower_ratio = {_LOWER}
met_percent = {100 * _MET / _RING}
ring_size = {_RING}
sample_seconds = 5.0
"""
_SOFT = (
    rf"load above {_LOWER:g} times its CPUs in {_RING} of {_RING} samples, last (\S+) times: "
    "soft threshold, nothing is evicted"
)
_HARD = (
    rf"^pool share: load above {_UPPER:g} times its CPUs in {_MET} of {_RING} samples, last (\S+) times; "
    r"\S+ too much, this pod \S+$"
)


def it_follows_a_service_and_evicts(node: Node) -> str:
    """The pool has CPUs for busy threads and gives them back; what is above its memory request is stopped."""
    with _manager(node, _PLUGINS):
        _run(_CASES, node)
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


def a_pod_of_an_overloaded_pool_goes(node: Node) -> str:
    """While each CPU of the pool has one busy process nothing is evicted; the pod with many is, when enough
    of the last loads are above the threshold, and it alone."""
    with _manager(node, _LOAD_PLUGIN):
        _run(_ON_LOAD, node)
        crowd = node.pods["crowd"]
        _wait_for_size(crowd, lambda size: size == _POOL)
        below = _wait_for_words(_LOAD, _SOFT).group(1)
        expect("evictions below the threshold", _evictions(_LOAD), [])
        others = {title: pod.process() for title, pod in node.pods.items()}
        (node.logs / crowd.spec.uid / "high").touch()
        _wait_for_words(_LOAD, f"load above {_UPPER:g} times")
        _wait_for_the_end(node.pods.pop("crowd"))
        del others["crowd"]
        # The pool has one CPU less now.
        after = _wait_for_words(_LOAD, rf"share: load \S+ of {_POOL - 1} CPUs").group()
        evictions = [(each.pod, each.after) for each in _evictions(_LOAD)]
        expect("evictions", evictions, [(crowd.spec.name, "evicted")])
        last = expect_text("reason", _evictions(_LOAD)[0].reason, _HARD)
        expect("the others", {title: pod.process() for title, pod in node.pods.items()}, others)
    seen = f"none at {below} times the CPUs, then, at {last} times in {_MET} of {_RING} samples, crowd"
    return f"{seen}: exit code 137; {after}"


def _run(cases: Mapping[str, tuple[pools.Case, str]], node: Node) -> None:
    for title, (case, script) in cases.items():
        node.pods[title] = pools.run_case(_MODE, title, case, node, script)


def _wait_for_words(plugin: str, pattern: str) -> re.Match[str]:
    """Waits until the status says so of a plugin's last look."""
    said = ""

    def found() -> re.Match[str] | None:
        nonlocal said
        reported = daemon_status().qos_manager.report.plugins
        said = next((each.problem or each.explanation for each in reported if each.name == plugin), "")
        return re.search(pattern, said)

    try:
        return wait_until(found, "words", 2 * PATIENCE_S, pace_s=1.0)
    except TimeoutError:
        raise UnexpectedError(f"{plugin}: nothing like {pattern!r} in {said!r}") from None


def _evictions(plugin: str) -> list[own_pb2.AuditEntry]:
    """What the audit has of the evictions of a plugin."""
    with CriClient(ENDPOINT) as client:
        api = own_grpc.RuntimeProxyStub(client.channel)
        answers = api.WatchAudit(own_pb2.WatchAuditRequest(), timeout=PATIENCE_S)
        entries = [each for answer in answers for each in answer.entries if each.field == "eviction"]
    return [each for each in entries if each.policy == f"plugin:{plugin}"]


@contextmanager
def _manager(node: Node, plugins: str) -> Iterator[None]:
    """The daemon with pools, and the unit of the manager as it comes; without pods and manager afterwards."""
    pools.write_managers(cpu="none", memory="None")
    CONFIG.write_text(pools.configuration(_MODE, ramp_up_s=0) + plugins)
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


CHECKS = (
    Check("advisor: the pool follows a service; one pod is evicted", it_follows_a_service_and_evicts),
    Check("advisor: a pod of an overloaded pool is evicted", a_pod_of_an_overloaded_pool_goes),
)
"""After those of the pools."""
