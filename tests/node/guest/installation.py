"""Installation and start, as `systemd/README.md` has them, with longer time limits."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from cri_api.runtime.v1 import api_pb2
from tests.lab.busybox_image import write_image
from tests.lab.cri_client import CriClient
from tests.node.guest.machine import (
    CONFIG,
    CONTAINERD,
    ENDPOINT,
    PATIENCE_S,
    PATIENTLY,
    PROGRAM,
    SERVICE,
    SHARED_UNITS,
    SOCKET_UNIT,
    UNITS,
    expect,
    expect_text,
    main_pid,
    make_time,
    run,
    shown,
    systemctl,
    wait_for_status,
)
from tests.node.guest.node import Check, Node


def the_runtime_has_an_image(node: Node) -> str:
    """Debian's containerd with one image, and cgroup version 2 alone, or version 1."""
    archive = node.logs / "busybox.tar"
    write_image(Path("/bin/busybox"), archive)
    run("ctr", "--namespace", "k8s.io", "images", "import", archive)
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    controllers = f"v2 with {unified.read_text().strip()}" if unified.exists() else "v1"
    with CriClient(CONTAINERD) as client:
        version = client.wait_until_serving(PATIENCE_S)
    return f"containerd {version.runtime_version}, cgroup {controllers}"


def units_are_installed_and_valid(_: Node) -> str:
    """`install` from the wheel's share folder; systemd finds nothing wrong."""
    run("install", "-m", "0644", SHARED_UNITS / SERVICE, SHARED_UNITS / SOCKET_UNIT, UNITS)
    run("install", "-m", "0644", "-D", SHARED_UNITS / "config.toml", CONFIG)
    complaints = run("systemd-analyze", "verify", UNITS / SERVICE, UNITS / SOCKET_UNIT)
    expect("complaints", complaints, "")
    return run(PROGRAM, "check-config")


def systemctl_starts_it(_: Node) -> str:
    """`systemctl enable --now`: calls through the socket unit are answered by containerd."""
    make_time()
    systemctl("enable", "--now", SOCKET_UNIT, SERVICE)
    expect("ActiveState", shown("ActiveState"), "active")
    with CriClient(ENDPOINT) as client, CriClient(CONTAINERD) as direct:
        request = api_pb2.VersionRequest()
        seen = client.runtime.Version(request, timeout=PATIENCE_S)
        expect("Version", seen, direct.runtime.Version(request, timeout=PATIENCE_S))
    began, ready = (int(shown(f"{name}TimestampMonotonic")) for name in ("InactiveExit", "ActiveEnter"))
    return f"{seen.runtime_name} {seen.runtime_version}, ready in {(ready - began) / 1e6:.1f} s"


def status_is_worth_reading(_: Node) -> str:
    """`systemctl status` has the line of the proxy and names the socket unit."""
    status = wait_for_status(r"^\d+ policies; \d+ pods, \d+ containers; \d+ connections$")
    text = systemctl("status", SERVICE)
    expect_text("systemctl status", text, "TriggeredBy: . " + SOCKET_UNIT)
    expect_text("systemctl status", text, f'Status: "{status}"')
    return status


def the_socket_is_systemds(_: Node) -> str:
    """Mode 0660, in the hands of systemd, so that it outlives the daemon."""
    listen = shown("Listen", SOCKET_UNIT)
    expect("Listen", listen, f"{ENDPOINT} (Stream)")
    expect("mode", stat.filemode(ENDPOINT.stat().st_mode), "srw-rw----")
    expect("held by systemd", Path(f"/proc/{main_pid()}/environ").read_text().count("LISTEN_FDS=1"), 1)
    return listen


def hook_servers_have_their_folder(_: Node) -> str:
    """The unit makes the folder in which koordlet registers, and it is only root's to write."""
    folder = Path("/etc/runtime/hookserver.d")
    mode = stat.filemode(folder.stat().st_mode)
    expect("writable for others", bool(folder.stat().st_mode & 0o022), False)
    return f"{mode} {folder}"


def the_daemon_is_confined(_: Node) -> str:
    """The unit's sandbox is in force, and nothing that the daemon needs was refused."""
    text = Path(f"/proc/{main_pid()}/status").read_text()
    expect_text("/proc status", text, r"^Seccomp:\t2$")
    expect_text("/proc status", text, r"^NoNewPrivs:\t1$")
    capabilities = expect_text("/proc status", text, r"^CapEff:\t(\w+)$")
    exposure = run("systemd-analyze", "security", "--no-pager", SERVICE).splitlines()[-1]
    return f"effective capabilities {capabilities}; {exposure.lstrip('→ ')}"


def doctor_finds_nothing_wrong(_: Node) -> str:
    """No problem, and warnings only about the kubelet, which this node does not have, and the mode."""
    findings = json.loads(run(PROGRAM, "doctor", *PATIENTLY, "--output", "json"))
    unusual = [each for each in findings if each["level"] != "ok" and each["check"] not in _EXPECTED]
    expect("unexpected findings", unusual, [])
    expect("checks", {each["check"] for each in findings} >= {"service", "kernel", "state folder"}, True)
    return "; ".join(each["text"] for each in findings if each["level"] != "ok") or "no findings"


_EXPECTED = ("kubelet", "CPU manager", "mode")
"""Another mode is advised where the runtime has NRI."""


CHECKS = (
    Check("containerd runs and has an image", the_runtime_has_an_image),
    Check("units from the wheel: systemd-analyze verify, check-config", units_are_installed_and_valid),
    Check("systemctl enable --now: serves in front of containerd", systemctl_starts_it),
    Check("systemctl status: the status line and the socket unit", status_is_worth_reading),
    Check("the socket unit holds the socket", the_socket_is_systemds),
    Check("the folder of hook servers is there", hook_servers_have_their_folder),
    Check("the sandbox of the unit is in force", the_daemon_is_confined),
    Check("doctor finds nothing wrong", doctor_finds_nothing_wrong),
)
