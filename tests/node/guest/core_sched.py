"""Core scheduling on a kernel that has it: cookies of tasks, with strategies, kills and restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runtimeproxy.cgroups.core_scheduling import FIELD, Command, CoreGroups, Scope, prctl
from runtimeproxy.cgroups.writer import CgroupWriter
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec
from tests.node.guest.cgroup_v2 import make_pod_cgroup
from tests.node.guest.kubelet import run_pod
from tests.node.guest.machine import (
    CONFIG,
    ENDPOINT,
    PATIENCE_S,
    PATIENTLY,
    PROGRAM,
    SERVICE,
    SHARED_UNITS,
    UnexpectedError,
    drop_in,
    expect,
    expect_text,
    main_pid,
    run,
    systemctl,
    wait_for_another_process,
)
from tests.node.guest.node import Check, Node, Pod
from tests.node.guest.strategies import objects

_DROP_IN = SHARED_UNITS / f"{SERVICE}.d" / "70-core-sched.conf"
_CONFIG = "[policies.core-sched]\nenabled = true\n"
_GROUP, _POLICY = "koordinator.sh/core-sched-group-id", "koordinator.sh/core-sched-policy"
_FORKS = ("/bin/sh", "-c", "while true; do (sleep 1; true) & sleep 0.1; done")
"""A process and children that come and go."""


@dataclass(frozen=True)
class Case:
    """A pod, and the pods with which it has one cookie; None: it has none."""

    qos: str
    kube_qos: KubeQos
    labels: Mapping[str, str]
    group: str | None


_CASES = {
    "web-1": Case("LS", "burstable", {_GROUP: "web"}, "web"),
    "web-2": Case("LS", "burstable", {_GROUP: "web"}, "web"),
    "alone": Case("LS", "burstable", {_GROUP: "web", _POLICY: "exclusive"}, "alone"),
    "batch": Case("BE", "besteffort", {_GROUP: "web"}, "batch"),
    "none": Case("LS", "burstable", {_POLICY: "none"}, None),
    "system": Case("SYSTEM", "guaranteed", {}, None),
}


def _strategy(*, ls: bool = True, policy: str = "coreSched") -> dict[str, object]:
    cluster = {
        "policies": {"cpuPolicy": policy},
        "lsClass": {"cpuQOS": {"enable": ls}},
        "beClass": {"cpuQOS": {"enable": True, "schedIdle": 1}},
    }
    return {"resource-qos-config": {"clusterStrategy": cluster}}


def _tasks(pod: Pod) -> list[int]:
    return [int(each) for each in (pod.container_cgroup / "cgroup.threads").read_text().split()]


def _cookies(pod: Pod) -> set[int]:
    found = set()
    for task in _tasks(pod):
        try:
            found.add(prctl(Command.GET, task, Scope.THREAD))
        except ProcessLookupError:
            continue
    return found


def _wait_for_cookies(node: Node, groups: Mapping[str, str | None]) -> dict[str, int]:
    """Waits until all tasks of each pod have the cookie of its group; returns the cookies by group."""
    seen: dict[str, set[int]] = {}

    def are_there() -> bool:
        seen.update({name: _cookies(node.pods[name]) for name in groups})
        by_group: dict[str | None, set[int]] = {}
        for name, group in groups.items():
            by_group.setdefault(group, set()).update(seen[name])
        cookies = [min(each) for group, each in by_group.items() if group is not None]
        return (
            all(len(each) == 1 for each in by_group.values())
            and by_group.get(None, {0}) == {0}
            and 0 not in cookies
            and len(set(cookies)) == len(cookies)
        )

    try:
        wait_until(are_there, "cookies", PATIENCE_S)
    except TimeoutError:
        raise UnexpectedError(f"cookies are {seen} for groups {dict(groups)}") from None
    return {group: min(seen[name]) for name, group in groups.items() if group is not None}


def the_kernel_has_core_scheduling(_: Node) -> str:
    """The call answers; nothing has a cookie."""
    kernel = os.uname().release
    expect("the cookie of this process", prctl(Command.GET, 0, Scope.THREAD), 0)
    siblings = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").read_text().strip()
    return f"{kernel}, threads of one core {siblings}"


_THREADS = """
import os, threading, time
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
os.fork()
threading.Event().wait()
"""


def the_call_gives_groups_their_cookies(_: Node) -> str:
    """Without the daemon: threads, forks, another process after a restart, and the way back."""
    folders = {name: make_pod_cgroup(f"/cookies/{name}", {}) for name in ("a", "b", "c")}
    for folder in folders.values():
        child = subprocess.Popen((sys.executable, "-c", _THREADS))
        (folder / "cgroup.procs").write_text(str(child.pid))
    wait_until(lambda: all(len(_threads(each)) >= 5 for each in folders.values()), "threads", PATIENCE_S)

    def write(writer: CgroupWriter, groups: Mapping[str, str]) -> None:
        for name, group in groups.items():
            (result,) = writer.write(f"/cookies/{name}", {FIELD: group})
            expect("error", result.error, "")

    def cookies() -> list[set[int]]:
        return [
            {prctl(Command.GET, task, Scope.THREAD) for task in _threads(each)} for each in folders.values()
        ]

    write(CgroupWriter(), {"a": "group:web", "b": "group:web", "c": "pod:c"})
    before = cookies()
    a, b, c = before
    expect("cookies", (len(a), a == b, len(c), a == c, 0 in a | c), (1, True, 1, False, False))
    expect("own", prctl(Command.GET, 0, Scope.THREAD), 0)
    groups = CoreGroups()
    writer = CgroupWriter(groups=groups)
    booked = {"group:web": ("a", "b"), "pod:c": ("c",)}
    groups.booked = lambda _: {
        group: [writer.look(("cookies", name), (FIELD,))[FIELD].text for name in names]
        for group, names in booked.items()
    }
    write(writer, {"a": "group:web", "b": "group:web", "c": "pod:c"})
    expect("cookies after a restart", cookies(), before)
    write(writer, dict.fromkeys(folders, "none"))
    expect("cookies in the end", cookies(), [{0}] * 3)
    return f"{len(a | c)} cookies of {sum(len(_threads(each)) for each in folders.values())} threads"


def _threads(folder: Path) -> list[int]:
    return [int(each) for each in (folder / "cgroup.threads").read_text().split()]


def without_the_drop_in_it_says_so(node: Node) -> str:
    """Pods of other groups run, and the status names the capability that is missing."""
    CONFIG.write_text(_CONFIG)
    systemctl("reload", SERVICE)
    objects().strategies(_strategy())
    with CriClient(ENDPOINT) as client:
        for name, case in _CASES.items():
            labels = {"koordinator.sh/qosClass": case.qos, **case.labels}
            spec = PodSpec(name, case.kube_qos, labels, {}, (ContainerSpec(command=_FORKS),))
            logs = node.logs / spec.uid
            logs.mkdir()
            weight = {"cpu.weight": "1" if case.kube_qos == "besteffort" else "39"}
            cgroup = make_pod_cgroup(spec.cgroup_parent, weight)
            sandbox, container = run_pod(client, spec, str(logs), "runc")
            node.pods[name] = Pod(spec, sandbox, container, cgroup, cgroup / container)

    def status() -> str:
        text = run(PROGRAM, "status", *PATIENTLY, code=None)
        return text if "CAP_SYS_PTRACE" in text else ""

    text = wait_until(status, "CAP_SYS_PTRACE in the status", PATIENCE_S)
    return expect_text("status", text, r"^.*CAP_SYS_PTRACE.*$").strip()


def groups_get_cookies(node: Node) -> str:
    """With the drop-in: one cookie for each group, for all tasks; none for others, and for the daemon."""
    drop_in(SERVICE, _DROP_IN.name).write_text(_DROP_IN.read_text())
    systemctl("daemon-reload")
    systemctl("restart", SERVICE)
    cookies = _wait_for_cookies(node, {name: case.group for name, case in _CASES.items()})
    _expect_none_of_the_daemon()
    tasks = sum(len(_tasks(node.pods[name])) for name in _CASES)
    return f"{len(cookies)} cookies, {tasks} tasks"


def _expect_none_of_the_daemon() -> None:
    threads = [int(each.name) for each in Path(f"/proc/{main_pid()}/task").iterdir()]
    found = set()
    for thread in threads:
        try:
            found.add(prctl(Command.GET, thread, Scope.THREAD))
        except ProcessLookupError:
            continue
    expect("cookies of the daemon's threads", found, {0})


def a_kill_keeps_cookies(node: Node) -> str:
    """`kill -9` of the daemon, and `systemctl restart`: no task changes its cookie, and new ones get it."""
    groups = {name: case.group for name, case in _CASES.items()}
    before = _wait_for_cookies(node, groups)
    for _ in range(2):
        process = main_pid()
        os.kill(process, signal.SIGKILL)
        wait_for_another_process(process)
        expect("cookies", _wait_for_cookies(node, groups), before)
    systemctl("restart", SERVICE)
    case = _CASES["web-1"]
    spec = PodSpec("web-3", case.kube_qos, {"koordinator.sh/qosClass": case.qos, **case.labels})
    logs = node.logs / spec.uid
    logs.mkdir()
    cgroup = make_pod_cgroup(spec.cgroup_parent, {})
    with CriClient(ENDPOINT) as client:
        sandbox, container = run_pod(client, spec, str(logs), "runc")
    node.pods["web-3"] = Pod(spec, sandbox, container, cgroup, cgroup / container)
    expect("cookies", _wait_for_cookies(node, {**groups, "web-3": "web"}), before)
    return f"{len(before)} cookies as before"


def a_best_effort_pod_is_idle(node: Node) -> str:
    """`schedIdle` of the class: `cpu.idle` of the pod, and never of its container or class."""
    pod = node.pods["batch"]
    wait_until(lambda: (pod.cgroup / "cpu.idle").read_text() == "1\n", "cpu.idle of the pod", PATIENCE_S)
    others = (pod.container_cgroup, pod.cgroup.parent, node.pods["web-1"].cgroup)
    expect("cpu.idle of others", {(each / "cpu.idle").read_text() for each in others}, {"0\n"})
    return "cpu.idle=1"


def a_class_is_switched_off(node: Node) -> str:
    """Its pods have no cookie any more, others keep theirs."""
    objects().strategies(_strategy(ls=False))
    groups: dict[str, str | None] = dict.fromkeys(("web-1", "web-2", "web-3", "alone", "none", "system"))
    cookies = _wait_for_cookies(node, {**groups, "batch": "batch"})
    objects().strategies(_strategy())
    again = _wait_for_cookies(node, {name: case.group for name, case in _CASES.items()})
    expect("the cookie of the BE pod", again["batch"], cookies["batch"])
    return "and on again"


def it_is_given_back(node: Node) -> str:
    """Another CPU policy, which this kernel does not have: no task has a cookie, and no pod is idle."""
    objects().strategies(_strategy(policy="groupIdentity"))
    _wait_for_cookies(node, dict.fromkeys((*_CASES, "web-3")))
    pod = node.pods["batch"]
    wait_until(lambda: (pod.cgroup / "cpu.idle").read_text() == "0\n", "cpu.idle of the pod", PATIENCE_S)
    return "0 everywhere"


CHECKS = (
    Check("the kernel has core scheduling", the_kernel_has_core_scheduling),
    Check("the call gives groups their cookies", the_call_gives_groups_their_cookies),
    Check("core-sched without its drop-in: the status says why", without_the_drop_in_it_says_so),
    Check("core-sched: one cookie a group, for all tasks", groups_get_cookies),
    Check("core-sched: a best-effort pod is idle", a_best_effort_pod_is_idle),
    Check("core-sched: kill -9 and restart keep the cookies", a_kill_keeps_cookies),
    Check("core-sched: a class is switched off and on", a_class_is_switched_off),
    Check("core-sched: another CPU policy gives all back", it_is_given_back),
)
