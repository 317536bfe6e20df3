"""Each check of `doctor`: which facts are a problem, and what the advice is."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy.config.settings import DaemonSettings, KubernetesSettings, ProxySettings, Settings
from runtimeproxy.doctor import checks
from runtimeproxy.doctor.checks import CHECKS, Severity, examine, may_write
from runtimeproxy.doctor.facts import (
    ApiServerFacts,
    Facts,
    FolderFacts,
    HookServerFacts,
    InputFile,
    PolicyFacts,
    QosManagerFacts,
    RuntimeFacts,
    SocketState,
)
from runtimeproxy.doctor.modes import ModeFacts, fixed_kubelet, nri_disabled, suited_mode
from runtimeproxy.fields.anolis import ANOLIS
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.kubelet_endpoints import KubeletSetting, RunningKubelet
from runtimeproxy.node.koordlet import Koordlet
from runtimeproxy.node.snapshot import Feature, KubeletFacts, Node
from runtimeproxy.slo.schema import CpuGuard
from runtimeproxy.slo.strategies import Strategies

SOCKET = "/run/koord-runtimeproxy/runtimeproxy.sock"
OURS = KubeletSetting("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint", f"unix://{SOCKET}")
OTHER = KubeletSetting(
    "/etc/default/kubelet", "--container-runtime-endpoint", "unix:///run/containerd/containerd.sock"
)
UNIT = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "Result": "success",
    "UnitFileState": "enabled",
    "NeedDaemonReload": "no",
    "NRestarts": "0",
    "ProtectSystem": "strict",
    "ProtectControlGroups": "no",
    "ProtectKernelTunables": "yes",
    "CapabilityBoundingSet": "cap_chown cap_dac_override cap_fowner",
    "ReadWritePaths": "/sys/fs/cgroup -/sys/fs/resctrl",
    "ReadOnlyPaths": "",
    "StateDirectory": "koord-runtime-proxy",
    "RuntimeDirectory": "koord-runtimeproxy",
}
"""As the unit of this repository has them."""

GOOD = Facts(
    settings=Settings(proxy=ProxySettings(endpoint=SOCKET)),
    policies=(PolicyFacts("cpuset"), PolicyFacts("cpu-burst", frozenset({Feature.BURST}))),
    endpoint=SocketState.ANSWERS,
    is_served=True,
    version="0.2.0",
    kubelets=(RunningKubelet(7, OURS),),
    kubelet_files=(OURS,),
    runtime=RuntimeFacts("containerd 2.1", "systemd"),
    mode=ModeFacts("containerd 2.1", calls_us=True),
    kubelet_cgroup_driver="systemd",
    tree_cgroup_driver="systemd",
    node=Node(kubelet=KubeletFacts(cpu_manager_policy="none"), features=frozenset({Feature.BURST})),
    unit=UNIT,
)


def test_a_good_installation_has_no_finding_but_ok() -> None:
    found = examine(GOOD)
    assert set(found) == set(CHECKS)
    for name, findings in found.items():
        assert [each.level for each in findings] == [Severity.OK] * len(findings), name
        assert findings, name


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (QosManagerFacts(note="Koordlet does it."), "Koordlet does it."),
        (QosManagerFacts(is_running=True), "koord-qos-manager runs"),
        (QosManagerFacts(), "no strategy asks"),
    ],
)
def test_a_qos_manager_that_is_not_missing(found: QosManagerFacts, text: str) -> None:
    (finding,) = CHECKS["QoS manager"](replace(GOOD, qos_manager=found))
    assert finding.level is Severity.OK
    assert text in finding.text


STANDALONE = Settings(
    daemon=DaemonSettings(mode="standalone"),
    proxy=ProxySettings(endpoint=SOCKET, runtime_endpoint="/run/containerd/containerd.sock"),
)


@pytest.mark.parametrize(
    ("kubelets", "files", "expected"),
    [
        ((RunningKubelet(7, OTHER),), (OTHER,), [Severity.OK]),
        ((RunningKubelet(7, None),), (), [Severity.OK]),
        ((), (), [Severity.WARNING]),
        ((RunningKubelet(7, OURS),), (OURS,), [Severity.PROBLEM]),
        ((), (OURS,), [Severity.WARNING]),
    ],
)
def test_beside_the_kubelet(
    kubelets: tuple[RunningKubelet, ...], files: tuple[KubeletSetting, ...], expected: list[Severity]
) -> None:
    facts = replace(GOOD, settings=STANDALONE, kubelets=kubelets, kubelet_files=files)
    found = list(CHECKS["kubelet"](facts))
    assert [each.level for each in found] == expected
    for each in found:
        assert (
            each.level is not Severity.PROBLEM or "to unix:///run/containerd/containerd.sock" in each.advice
        )


IN_NRI_MODE = replace(GOOD.settings, daemon=DaemonSettings(mode="nri"))
MONITOR = replace(GOOD.settings, policies={"gpu-env": PolicySettings(options={"hami_vgpu_monitor": True})})
"""HAMi's monitor is configured."""


