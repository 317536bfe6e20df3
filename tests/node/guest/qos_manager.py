"""The QoS manager beside the daemon: its unit, and a bound on BE pods through the ends of either."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.e2e.values import HALF_A_CORE
from tests.lab.deadline import wait_until
from tests.node.guest.cgroup_v2 import ROOT, Watch, bound_of
from tests.node.guest.load import Load
from tests.node.guest.machine import (
    CONFIG,
    MANAGER,
    PATIENCE_S,
    SERVICE,
    SHARED_UNITS,
    UNITS,
    Journal,
    UnexpectedError,
    expect,
    expect_text,
    main_pid,
    run,
    shown,
    systemctl,
    wait_for_another_process,
    wait_for_status,
    with_drop_ins,
)
from tests.node.guest.node import Check, Node, Pod
from tests.node.guest.pods import BATCH, as_v2
from tests.node.guest.strategies import objects

CGROUPFS = ROOT / "kubepods" / "besteffort"
"""The cgroup of BE pods."""
THRESHOLD = {
    "enable": True,
    "cpuSuppressPolicy": "cfsQuota",
    "cpuSuppressThresholdPercent": 1,
    "cpuSuppressMinPercent": 25,
}
"""By these the bound is a quarter of the two CPUs, whatever the load is."""
BOUND = ("50000 100000", "1")
"""Quota, and the CPUs that the LSE pod does not have."""
UNBOUNDED = ("max 100000", "0-1")
"""The kernel takes no empty list for a cgroup with processes below: all CPUs are the same."""
_INVALID = "[plugins.cpu-burst.options]\nstep = 1\n"


def bound_be_pods(cgroup: Path, wanted: tuple[str, str] = BOUND) -> str:
    """Has the strategy bound all BE pods; returns what the class has."""
    objects().strategies({"resource-threshold-config": {"clusterStrategy": THRESHOLD}})
    return wait_for_bound(cgroup, wanted)


def wait_for_bound(cgroup: Path, wanted: tuple[str, str]) -> str:
    """Waits until the class has it, and returns it for people."""
    try:
        wait_until(lambda: bound_of(cgroup) == wanted, "the bound", PATIENCE_S)
    except TimeoutError:
        raise UnexpectedError(f"{cgroup}: {bound_of(cgroup)} instead of {wanted}") from None
    return f"{cgroup.name}: cpu.max={wanted[0]} cpuset.cpus={wanted[1] or '-'}"


def wait_for_claims() -> str:
    """Waits until the manager says that it has its claims, and returns its status line."""
    return wait_for_status("^cpu-suppress: [1-9] claims", MANAGER)


def goes_on(journal: Journal) -> str:
    """Waits for the line of the daemon about a manager that has taken the claims over."""
    journal.wait_for("claims of cpu-suppress: a session goes on from [1-9] claims")
    return wait_for_claims()


def unit_and_drop_ins_are_valid(_: Node) -> str:
    """`install` from the wheel's share folder; systemd finds nothing wrong, with all drop-ins too."""
    run("install", "-m", "0644", SHARED_UNITS / MANAGER, UNITS)
    expect("complaints", run("systemd-analyze", "verify", UNITS / MANAGER), "")
    drop_ins = sorted(SHARED_UNITS.glob("koord-*.service.d/*.conf"))
    with with_drop_ins(*drop_ins):
        complaints = run("systemd-analyze", "verify", UNITS / MANAGER, UNITS / SERVICE)
    expect("complaints about drop-ins", complaints, "")
    return ", ".join([MANAGER, *(path.name for path in drop_ins)])


def it_starts_confined(_: Node) -> str:
    """`systemctl enable --now`: the sandbox is in force, and without a strategy nothing is claimed."""
    systemctl("enable", "--now", MANAGER)
    status = wait_for_status("^cpu-suppress: not wanted by the strategies; cpu-burst: ", MANAGER)
    text = Path(f"/proc/{main_pid(MANAGER)}/status").read_text()
    expect_text("/proc status", text, r"^Seccomp:\t2$")
    expect_text("/proc status", text, r"^NoNewPrivs:\t1$")
    expect_text("/proc status", text, r"^CapEff:\t0+$")
    exposure = run("systemd-analyze", "security", "--no-pager", MANAGER).splitlines()[-1]
    return f"{status}; no capabilities; {exposure.lstrip('→ ')}"


def a_strategy_bounds_be_pods(node: Node) -> str:
    """cfsQuota: the class has the quota, and none of the LSE pod's CPUs; its pods have no quotas."""
    seen = bound_be_pods(CGROUPFS)
    unlimited = as_v2(replace(HALF_A_CORE, cpu_quota_us=-1))
    _wait_for_values(node.pods[BATCH.title], (unlimited, unlimited))
    node.bound = Watch(CGROUPFS)
    return f"{seen}; {wait_for_claims()}"


