"""The Debian package: installed, upgraded, refused to be removed, removed, purged; containers run on."""

from __future__ import annotations

from pathlib import Path

from cri_api.runtime.v1 import api_pb2
from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500, BEST_EFFORT, HALF_A_CORE
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.node.guest import claims
from tests.node.guest.kubelet import remove_pod
from tests.node.guest.load import Load
from tests.node.guest.machine import (
    CONFIG,
    CONTAINERD,
    ENDPOINT,
    MANAGER,
    PATIENCE_S,
    PREFIX,
    SERVICE,
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
from tests.node.guest.pods import Case, has_its_values, has_its_values_on_version_1

NAME = "koord-runtime-proxy"
SHARED = Path("/mnt/share/packages")
COMMAND = Path("/usr/sbin") / NAME
STATE = Path("/var/lib") / NAME
KUBELET = Path("/etc/default/kubelet")
POD = Case(
    "BE by the package",
    "besteffort",
    BEST_EFFORT,
    qos("BE"),
    extended_resources({"main": BATCH_500}),
    HALF_A_CORE,
    HALF_A_CORE,
)
_PURGED = (CONFIG.parent, STATE, Path("/var/lib/koord-qos-manager"), PREFIX, ENDPOINT.parent)
_EDITED = "\n# Edited by the administrator.\n"


def takes_the_place_of_another_installation(_: Node) -> str:
    """What was installed by hand is taken out; the package starts nothing."""
    systemctl("disable", "--now", SERVICE, SOCKET_UNIT)
    for unit in (SERVICE, SOCKET_UNIT):
        (UNITS / unit).unlink()
    run("rm", "-r", PREFIX, CONFIG.parent, STATE)
    systemctl("daemon-reload")
    run("dpkg", "--install", _package(1))
    states = {unit: systemctl("is-enabled", unit, code=None) for unit in (SERVICE, SOCKET_UNIT)}
    expect("enabled", states, dict.fromkeys((SERVICE, SOCKET_UNIT), "disabled"))
    expect("service", shown("ActiveState"), "inactive")
    expect("socket", shown("ActiveState", SOCKET_UNIT), "inactive")
    expect("complaints", run("systemd-analyze", "verify", SERVICE, SOCKET_UNIT), "")
    expect("changed files", run("dpkg", "--verify", NAME), "")
    return f"{run(COMMAND, 'version')}; {run(COMMAND, 'check-config')}"


def serves_when_enabled(node: Node) -> str:
    """`systemctl enable --now`: the package's program applies its policies, from compiled files."""
    make_time()
    systemctl("enable", "--now", SOCKET_UNIT, SERVICE)
    expect("ActiveState", shown("ActiveState"), "active")
    sources = PREFIX.glob("lib/python3.11/site-packages/runtimeproxy/**/*.py")
    expect("without compiled file", [path for path in sources if not _is_compiled(path)], [])
    return has_its_values(POD, node)


def is_upgraded_without_a_lost_call(node: Node) -> str:
    """`dpkg --install` of the next package under load: its process takes the running one's place."""
    with CONFIG.open("a") as file:
        file.write(_EDITED)
    before, records = main_pid(), shown("StatusText").split("; ")[1]
    found = _of_pods(node)
    with Load() as load:
        printed = run("dpkg", "--install", _package(2))
        wait_until(lambda: main_pid() not in (0, before), "another MAINPID", PATIENCE_S)
        wait_until(lambda: not Path(f"/proc/{before}").exists(), "the end of the old process", PATIENCE_S)
        load.wait_for_calls()
    taken = expect_text("dpkg", printed, r"^process \d+ serves; .*")
    expect("version", run("dpkg-query", "--show", "--showformat", "${Version}", NAME), _version(2))
    expect("ActiveState", shown("ActiveState"), "active")
    expect("the edited configuration is there", CONFIG.read_text().endswith(_EDITED), True)
    wait_for_status(f"; {records}; ")
    expect("processes and values", _of_pods(node), found)
    return f"{load.no_failures()}; {taken}"


def is_not_removed_while_the_kubelet_needs_it(node: Node) -> str:
    """`dpkg --remove` fails with the file and what to set, and the service goes on."""
    before, found = main_pid(), _of_pods(node)
    KUBELET.write_text(f"KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix://{ENDPOINT}\n")
    try:
        printed = run("dpkg", "--remove", NAME, code=1)
    finally:
        KUBELET.unlink()
    reason = expect_text(
        "dpkg", printed, rf"{KUBELET}: --container-runtime-endpoint is .*; set .*containerd\.sock"
    )
    # dpkg keeps the wish to remove it.
    expect("status", _status(), "deinstall ok installed")
    expect("MainPID", main_pid(), before)
    expect("enabled", systemctl("is-enabled", SERVICE), "enabled")
    expect("processes and values", _of_pods(node), found)
    with CriClient(ENDPOINT) as client:
        client.runtime.Version(api_pb2.VersionRequest(), timeout=PATIENCE_S)
    return reason


def bounds_be_pods(node: Node) -> str:
    """The package's QoS manager is enabled; a strategy bounds the best-effort class."""
    systemctl("enable", "--now", MANAGER)
    return claims.are_bound(node, POD.title)


def serves_on_version_1(node: Node) -> str:
    """`systemctl enable --now`, with an LSE pod that is there already, and a BE pod."""
    make_time()
    systemctl("enable", "--now", SOCKET_UNIT, SERVICE)
    return has_its_values_on_version_1(POD, node)


def restore_gives_the_claims_back(node: Node) -> str:
    """The claims of its QoS manager, after both were stopped: before the package goes, as the README says."""
    return claims.go_back(node, COMMAND, POD.title)


def takes_no_value_along(node: Node) -> str:
    """`dpkg --purge` while a bound is in force: it is given back, and no file of either program stays."""
    systemctl("start", SOCKET_UNIT, SERVICE, MANAGER)
    claims.are_bound(node, POD.title)
    run("dpkg", "--purge", NAME)
    expect("units", [shown("LoadState", unit) for unit in (SERVICE, MANAGER)], ["not-found"] * 2)
    expect("there", [path for path in _PURGED if path.exists()], [])
    expect("limits", claims.limits_of(node, POD.title), claims.FREE)
    return f"{', '.join(map(str, _PURGED))} are gone"


def is_removed(node: Node) -> str:
    """`dpkg --remove`: service and files go, configuration and state stay, containers run on."""
    found = _of_pods(node)
    run("dpkg", "--remove", NAME)
    expect("processes and values", _of_pods(node), found)
    expect("status", _status(), "deinstall ok config-files")
    expect("LoadState", shown("LoadState"), "not-found")
    expect("there", [path for path in (COMMAND, PREFIX, ENDPOINT) if path.exists()], [])
    expect("gone", [path for path in (CONFIG, STATE) if not path.exists()], [])
    links = [str(path) for path in UNITS.glob("*.wants/koord-runtime-proxy.*")]
    expect("links of enabled units", links, [])
    return f"{len(node.pods)} containers run on; {CONFIG} and {STATE} stay"


def is_purged(node: Node) -> str:
    """`dpkg --purge`: configuration and state go; the runtime serves alone."""
    found = _of_pods(node)
    run("dpkg", "--purge", NAME)
    expect("there", [path for path in _PURGED if path.exists()], [])
    expect("limits", claims.limits_of(node, POD.title), claims.FREE)
    expect("processes and values", _of_pods(node), found)
    with CriClient(CONTAINERD) as client:
        remove_pod(client, node.pods.pop(POD.title).sandbox_id)
    return f"{', '.join(map(str, _PURGED))} are gone; the pod was removed by containerd alone"


def _package(revision: int) -> Path:
    (found,) = SHARED.glob(f"{NAME}_*-{revision}_amd64.deb")
    return found


def _version(revision: int) -> str:
    return _package(revision).name.split("_")[1]


def _status() -> str:
    return run("dpkg-query", "--show", "--showformat", "${Status}", NAME)


def _is_compiled(source: Path) -> bool:
    return any((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"))


def _of_pods(node: Node) -> dict[str, object]:
    """The process of each pod, and the values of the package's: slices may have systemd's for a while."""
    processes = {title: pod.process() for title, pod in node.pods.items()}
    return {**processes, "values": node.pods[POD.title].values()}


CHECKS = (
    Check("package: installed, nothing is started", takes_the_place_of_another_installation),
    Check("package: enabled, serves with its policies", serves_when_enabled),
    Check("package: upgraded under load", is_upgraded_without_a_lost_call),
    Check("package: not removed while the kubelet needs it", is_not_removed_while_the_kubelet_needs_it),
    Check("package: its QoS manager bounds BE pods", bounds_be_pods),
    Check("package: restore gives the claims back", restore_gives_the_claims_back),
    Check("package: removed, containers run on", is_removed),
    Check("package: purged", is_purged),
)
CHECKS_ON_VERSION_1 = (
    CHECKS[0],
    Check("package: enabled, serves on cgroup v1", serves_on_version_1),
    Check("package: its QoS manager bounds BE pods", bounds_be_pods),
    Check("package: restore gives the claims back", restore_gives_the_claims_back),
    Check("package: purged on cgroup v1", takes_no_value_along),
)