NODE_OF_PROVIDER = "the kubelet belongs to EKS (label eks.amazonaws.com/nodegroup)"


@pytest.mark.parametrize(
    ("facts", "mode", "reason", "advice"),
    [
        (ModeFacts("containerd 2.2.1", nri_answers=True, calls_us=True), "proxy", "calls the daemon", ""),
        (ModeFacts("containerd 2.2.1", nri_answers=True), "nri", "the kubelet stays", ""),
        (ModeFacts(nri_answers=True), "nri", "the runtime asks plugins", ""),
        (ModeFacts("containerd 1.6.20"), "proxy", "1.6.20 has no NRI", ""),
        (ModeFacts("containerd 1.7.28"), "proxy", "does not ask plugins", "disable = false"),
        (ModeFacts("cri-o 1.26.0"), "proxy", "does not ask plugins", "enable_nri = true"),
        (ModeFacts("docker 27.0", fixed_kubelet=NODE_OF_PROVIDER), "standalone", "EKS", ""),
        (ModeFacts("containerd 1.7.28", fixed_kubelet=NODE_OF_PROVIDER), "nri", "EKS", "disable = false"),
        (ModeFacts("containerd v2.0.0-rc.1"), "proxy", "does not ask plugins", "disable = false"),
        (ModeFacts("containerd unknown"), "proxy", "has no NRI", ""),
        (ModeFacts(), "standalone", "no runtime answers", ""),
    ],
)
def test_the_mode_that_suits_a_node(facts: ModeFacts, mode: str, reason: str, advice: str) -> None:
    found = suited_mode(facts)
    assert (found.mode, reason in found.reason, advice in found.advice) == (mode, True, True)
    assert bool(found.advice) is bool(advice)


GPU = PolicyFacts("gpu-env", is_configured=True, undone=("env", "mounts"))


@pytest.mark.parametrize(
    ("mode", "facts", "policies", "levels", "text"),
    [
        ("nri", ModeFacts("containerd 2.2.1", nri_answers=True), (), [Severity.OK], "suits this node"),
        (
            "nri",
            ModeFacts("containerd 1.7.28"),
            (),
            [Severity.PROBLEM],
            "does not ask plugins on /var/run/nri",
        ),
        (
            "nri",
            ModeFacts("containerd 1.7.28", nri_disabled=True),
            (),
            [Severity.PROBLEM],
            "off in containerd's configuration",
        ),
        (
            "standalone",
            ModeFacts("containerd 2.2.1", nri_answers=True),
            (),
            [Severity.WARNING],
            "nri suits this node",
        ),
        ("standalone", ModeFacts(), (GPU,), [Severity.WARNING, Severity.OK], "gpu-env: env, mounts"),
        ("standalone", ModeFacts(), (GPU._replace(is_configured=False),), [Severity.OK] * 2, "gpu-env"),
    ],
)
def test_the_chosen_mode(
    mode: Any, facts: ModeFacts, policies: tuple[PolicyFacts, ...], levels: list[Severity], text: str
) -> None:
    settings = Settings(daemon=DaemonSettings(mode=mode))
    found = list(CHECKS["mode"](replace(GOOD, settings=settings, mode=facts, policies=policies)))
    assert [each.level for each in found] == levels
    assert text in found[0].text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[plugins."io.containerd.nri.v1.nri"]\ndisable = true\n', True),
        ("version = 3\n[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n", False),
        ("version = 2\n", None),
        ("[plugins]\n'io.containerd.nri.v1.nri' = 1\n", None),
        ("no toml", None),
        (None, None),
    ],
)
def test_whether_nri_is_off(tmp_path: Path, text: str | None, *, expected: bool | None) -> None:
    if text is not None:
        (tmp_path / "etc" / "containerd").mkdir(parents=True)
        (tmp_path / "etc" / "containerd" / "config.toml").write_text(text)
    assert nri_disabled(tmp_path) is expected