def stopped_its_bound_is_held(_: Node) -> str:
    """`systemctl stop`: the lease ends, the bound is held; started again, the manager goes on from it."""
    journal = Journal()
    systemctl("stop", MANAGER)
    expect("result", shown("Result", MANAGER), "success")
    held = "0 are released, 2 held for up to 300 s"
    journal.wait_for(f"no request has renewed the claims of cpu-suppress: {held}")
    systemctl("start", MANAGER)
    goes_on(journal)
    return held


def killed_it_goes_on(_: Node) -> str:
    """`kill -9` under load: no call fails, systemd starts it again, and it goes on from what is held."""
    killed, journal = main_pid(MANAGER), Journal()
    with Load() as load:
        os.kill(killed, signal.SIGKILL)
        wait_for_another_process(killed, MANAGER)
        goes_on(journal)
        load.wait_for_calls()
    expect("NRestarts", shown("NRestarts", MANAGER), "1")
    return load.no_failures()


def the_bound_was_there_all_the_time(node: Node) -> str:
    """Through the ends of the manager and then of the daemon; the manager still has its claims."""
    assert node.bound is not None
    expect("NRestarts of the manager", shown("NRestarts", MANAGER), "1")
    status = wait_for_claims()
    node.bound.end()
    expect("what the class has held", node.bound.values, [BOUND])
    return f"{BOUND[0]}, CPUs {BOUND[1]}; {status}"


def the_strategy_goes(node: Node) -> str:
    """Switched off: the bound is gone, and BE pods have their own quotas again."""
    off = {**THRESHOLD, "enable": False}
    objects().strategies({"resource-threshold-config": {"clusterStrategy": off}})
    seen = wait_for_bound(CGROUPFS, UNBOUNDED)
    _wait_for_values(node.pods[BATCH.title], (as_v2(HALF_A_CORE), as_v2(HALF_A_CORE)))
    return seen


def an_invalid_configuration_ends_it(_: Node) -> str:
    """Exit code 2, which systemd takes for the end; the journal has the reason."""
    CONFIG.write_text(_INVALID)
    log = Journal(MANAGER)
    try:
        systemctl("restart", MANAGER, code=1)
        reason = log.wait_for("plugins.cpu-burst.options.step: unknown key")
    finally:
        CONFIG.write_text("")
    seen = {name: shown(name, MANAGER) for name in ("ActiveState", "ExecMainStatus", "NRestarts")}
    expect("state", seen, {"ActiveState": "failed", "ExecMainStatus": "2", "NRestarts": "0"})
    return reason


def it_is_taken_out(_: Node) -> str:
    """Disabled, and its unit removed: what comes next is about the daemon alone."""
    systemctl("disable", "--now", MANAGER)
    (UNITS / MANAGER).unlink()
    systemctl("daemon-reload")
    return "disabled"


def nothing_went_wrong_unseen(_: Node) -> str:
    """All lines of the program are JSON objects and no errors: no traceback, nothing of gRPC's own."""
    identifier = ("--identifier", MANAGER.removesuffix(".service"))
    lines = run("journalctl", "--boot", "--no-pager", "--output=cat", *identifier).splitlines()
    bad = [line for line in lines if not _is_expected(line)]
    if bad or not lines:
        raise UnexpectedError(f"{len(bad)} of {len(lines)} lines: {bad[:3]}")
    return f"{len(lines)} lines, none with an error"


def _is_expected(line: str) -> bool:
    if re.match("koord-qos-manager: configuration error: .*step: unknown key", line):
        return True  # which a check has asked for
    try:
        record: Mapping[str, str] = json.loads(line)
    except ValueError:
        return False
    return record["level"] in ("debug", "info", "warning") and "exception" not in record


def _wait_for_values(pod: Pod, wanted: tuple[object, object]) -> None:
    try:
        wait_until(lambda: pod.values() == wanted, "the values", PATIENCE_S)
    except TimeoutError:
        raise UnexpectedError(f"{pod.spec.name}: {pod.values()} instead of {wanted}") from None


CHECKS = (
    Check("QoS manager: unit and drop-ins: systemd-analyze verify", unit_and_drop_ins_are_valid),
    Check("QoS manager: systemctl enable --now, the sandbox is in force", it_starts_confined),
    Check("QoS manager: cfsQuota bounds BE pods", a_strategy_bounds_be_pods),
    Check("QoS manager: stopped, its bound is held; started, it goes on", stopped_its_bound_is_held),
    Check("QoS manager: kill -9 under load", killed_it_goes_on),
)
TAKEN_OUT = Check("QoS manager: taken out", it_is_taken_out)
INSTALLED = CHECKS[:2]
"""It runs, and claims nothing yet."""
OUTLIVED = (Check("QoS manager: its bound was there all the time", the_bound_was_there_all_the_time),)
"""When the daemon was restarted, upgraded and killed beside it."""
AFTERWARDS = (
    Check("QoS manager: the strategy goes, the bound is gone", the_strategy_goes),
    Check("QoS manager: an invalid configuration ends it", an_invalid_configuration_ends_it),
    TAKEN_OUT,
)
LAST = (Check("QoS manager: no error in the journal", nothing_went_wrong_unseen),)
