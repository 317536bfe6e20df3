"""Reload, restart, hang, sudden death: what an administrator and a bad day do to the service."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cri_api.runtime.v1 import api_pb2
from tests.e2e.values import HALF_A_CORE
from tests.lab.cri_client import CriClient, outcome_of
from tests.lab.deadline import wait_until
from tests.node.guest.kubelet import update
from tests.node.guest.load import Load
from tests.node.guest.machine import (
    CONFIG,
    ENDPOINT,
    PATIENCE_S,
    PROGRAM,
    SERVICE,
    Journal,
    UnexpectedError,
    expect,
    main_pid,
    make_time,
    run,
    shown,
    systemctl,
    wait_for_another_process,
    wait_for_status,
)
from tests.node.guest.node import Check, Node
from tests.node.guest.pods import BATCH, MOVED_TO, as_v2

RESTARTS = 3
_WATCHDOG_S = 20
_LOADED = r"^\d+ policies\b"
_GOOD = '[log]\nlevel = "debug"\n'
_DRY_RUN = '[policies.cpuset]\nmode = "dry-run"\n'
_BROKEN = '[hooks]\nbudget_s = "soon"\n'


def reload_takes_a_good_configuration(_: Node) -> str:
    """The new one counts, and the process is the same."""
    before = main_pid()
    CONFIG.write_text(_GOOD)
    journal = Journal()
    systemctl("reload", SERVICE)
    journal.wait_for("configuration reloaded")
    expect("MainPID", main_pid(), before)
    return wait_for_status(_LOADED)


def reload_refuses_a_broken_configuration(_: Node) -> str:
    """`systemctl reload` fails and says why; told by a signal, the daemon keeps the old one."""
    before = main_pid()
    CONFIG.write_text(_BROKEN)
    journal = Journal()
    try:
        systemctl("reload", SERVICE, code=1)
        reason = journal.wait_for("hooks.budget_s: must be a valid number")
        systemctl("kill", "--kill-who=main", "--signal=HUP", SERVICE)
        journal.wait_for("configuration not changed: .*hooks.budget_s")
    finally:
        CONFIG.write_text("")
    expect("ActiveState", shown("ActiveState"), "active")
    expect("MainPID", main_pid(), before)
    _call()
    wait_for_status(_LOADED)
    return reason


def a_policy_in_dry_run_gives_cpus_back(node: Node) -> str:
    """The cpuset policy in dry-run: its CPUs of running containers go back; enforced, they are there again.

    The kernel takes no empty list for a container with processes: what goes back is the list of its pod.
    """
    pods = {title: node.pods[title] for title in ("LSE", "LSR")}
    before = {title: pod.values() for title, pod in pods.items()}
    all_cpus = f"0-{len(os.sched_getaffinity(0)) - 1}"
    try:
        CONFIG.write_text(_DRY_RUN)
        systemctl("reload", SERVICE)
        wait_until(lambda: pods["LSE"].values()[0].cpuset_cpus == all_cpus, f"CPUs {all_cpus}", PATIENCE_S)
        wait_until(lambda: pods["LSR"].values()[0].cpuset_cpus == MOVED_TO, "CPUs of the request", PATIENCE_S)
    finally:
        CONFIG.write_text("")
    systemctl("reload", SERVICE)
    wait_until(lambda: {title: pod.values() for title, pod in pods.items()} == before, "all", PATIENCE_S)
    return f"LSE: {all_cpus}, LSR: {MOVED_TO}, and back"


def restarts_lose_no_call(node: Node) -> str:
    """`systemctl restart` under load: systemd keeps the socket, clients wait in its backlog."""
    inode = ENDPOINT.stat().st_ino
    processes = {main_pid()}
    with Load() as load:
        for _ in range(RESTARTS):
            systemctl("restart", SERVICE)
            load.wait_for_calls()
            processes.add(main_pid())
    expect("processes", len(processes), RESTARTS + 1)
    expect("inode of the socket", ENDPOINT.stat().st_ino, inode)
    wait_for_status(_records_of(node))
    return f"{RESTARTS} restarts: {load.no_failures()}"


def upgrades_lose_no_call(node: Node) -> str:
    """`koord-runtime-proxy upgrade` under load: another process serves, and systemd watches that one."""
    before, starts = main_pid(), shown("NRestarts")
    inode, invocation = ENDPOINT.stat().st_ino, shown("InvocationID")
    with Load() as load:
        run(PROGRAM, "upgrade")
        wait_until(lambda: main_pid() not in (0, before), "another MAINPID", PATIENCE_S)
        wait_until(lambda: not Path(f"/proc/{before}").exists(), "the end of the old process", PATIENCE_S)
        load.wait_for_calls()
    expect("ActiveState", shown("ActiveState"), "active")
    expect("NRestarts", shown("NRestarts"), starts)
    expect("invocation", shown("InvocationID"), invocation)
    expect("inode of the socket", ENDPOINT.stat().st_ino, inode)
    wait_for_status(_records_of(node))
    return f"{load.no_failures()}; MainPID {before} -> {main_pid()}"


def a_hung_daemon_comes_back(node: Node) -> str:
    """SIGSTOP: the watchdog kills the daemon, systemd starts it again."""
    make_time(WatchdogSec=f"{_WATCHDOG_S}s")
    systemctl("restart", SERVICE)
    try:
        hung, journal = main_pid(), Journal()
        os.kill(hung, signal.SIGSTOP)
        line = journal.wait_for(r"Watchdog timeout \(limit")
        wait_for_another_process(hung)
    finally:
        make_time()
    _call()
    wait_for_status(_records_of(node))
    return f"{line}; NRestarts={shown('NRestarts')}"


def a_killed_daemon_comes_back(node: Node) -> str:
    """`kill -9`: Restart= brings it back; a client that comes meanwhile waits."""
    killed = main_pid()
    os.kill(killed, signal.SIGKILL)
    _call()
    wait_for_another_process(killed)
    return wait_for_status(_records_of(node))


def containerd_restarts(node: Node) -> str:
    """The runtime away for a moment: calls wait for it or have its own answer; records stay."""
    systemctl("restart", "containerd.service")
    with CriClient(ENDPOINT) as client:

        def is_served() -> bool:
            request = api_pb2.VersionRequest()
            code, text = outcome_of(lambda: client.runtime.Version(request, timeout=PATIENCE_S))
            # containerd's own answer while its CRI service starts.
            if code != "OK" and text != "server is not initialized yet":
                raise UnexpectedError(f"{code}: {text}")
            return code == "OK"

        wait_until(is_served, "containerd serves again", PATIENCE_S)
    return wait_for_status(_records_of(node))


def records_outlive_all_of_it(node: Node) -> str:
    """The kubelet writes the shares of a best-effort pod: the policy still knows what that pod is."""
    pod = node.pods[BATCH.title]
    with CriClient(ENDPOINT) as client:
        shares = api_pb2.LinuxContainerResources(cpu_period=100000, cpu_shares=2)
        update(client, pod.container_id, shares)
    expect("BE", pod.values(), (as_v2(HALF_A_CORE), as_v2(HALF_A_CORE)))
    return f"container: {pod.values()[0]}"


def _call() -> None:
    with CriClient(ENDPOINT) as client:
        client.runtime.Version(api_pb2.VersionRequest(), timeout=PATIENCE_S)


def _records_of(node: Node) -> str:
    count = len(node.pods)
    return rf"; {count} pods, {count} containers; "


CHECKS = (
    Check("systemctl reload with a good configuration", reload_takes_a_good_configuration),
    Check("systemctl reload with a broken configuration", reload_refuses_a_broken_configuration),
    Check("a policy in dry-run gives CPUs of running containers back", a_policy_in_dry_run_gives_cpus_back),
    Check("systemctl restart under load", restarts_lose_no_call),
    Check("koord-runtime-proxy upgrade under load", upgrades_lose_no_call),
    Check("a hung daemon is killed by the watchdog and back", a_hung_daemon_comes_back),
    Check("kill -9: the daemon is back", a_killed_daemon_comes_back),
    Check("systemctl restart containerd", containerd_restarts),
)
OUTLIVED = (Check("records and values outlive all of it", records_outlive_all_of_it),)
"""When no strategy counts."""