def test_a_kubelet_that_cannot_well_be_changed(tmp_path: Path) -> None:
    assert "GKE" in fixed_kubelet(["a", "cloud.google.com/gke-nodepool"], (), tmp_path)
    assert not fixed_kubelet(["kubernetes.io/os"], ("/etc/default/kubelet",), tmp_path)


def test_a_kubelet_on_a_read_only_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    flags = SimpleNamespace(f_flag=real.f_flag | os.ST_RDONLY)
    monkeypatch.setattr("runtimeproxy.doctor.modes.os.statvfs", lambda path: flags)
    assert fixed_kubelet([], ("/etc/default/kubelet",), tmp_path) == (
        "/etc/default/kubelet is on a read-only file system"
    )


def node(policy: str | None = "none", *features: str, static: int = 0) -> Node:
    cpus = {("uid", str(number)): frozenset({number}) for number in range(static)}
    kubelet = KubeletFacts(cpu_manager_policy=policy, static_cpus=cpus) if policy else None
    return Node(kubelet=kubelet, features=frozenset(features))


def unit(**changes: str) -> dict[str, str]:
    return {**UNIT, **changes}


@pytest.mark.parametrize(
    ("check", "changes", "level", "text", "advice"),
    [
        (
            "configuration",
            {"configuration_problems": ("f: k: bad",)},
            Severity.PROBLEM,
            "f: k: bad",
            "correct it",
        ),
        ("configuration", {"configuration_warnings": ("f: odd",)}, Severity.WARNING, "f: odd", ""),
        (
            "daemon",
            {"endpoint": SocketState.MISSING},
            Severity.PROBLEM,
            "does not exist: no daemon",
            "systemctl start",
        ),
        (
            "daemon",
            {"endpoint": SocketState.REFUSED},
            Severity.PROBLEM,
            "no process that listens",
            "journalctl",
        ),
        (
            "daemon",
            {"endpoint": SocketState.DENIED},
            Severity.WARNING,
            "may not connect",
            "run doctor as root",
        ),
        (
            "daemon",
            {"endpoint": SocketState.MISSING, "is_file_denied": True},
            Severity.WARNING,
            "may name another socket",
            "run doctor as root",
        ),
        ("QoS manager", {"version": ""}, Severity.WARNING, "is not known: the daemon has not answered", ""),
        (
            "state folder",
            {"state_folder": FolderFacts(exists=False, is_denied=True)},
            Severity.WARNING,
            "may not see",
            "run doctor as root",
        ),
        (
            "QoS manager",
            {"qos_manager": QosManagerFacts(is_missing=True, note="It is missing.")},
            Severity.PROBLEM,
            "It is missing.",
            "start koord-qos-manager",
        ),
        *(
            (
                "QoS manager",
                {
                    "qos_manager": QosManagerFacts(is_missing=True, note="It is missing."),
                    "manager_unit": unit,
                },
                Severity.PROBLEM,
                "It is missing.",
                advice,
            )
            for unit, advice in (
                ({"LoadState": "not-found"}, "install koord-qos-manager.service"),
                ({"LoadState": "loaded", "ActiveState": "inactive"}, "systemctl enable --now"),
                (
                    {"LoadState": "loaded", "ActiveState": "failed", "UnitFileState": "enabled"},
                    "systemctl start koord-qos-manager; journalctl",
                ),
                ({"LoadState": "loaded", "ActiveState": "active"}, "why it does not reach the daemon"),
            )
        ),
        ("daemon", {"api_error": "has no API"}, Severity.PROBLEM, "has no API", ""),
        ("daemon", {"daemon_problems": ("disk full",)}, Severity.PROBLEM, "disk full", "status"),
        (
            "runtime",
            {"runtime": RuntimeFacts(error="/c is missing")},
            Severity.PROBLEM,
            "/c is missing",
            "runtime_endpoint",
        ),
        (
            "kubelet",
            {"kubelets": ()},
            Severity.WARNING,
            "no kubelet runs; /var/lib/kubelet/config.yaml names",
            "",
        ),
        ("kubelet", {"kubelets": (), "kubelet_files": ()}, Severity.WARNING, "no file names the proxy", ""),
        (
            "kubelet",
            {"kubelets": (RunningKubelet(7, OTHER),), "kubelet_files": (OTHER,)},
            Severity.PROBLEM,
            "(process 7) calls unix:///run/containerd/containerd.sock (/etc/default/kubelet): no call",
            f"to unix://{SOCKET} and restart it",
        ),
        (
            "kubelet",
            {"kubelets": (RunningKubelet(7, None),)},
            Severity.PROBLEM,
            "calls unix:///run/containerd/containerd.sock (its default)",
            "restart it",
        ),
        (
            "kubelet",
            {"kubelet_files": (OURS, OTHER)},
            Severity.WARNING,
            "/etc/default/kubelet has --container-runtime-endpoint = unix:///run/containerd/containerd.sock",
            "set both to the same",
        ),
        (
            "cgroup driver",
            {"kubelet_cgroup_driver": "cgroupfs"},
            Severity.PROBLEM,
            "(cgroupfs: the kubelet; systemd: the runtime and the tree of cgroups)",
            "SystemdCgroup",
        ),
        (
            "cgroup driver",
            {"kubelets": (RunningKubelet(7, OURS, "cgroupfs"),)},
            Severity.PROBLEM,
            "(cgroupfs: the kubelet; systemd: the runtime and the tree of cgroups)",
            "",
        ),
        (
            "cgroup driver",
            {"kubelet_cgroup_driver": "", "runtime": RuntimeFacts("c"), "tree_cgroup_driver": ""},
            Severity.WARNING,
            "is not known",
            "",
        ),
        ("CPU manager", {"node": node(None)}, Severity.WARNING, "is not known", "node.kubelet_dir"),
        (
            "CPU manager",
            {"node": node("static", static=2)},
            Severity.WARNING,
            "the policy static, with CPUs for 2 containers",
            "cpuManagerPolicy: none",
        ),
        (
            "koordlet",
            {"hook_servers": (HookServerFacts("koordlet.json", "/k", SocketState.ANSWERS),)},
            Severity.WARNING,
            "koordlet is registered (koordlet.json), and these policies do the same: cpu-burst, cpuset",
            "coming-from-koordinator.md",
        ),
        (
            "koordlet",
            {"koordlets": (Koordlet(9, True),), "has_nri_socket": True},
            Severity.WARNING,
            "(process 9) is an NRI plugin, too",
            "--enable-nri-runtime-hook=false",
        ),
        (
            "koordlet",
            {"koordlets": (Koordlet(9, True),)},
            Severity.WARNING,
            "(process 9) writes cgroup files itself, which cpu-burst, cpuset set, too",
            "switch these policies off",
        ),
        (
            "koordlet",
            {"koordlets": (Koordlet(9, True),), "has_nri_socket": True, "settings": IN_NRI_MODE},
            Severity.PROBLEM,
            "(process 9) is an NRI plugin, too, with the hooks of cpuset: the runtime fails",
            "--enable-nri-runtime-hook=false, or with CPUSetAllocator=false",
        ),
        (
            "koordlet",
            {"koordlets": (Koordlet(9, True),), "has_nri_socket": True, "settings": STANDALONE},
            Severity.WARNING,
            "(process 9) is an NRI plugin, too: both write the same files",
            "CPUSetAllocator=false, or switch the policies off",
        ),
        (
            "koordlet",
            {
                "koordlets": (Koordlet(9, True),),
                "has_nri_socket": True,
                "hook_servers": (HookServerFacts("koordlet.json", "/k", SocketState.ANSWERS),),
                "policies": (),
            },
            Severity.WARNING,
            "is an NRI plugin and a hook server: its hooks run twice",
            "--enable-nri-runtime-hook=false",
        ),
        (
            "hook servers",
            {
                "hook_servers": (HookServerFacts("a.json", "/a.sock", SocketState.ANSWERS, is_asked=False),),
                "settings": STANDALONE,
            },
            Severity.WARNING,
            "a.json: mode standalone asks no hook server at its hooks",
            'daemon.mode to "proxy" or "nri"',
        ),
        (
            "hook servers",
            {"hook_servers": (HookServerFacts("a.json", "/a.sock", SocketState.REFUSED),)},
            Severity.WARNING,
            "a.json: /a.sock is refused",
            "remove its file",
        ),
        (
            "kernel",
            {"policies": (PolicyFacts("p", frozenset({"bvt", "idle"}), is_configured=True),)},
            Severity.WARNING,
            f"the policy p does nothing: the kernel lacks bvt, idle (only {ANOLIS} have cpu.bvt_warp_ns)",
            "",
        ),
        (
            "service",
            {"unit": {"LoadState": "not-found"}},
            Severity.WARNING,
            "there is no koord",
            "install the units",
        ),
        (
            "service",
            {"unit": unit(ActiveState="failed", Result="exit-code")},
            Severity.PROBLEM,
            "failed (exit-code)",
            "",
        ),
        (
            "service",
            {"unit": unit(UnitFileState="disabled")},
            Severity.WARNING,
            "is disabled",
            "systemctl enable",
        ),
        (
            "service",
            {"unit": unit(NeedDaemonReload="yes")},
            Severity.WARNING,
            "files have changed",
            "daemon-reload",
        ),
        (
            "service",
            {"unit": unit(NRestarts="3")},
            Severity.WARNING,
            "restarted the daemon 3 times",
            "journalctl",
        ),
        (
            "service",
            {"unit": unit(ReadWritePaths="", ProtectControlGroups="yes")},
            Severity.PROBLEM,
            "cgroups.root: the unit may not write to /sys/fs/cgroup",
            "ReadWritePaths=/sys/fs/cgroup",
        ),
        (
            "service",
            {"unit": unit(StateDirectory="")},
            Severity.PROBLEM,
            "state.dir: the unit may not write to /var/lib/koord-runtime-proxy",
            "a drop-in",
        ),
        (
            "service",
            {"unit": unit(RuntimeDirectory="")},
            Severity.PROBLEM,
            "the folder of proxy.endpoint: the unit may not write to /run/koord-runtimeproxy",
            "",
        ),
        (
            "service",
            {"unit": unit(CapabilityBoundingSet="cap_chown cap_fowner")},
            Severity.WARNING,
            "lacks CAP_DAC_OVERRIDE: it cannot write files of other users",
            "",
        ),
        (
            "service",
            {
                "policies": (PolicyFacts("group-identity"),),
                "node": node("none", Feature.BVT, Feature.GROUP_IDENTITY_SYSCTL),
            },
            Severity.PROBLEM,
            "ProtectKernelTunables=yes",
            "10-group-identity.conf",
        ),
        (
            "service",
            {
                "policies": (PolicyFacts("core-sched"),),
                "node": node("none", Feature.CORE_SCHED, Feature.CORE_SCHED_SYSCTL),
                "unit": unit(CapabilityBoundingSet="cap_chown cap_dac_override cap_fowner cap_sys_ptrace"),
            },
            Severity.PROBLEM,
            "core-sched may not set its sysctls",
            "10-group-identity.conf",
        ),
        (
            "service",
            {"policies": (PolicyFacts("core-sched"),), "node": node("none", Feature.CORE_SCHED)},
            Severity.PROBLEM,
            "lacks CAP_SYS_PTRACE",
            "70-core-sched.conf",
        ),
        (
            "service",
            {
                "node": replace(
                    node("none", Feature.SLICE),
                    strategies=Strategies(cpu_guard=CpuGuard(enable=True, slice=True)),
                )
            },
            Severity.PROBLEM,
            "lacks CAP_SYS_NICE",
            "70-slices.conf",
        ),
        (
            "service",
            {"policies": (PolicyFacts("oom-score"),)},
            Severity.WARNING,
            "cannot lower the score of what runs: the unit lacks CAP_SYS_RESOURCE",
            "60-oom-score.conf",
        ),
        (
            "service",
            {"policies": (PolicyFacts("network-qos"),), "unit": unit(ProtectKernelTunables="no")},
            Severity.PROBLEM,
            "network-qos has no access to the network: it lacks CAP_NET_ADMIN",
            "60-network.conf",
        ),
        (
            "network",
            {"policies": (PolicyFacts("network-qos"),), "node": node("none", Feature.TC, Feature.NFT)},
            Severity.WARNING,
            "network-qos is off: the node's bandwidth is not known",
            "totalNetworkBandwidth",
        ),
        (
            "service",
            {"policies": (PolicyFacts("system-config"),)},
            Severity.PROBLEM,
            "the policy system-config may not set sysctls",
            "60-system-config.conf",
        ),
        (
            "service",
            {"settings": MONITOR},
            Severity.PROBLEM,
            "hami_library_path: the unit may not write to /usr/local/vgpu",
            "ReadWritePaths=/usr/local/vgpu",
        ),
        (
            "state folder",
            {"state_folder": FolderFacts(exists=False)},
            Severity.PROBLEM,
            "does not exist",
            "mkdir",
        ),
        (
            "state folder",
            {"state_folder": FolderFacts(mode=0o755)},
            Severity.WARNING,
            "has mode 0755",
            "chmod 0700",
        ),
        (
            "state folder",
            {"state_folder": FolderFacts(free_bytes=2**20)},
            Severity.PROBLEM,
            "has 1 MiB free",
            "make room",
        ),
        (
            "node objects",
            {"input_files": (InputFile("/n/slo.yaml", ("NodeSLO",), 3 * 86_400),)},
            Severity.WARNING,
            "/n/slo.yaml (NodeSLO) was written 3 days ago",
            "export the NodeSLO regularly",
        ),
        (
            "node objects",
            {"input_files": (InputFile("/n/nrt.yaml", ("Node", "NodeResourceTopology"), 7200),)},
            Severity.WARNING,
            "was written 2 hours ago",
            "export the NodeResourceTopology regularly",
        ),
        (
            "node objects",
            {"input_files": (InputFile("/n/cm.yaml", ("ConfigMap",), -4000),)},
            Severity.WARNING,
            "was written in the future",
            "clock",
        ),
    ],
)
def test_a_check(check: str, changes: dict[str, Any], level: Severity, text: str, advice: str) -> None:
    found = list(CHECKS[check](replace(GOOD, **changes)))
    (worst,) = [each for each in found if each.level is not Severity.OK]
    assert worst.level is level
    assert text in worst.text
    assert advice in worst.advice


@pytest.mark.parametrize(
    ("check", "changes", "text"),
    [
        ("CPU manager", {"policies": ()}, "the policy cpuset is off"),
        (
            "kernel",
            {"policies": (PolicyFacts("p", frozenset({"bvt"})),)},
            "p does nothing: the kernel lacks bvt",
        ),
        ("service", {"unit": None}, "systemd does not run here"),
        ("service", {"unit": unit(UnitFileState="enabled-runtime")}, "enabled, active"),
        ("koordlet", {"koordlets": (Koordlet(9, True),), "policies": ()}, ""),
        (
            "koordlet",
            {
                "koordlets": (Koordlet(9, True, gates=frozenset({"BatchResource", "CPUBurst"})),),
                "has_nri_socket": True,
                "settings": IN_NRI_MODE,
            },
            "(process 9) is an NRI plugin, and has none of the hooks on",
        ),
        (
            "koordlet",
            {"hook_servers": (HookServerFacts("koordlet.json", "/k", SocketState.ANSWERS),), "policies": ()},
            "koordlet is a hook server (koordlet.json)",
        ),
        (
            "node objects",
            {"input_files": (InputFile("/n/cm.yaml", ("ConfigMap",), 400 * 86_400),)},
            "/n/cm.yaml (ConfigMap) was written 400 days ago",
        ),
    ],
)
def test_what_is_fine(check: str, changes: dict[str, Any], text: str) -> None:
    found = list(CHECKS[check](replace(GOOD, **changes)))
    assert all(each.level is Severity.OK for each in found)
    assert text in " ".join(each.text for each in found)


@pytest.mark.parametrize(
    ("changes", "path", "is_possible"),
    [
        ({}, "/sys/fs/cgroup/cpu", True),
        ({}, "/var/run/koord-runtimeproxy/admin", True),
        ({}, "/etc/koord-runtime-proxy", False),
        ({}, "/opt/state", False),
        ({"ReadWritePaths": "/opt/state"}, "/opt/state/below", True),
        ({"ReadWritePaths": "/opt/state"}, "/opt/state2", False),
        ({"ProtectSystem": "full"}, "/opt/state", True),
        ({"ProtectSystem": "full"}, "/etc/x", False),
        ({"ProtectSystem": "yes"}, "/etc/x", True),
        ({"ProtectSystem": "yes"}, "/usr/x", False),
        ({"ProtectSystem": "no", "ReadOnlyPaths": "/opt"}, "/opt/state", False),
        (
            {"ProtectSystem": "no", "ReadWritePaths": "", "ProtectControlGroups": "yes"},
            "/sys/fs/cgroup",
            False,
        ),
    ],
)
def test_where_a_unit_may_write(changes: dict[str, str], path: str, is_possible: bool) -> None:
    assert may_write(unit(**changes), path) is is_possible


def test_ages_for_people() -> None:
    shown = [checks._age(seconds) for seconds in (-1, 59, 119, 121, 7200, 200_000)]
    assert shown == ["0 seconds", "59 seconds", "119 seconds", "2 minutes", "2 hours", "2 days"]


HERE = ApiServerFacts("https://10.0.0.1:6443", node_name="node-a")
OPEN = {
    "PrivateNetwork": "no",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
    "IPAddressAllow": "10.0.0.0/24",
    "IPAddressDeny": "::/0 0.0.0.0/0",
}


@pytest.mark.parametrize(
    ("found", "unit", "text", "advice"),
    [
        (HERE, {"PrivateNetwork": "yes"}, "the unit has no network", "40-kubernetes.conf"),
        (HERE, {"RestrictAddressFamilies": "AF_UNIX"}, "the unit has no network", "40-kubernetes.conf"),
        (
            HERE,
            {"IPAddressAllow": "127.0.0.0/8 ::1/128"},
            "may not connect to 10.0.0.1",
            "IPAddressAllow=10.0.0.1",
        ),
        (
            HERE._replace(error="no answer in time"),
            {},
            "https://10.0.0.1:6443: no answer in time",
            "kubeconfig",
        ),
        (ApiServerFacts(error="there is no /k"), {}, "/k/config: there is no /k", "kubeconfig"),
        (HERE._replace(refused={"Pod": "403: no"}), {}, "Pod: 403: no", "rbac.yaml"),
        (HERE._replace(has_node=False), {}, "it has no Node node-a", "node.name"),
    ],
)
def test_the_api_server(found: ApiServerFacts, unit: dict[str, str], text: str, advice: str) -> None:
    settings = Settings(kubernetes=KubernetesSettings(enabled=True, kubeconfig="/k/config"))
    facts = replace(GOOD, settings=settings, api_server=found, unit={**UNIT, **OPEN, **unit})
    (finding,) = checks.check_api_server(facts)
    assert finding.level is Severity.PROBLEM
    assert text in finding.text
    assert advice in finding.advice


@pytest.mark.parametrize("server", ["https://10.0.0.1:6443", "https://api.example.org"])
@pytest.mark.parametrize("unit", [None, {**UNIT, **OPEN}])
def test_an_api_server_that_is_fine(server: str, unit: dict[str, str] | None) -> None:
    found = HERE._replace(server=server, absent=("NodeSLO",))
    (finding,) = checks.check_api_server(replace(GOOD, api_server=found, unit=unit))
    assert finding == (checks.Severity.OK, f"{server} answers, with Node node-a; it has no NodeSLO", "")
