"""The checks of `doctor`: each is a pure function of the facts, and says what is wrong and what to do."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import PurePosixPath
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from runtimeproxy.cgroups.resctrl import FOLDER as RESCTRL
from runtimeproxy.doctor.facts import Facts, SocketState
from runtimeproxy.doctor.modes import suited_mode, switch_on
from runtimeproxy.kubelet_endpoints import DEFAULT_ENDPOINT, is_endpoint
from runtimeproxy.node.koordlet import HOOKS, POLICY_GATES, Koordlet
from runtimeproxy.node.snapshot import Feature, lacks

SERVICE: Final = "koord-runtime-proxy.service"
MANAGER_SERVICE: Final = "koord-qos-manager.service"

_MIB: Final = 1024 * 1024
LEAST_FREE_BYTES: Final = 64 * _MIB
"""In the state folder: checkpoint and journal of a thousand pods have some MiB, twice at a time."""
STALE_S: Final = {"NodeSLO": 24 * 3600.0, "NodeResourceTopology": 3600.0}
"""Age from which on a file may be out of date, by kind: koord-manager and koordlet keep changing these
objects, so they have to be exported regularly. A ConfigMap is edited by people, and may be of any age."""
_FUTURE_S: Final = 300.0
"""Clocks of a node and of the machine that wrote a file may differ so much."""
_RIGHTS: Final = {
    "cap_dac_override": "it cannot write files of other users",
    "cap_chown": "proxy.socket_owner and proxy.socket_group have no effect",
    "cap_fowner": "proxy.socket_mode has no effect on files of other users",
}
"""Capabilities of the unit, and what is missing without them."""
_WITH_SYSCTLS: Final = {
    "group-identity": frozenset({Feature.BVT, Feature.GROUP_IDENTITY_SYSCTL}),
    "core-sched": frozenset({Feature.CORE_SCHED_SYSCTL}),
}
"""Policies that set sysctls, on kernels with these features."""
_HAMI_LIBRARY: Final = "/usr/local/vgpu/libvgpu.so"
"""The default of `policies/gpu_env.py`, which is not loaded here."""


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """The result of a check, or one of its results."""

    level: Severity
    text: str
    advice: str = ""
    """A remedy for people; empty for none."""


Findings = Iterator[Finding]

_ok = partial(Finding, Severity.OK)
_warning = partial(Finding, Severity.WARNING)
_problem = partial(Finding, Severity.PROBLEM)


_AS_ROOT: Final = "run doctor as root"


def check_user(facts: Facts) -> Findings:
    """Whether this user sees what the checks are about."""
    if facts.user_id == 0:
        yield _ok("root: all can be seen")
        return
    what = f"may not read {', '.join(facts.denied)}" if facts.denied else "may not see all that root sees"
    yield _warning(f"user {facts.user_id} {what}: of that nothing, or less, is known", _AS_ROOT)


def check_configuration(facts: Facts) -> Findings:
    """Flags, environment, file, folders, policies, registrations: as `check-config`."""
    for text in facts.configuration_problems:
        yield _problem(text, "correct it; the daemon does not start, or keeps its old settings")
    for text in facts.configuration_warnings:
        yield _warning(text)
    for text in facts.configuration_denied:
        yield _warning(text, f"{_AS_ROOT}, or as the daemon's user")
    if not (facts.configuration_problems or facts.configuration_warnings or facts.configuration_denied):
        yield _ok("the configuration is valid")


def check_daemon(facts: Facts) -> Findings:
    """Whether it serves, answers, and has problems of its own."""
    endpoint = facts.settings.proxy.endpoint
    start = f"systemctl start {SERVICE}, and journalctl -u {SERVICE} if it does not"
    if facts.endpoint is SocketState.DENIED:
        yield _warning(f"{endpoint}: this user may not connect", _AS_ROOT)
    elif facts.endpoint is not SocketState.ANSWERS:
        what = "does not exist" if facts.endpoint is SocketState.MISSING else "has no process that listens"
        if facts.is_file_denied:
            text = f"{endpoint} {what}, but the configuration may name another socket"
            yield _warning(text, _AS_ROOT)
        else:
            yield _problem(f"{endpoint} {what}: no daemon serves", start)
    elif facts.api_error:
        yield Finding(Severity.PROBLEM if facts.is_served else Severity.WARNING, facts.api_error)
    else:
        yield _ok(f"version {facts.version} serves on {endpoint}")
    for text in facts.daemon_problems:
        yield _problem(text, "koord-runtime-proxy status shows more")


def check_runtime(facts: Facts) -> Findings:
    endpoint = facts.settings.proxy.runtime_endpoint
    if not endpoint:
        yield _ok("no container runtime: host applications and QoS classes alone get values")
    elif facts.runtime.name:
        yield _ok(f"{facts.runtime.name} answers on {endpoint}")
    elif facts.runtime.is_denied:
        yield _warning(f"{endpoint}: this user may not connect", _AS_ROOT)
    elif facts.is_file_denied:
        text = f"{facts.runtime.error}, but the configuration may name another runtime"
        yield _warning(text, _AS_ROOT)
    else:
        advice = "start it, or set proxy.runtime_endpoint"
        yield _problem(f"the runtime does not answer: {facts.runtime.error}", advice)


def check_endpoint(facts: Facts) -> Findings:
    """Whether kubelets call the proxy, now and after their next restart; the runtime in another mode."""
    proxy, is_proxy = facts.settings.proxy, facts.settings.daemon.mode == "proxy"
    wanted = f"unix://{proxy.endpoint if is_proxy else proxy.runtime_endpoint}"
    for kubelet in facts.kubelets:
        if kubelet.denied and (kubelet.endpoint is None or not kubelet.endpoint.name.startswith("-")):
            text = f"this user may not read {', '.join(kubelet.denied)}"
            yield _warning(
                f"the socket that the kubelet (process {kubelet.pid}) calls is not known: {text}", _AS_ROOT
            )
            continue
        value = kubelet.endpoint.value if kubelet.endpoint else DEFAULT_ENDPOINT
        place = kubelet.endpoint.place if kubelet.endpoint else "its default"
        is_ours, who = is_endpoint(value, proxy.endpoint), f"the kubelet (process {kubelet.pid}) calls"
        if is_ours is is_proxy:
            yield _ok(
                f"{who} {'the proxy, by' if is_ours else 'another socket than the daemon has, by'} {place}"
            )
        else:
            what = "the daemon serves no calls in its mode" if is_ours else "no call reaches the proxy"
            yield _problem(
                f"{who} {value} ({place}): {what}",
                f"set containerRuntimeEndpoint or --container-runtime-endpoint to {wanted} and restart it",
            )
    files = [each for each in facts.kubelet_files if "image" not in each.name]
    ours = [each for each in files if is_endpoint(each.value, proxy.endpoint)]
    others = [each for each in files if each not in ours]
    if not facts.kubelets:
        if ours:
            yield _warning(f"no kubelet runs; {ours[0].place} names the proxy")
        else:
            yield _warning(
                "no kubelet runs here" + (", and no file names the proxy's socket" if is_proxy else "")
            )
    if ours and others:
        yield _warning(
            f"{ours[0].place} names the proxy, {others[0].place} has {others[0].name} = {others[0].value}",
            "set both to the same: a restart or an upgrade of the kubelet may take the other one",
        )


def check_mode(facts: Facts) -> Findings:
    """What the chosen mode leaves undone, and which one suits this node."""
    mode, suited = facts.settings.daemon.mode, suited_mode(facts.mode)
    for policy in facts.policies:
        if policy.undone:
            text = f"mode {mode} leaves undone of the policy {policy.name}: {', '.join(policy.undone)}"
            yield Finding(Severity.WARNING if policy.is_configured else Severity.OK, text)
    if mode == "nri" and not facts.mode.nri_answers:
        off = " (it is off in containerd's configuration)" if facts.mode.nri_disabled else ""
        yield _problem(
            f"the runtime does not ask plugins on {facts.settings.nri.socket}{off}",
            f"set nri.socket, or {switch_on(facts.mode.runtime)}",
        )
    elif mode == suited.mode:
        yield _ok(f"mode {mode} suits this node: {suited.reason}")
    else:
        change = f'[daemon] mode = "{suited.mode}", and restart the daemon'
        advice = f"{suited.advice}; then {change}" if suited.advice else change
        yield _warning(f"mode is {mode}; {suited.mode} suits this node: {suited.reason}", advice)


def check_cgroup_driver(facts: Facts) -> Findings:
    """Whether kubelet, runtime and the tree of cgroups have the same driver."""
    flags = [each.cgroup_driver for each in facts.kubelets if each.cgroup_driver]
    known = {
        "the kubelet": flags[0] if flags else facts.kubelet_cgroup_driver,
        "the runtime": facts.runtime.cgroup_driver,
        "the tree of cgroups": facts.tree_cgroup_driver,
    }
    by_driver: dict[str, list[str]] = {}
    for name, driver in known.items():
        if driver:
            by_driver.setdefault(driver, []).append(name)
    if len(by_driver) > 1:
        text = "; ".join(f"{driver}: {' and '.join(names)}" for driver, names in by_driver.items())
        advice = "drain the node, set the kubelet's cgroupDriver or the runtime's SystemdCgroup, restart both"
        yield _problem(f"the cgroup drivers differ ({text})", advice)
    elif by_driver:
        ((driver, names),) = by_driver.items()
        yield _ok(f"{driver}, by {' and '.join(names)}")
    else:
        yield _warning("the cgroup driver is not known: neither kubelet nor runtime says it")


def check_cpu_manager(facts: Facts) -> Findings:
    """The kubelet's CPU manager against the policy `cpuset`."""
    if all(each.name != "cpuset" for each in facts.policies):
        yield _ok("the policy cpuset is off")
        return
    manager = facts.node.kubelet.cpu_manager_policy if facts.node.kubelet else None
    folder = facts.settings.node.kubelet_dir
    if manager is None and any(PurePosixPath(each).is_relative_to(folder) for each in facts.denied if folder):
        yield _warning("the policy of the kubelet's CPU manager is not known to this user", _AS_ROOT)
    elif manager is None:
        yield _warning(
            "the policy of the kubelet's CPU manager is not known: cpuset leaves pods without own CPUs alone",
            f"set node.kubelet_dir (now {folder!r}) to the kubelet's --root-dir",
        )
    elif manager == "none":
        yield _ok("the kubelet's CPU manager has the policy none")
    else:
        static = facts.node.kubelet.static_cpus if facts.node.kubelet else {}
        yield _warning(
            f"the kubelet's CPU manager has the policy {manager}, with CPUs for {len(static)} containers: "
            "cpuset leaves them and all pods without CPUs of their own alone",
            "set cpuManagerPolicy: none (remove cpu_manager_state), or [policies.cpuset] enabled = false",
        )


def check_koordlet(facts: Facts) -> Findings:
    """Whether koordlet changes the same values."""
    registered = [each.name for each in facts.hook_servers if each.name.startswith("koordlet")]
    own = {each.name for each in facts.policies}
    advice = "switch these policies off, or koordlet's hooks (systemd/coming-from-koordinator.md)"
    if registered and (both := sorted(own & POLICY_GATES.keys())):
        text = f"koordlet is registered ({registered[0]}), and these policies do the same: {', '.join(both)}"
        yield _warning(text, advice)
    elif registered:
        yield _ok(f"koordlet is a hook server ({registered[0]})")
    for each in facts.koordlets:
        shared = each.shared(own)
        if each.uses_nri and facts.has_nri_socket:
            yield _of_nri_plugin(each, shared, facts.settings.daemon.mode, is_registered=bool(registered))
        elif not registered and shared:
            text = f"koordlet (process {each.pid}) writes cgroup files itself, which {', '.join(shared)} set"
            yield _warning(f"{text}, too", advice)
    if not registered and not facts.koordlets:
        yield _ok("no koordlet is on this node")


def _of_nri_plugin(koordlet: Koordlet, shared: Sequence[str], mode: str, *, is_registered: bool) -> Finding:
    who = f"koordlet (process {koordlet.pid}) is an NRI plugin"
    hooks = [each for each in shared if each in HOOKS]
    if not hooks and not is_registered:
        return _ok(f"{who}, and has none of the hooks on that policies have here")
    advice = "start koordlet with --enable-nri-runtime-hook=false"
    gates = ", ".join(f"{POLICY_GATES[each]}=false" for each in hooks)
    if not hooks:
        return _warning(f"{who} and a hook server: its hooks run twice", advice)
    if mode == "nri":
        text = (
            f"{who}, too, with the hooks of {', '.join(hooks)}: the runtime fails the creation of a container"
        )
        return _problem(f"{text} for which both set other values", f"{advice}, or with {gates}")
    what = "it changes containers after the proxy" if mode == "proxy" else "both write the same files"
    return _warning(f"{who}, too: {what}", f"{advice}, or with {gates}, or switch the policies off")


def check_hook_servers(facts: Facts) -> Findings:
    mode = facts.settings.daemon.mode
    for each in facts.hook_servers:
        if not each.is_asked:
            text = f"{each.name}: mode {mode} asks no hook server at its hooks"
            yield _warning(text, 'remove its file, or set daemon.mode to "proxy" or "nri"')
        elif each.state is SocketState.ANSWERS:
            yield _ok(f"{each.name}: {each.endpoint} answers")
        elif each.state is SocketState.DENIED:
            yield _warning(f"{each.name}: {each.endpoint}: this user may not connect", _AS_ROOT)
        else:
            text = f"{each.name}: {each.endpoint} is {each.state}: calls go on without it, or are refused"
            yield _warning(text, "start it, or remove its file")
    if not facts.hook_servers:
        yield _ok("none is registered")


def check_kernel(facts: Facts) -> Findings:
    """Whether the kernel has what policies need."""
    is_fine = True
    for policy in facts.policies:
        if missing := sorted(policy.features - facts.node.features):
            is_fine = False
            text = f"the policy {policy.name} does nothing: {lacks(missing)}"
            yield Finding(Severity.WARNING if policy.is_configured else Severity.OK, text)
    if is_fine:
        yield _ok("it has what the policies need")


def check_unit(facts: Facts) -> Findings:
    """Whether systemd starts the daemon, and with the rights that it needs."""
    unit = facts.unit
    if unit is None:
        yield _ok("systemd does not run here")
        return
    if unit.get("LoadState") != "loaded":
        text = f"there is no {SERVICE}: nothing starts the daemon with the node, or again after its end"
        yield _warning(text, "install the units (systemd/README.md)")
        return
    found = [*_life_of(unit), *_rights_of(facts, unit)]
    yield from found or [_ok("enabled, active, and with the rights that the daemon needs")]


def _life_of(unit: Mapping[str, str]) -> Findings:
    if unit.get("ActiveState") != "active":
        text = f"the service is {unit.get('ActiveState')} ({unit.get('Result')})"
        yield _problem(text, f"journalctl -u {SERVICE} says why; systemctl start {SERVICE}")
    if not unit.get("UnitFileState", "").startswith("enabled"):
        text = f"the service is {unit.get('UnitFileState') or 'not enabled'}: it does not start with the node"
        yield _warning(text, f"systemctl enable {SERVICE}")
    if unit.get("NeedDaemonReload") == "yes":
        yield _warning("the unit's files have changed", "systemctl daemon-reload, then restart")
    if unit.get("NRestarts", "0") != "0":
        text = f"systemd has restarted the daemon {unit['NRestarts']} times since it was started"
        yield _warning(text, f"journalctl -u {SERVICE} has the reasons")


def _rights_of(facts: Facts, unit: Mapping[str, str]) -> Findings:
    settings = facts.settings
    writable = {
        "state.dir": settings.state.dir,
        "the folder of proxy.endpoint": str(PurePosixPath(settings.proxy.endpoint).parent),
    }
    if settings.cgroups.enabled:
        writable["cgroups.root"] = settings.cgroups.root
        if "resctrl" in {each.name for each in facts.policies}:
            writable["resctrl"] = f"{settings.node.sysfs_root}/{RESCTRL}"
    gpu_options = settings.policies["gpu-env"].options if "gpu-env" in settings.policies else {}
    if gpu_options.get("hami_vgpu_monitor"):
        library = str(gpu_options.get("hami_library_path", _HAMI_LIBRARY))
        writable["hami_library_path"] = str(PurePosixPath(library).parent)
    for name, path in writable.items():
        if not may_write(unit, path):
            text = f"{name}: the unit may not write to {path}"
            yield _problem(text, f"a drop-in with ReadWritePaths={path}")
    capabilities = unit.get("CapabilityBoundingSet", "").lower().split()
    for name, effect in _RIGHTS.items():
        if "CapabilityBoundingSet" in unit and name not in capabilities:
            yield _warning(f"the unit lacks {name.upper()}: {effect}", "add it in a drop-in")
    yield from _rights_of_policies(facts, unit)


def _rights_of_policies(facts: Facts, unit: Mapping[str, str]) -> Findings:
    capabilities = unit.get("CapabilityBoundingSet", "").lower().split()
    policies = {each.name for each in facts.policies}
    for policy, features in _WITH_SYSCTLS.items():
        has_sysctl = policy in policies and features <= facts.node.features
        if has_sysctl and unit.get("ProtectKernelTunables") == "yes":
            yield _problem(
                f"the policy {policy} may not set its sysctls: ProtectKernelTunables=yes",
                "install the drop-in koord-runtime-proxy.service.d/10-group-identity.conf",
            )
    has_cookies = "core-sched" in policies and Feature.CORE_SCHED in facts.node.features
    if has_cookies and "CapabilityBoundingSet" in unit and "cap_sys_ptrace" not in capabilities:
        yield _problem(
            "the policy core-sched may not read or set cookies of tasks: the unit lacks CAP_SYS_PTRACE",
            "install the drop-in koord-runtime-proxy.service.d/70-core-sched.conf",
        )
    guard = facts.node.strategies.cpu_guard
    has_slices = guard.enable and guard.slice and Feature.SLICE in facts.node.features
    if has_slices and "CapabilityBoundingSet" in unit and "cap_sys_nice" not in capabilities:
        yield _problem(
            "slice of cpu-guard-config: the unit lacks CAP_SYS_NICE, which tasks of other users need",
            "install the drop-in koord-runtime-proxy.service.d/70-slices.conf",
        )
    if "oom-score" in policies and "CapabilityBoundingSet" in unit and "cap_sys_resource" not in capabilities:
        yield _warning(
            "the policy oom-score cannot lower the score of what runs: the unit lacks CAP_SYS_RESOURCE",
            "install the drop-in koord-runtime-proxy.service.d/60-oom-score.conf",
        )
    if "network-qos" in policies:
        yield from _rights_of_network(unit, capabilities)
    if "system-config" in policies and not _may_write_tunables(unit):
        yield _problem(
            "the policy system-config may not set sysctls: ProtectKernelTunables=yes",
            "install the drop-in koord-runtime-proxy.service.d/60-system-config.conf",
        )


def _rights_of_network(unit: Mapping[str, str], capabilities: Sequence[str]) -> Findings:
    families = unit.get("RestrictAddressFamilies", "")
    lacks = {
        "PrivateNetwork=yes": unit.get("PrivateNetwork") == "yes",
        "it lacks CAP_NET_ADMIN": "CapabilityBoundingSet" in unit and "cap_net_admin" not in capabilities,
        "it lacks AF_NETLINK": bool(families)
        and not families.startswith("~")
        and "AF_NETLINK" not in families,
    }
    if missing := [what for what, is_so in lacks.items() if is_so]:
        yield _problem(
            f"the policy network-qos has no access to the network: {', '.join(missing)}",
            "install the drop-in koord-runtime-proxy.service.d/60-network.conf",
        )


def check_network(facts: Facts) -> Findings:
    """Whether the node's bandwidth is known, if it is to be shared."""
    if "network-qos" not in {each.name for each in facts.policies}:
        yield _ok("network-qos is off: the link is not shared")
    elif facts.node.strategies.system.total_network_bandwidth:
        yield _ok("the node's bandwidth is known")
    else:
        yield _warning(
            "the policy network-qos is off: the node's bandwidth is not known",
            "totalNetworkBandwidth in system-config, or the Node's annotation network-bandwidth",
        )


def _may_write_tunables(unit: Mapping[str, str]) -> bool:
    """Whether a service may write one of the sysctls of `system-config`, which its drop-in has all of."""
    allowed = (_plain(each.lstrip("-+")) for each in unit.get("ReadWritePaths", "").split())
    wanted = PurePosixPath("/proc/sys/vm/watermark_scale_factor")
    return unit.get("ProtectKernelTunables") != "yes" or any(wanted.is_relative_to(each) for each in allowed)


def may_write(unit: Mapping[str, str], path: str) -> bool:
    """Whether a service may write below a folder. Source: systemd.exec(5), Sandboxing.

    Args:
        unit: properties by `systemctl show`.
        path: an absolute path; a link is not followed, but for /var/run.
    """
    wanted = _plain(path)
    allowed = [_plain(each.lstrip("-+")) for each in unit.get("ReadWritePaths", "").split()]
    allowed += (PurePosixPath("/var/lib", each) for each in unit.get("StateDirectory", "").split())
    allowed += (PurePosixPath("/run", each) for each in unit.get("RuntimeDirectory", "").split())
    if any(wanted.is_relative_to(each) for each in allowed):
        return True
    forbidden = (_plain(each.lstrip("-+")) for each in unit.get("ReadOnlyPaths", "").split())
    if any(wanted.is_relative_to(each) for each in forbidden):
        return False
    if unit.get("ProtectControlGroups") == "yes" and wanted.is_relative_to("/sys/fs/cgroup"):
        return False
    protection = unit.get("ProtectSystem", "no")
    if protection == "strict":
        return any(wanted.is_relative_to(each) for each in ("/proc", "/sys", "/dev"))
    read_only = {"yes": ("/usr", "/boot", "/efi"), "full": ("/usr", "/boot", "/efi", "/etc")}
    return not any(wanted.is_relative_to(each) for each in read_only.get(protection, ()))


def _plain(path: str) -> PurePosixPath:
    pure = PurePosixPath(path)
    return PurePosixPath("/run", pure.relative_to("/var/run")) if pure.is_relative_to("/var/run") else pure


def check_qos_manager(facts: Facts) -> Findings:
    """Whether a QoS manager runs where strategies ask for one."""
    found, unit = facts.qos_manager, facts.manager_unit
    if found.is_missing:
        yield _problem(found.note, _how_to_start(unit))
    elif found.note:
        yield _ok(found.note)
    elif found.is_running:
        yield _ok("koord-qos-manager runs")
    elif facts.version:
        yield _ok("no strategy asks for one, as far as the daemon says")
    else:
        yield _warning("whether strategies ask for one is not known: the daemon has not answered")


def _how_to_start(unit: Mapping[str, str] | None) -> str:
    if unit is None:
        return "start koord-qos-manager beside the daemon"
    if unit.get("LoadState") != "loaded":
        return f"install {MANAGER_SERVICE} (systemd/README.md), and systemctl enable --now koord-qos-manager"
    if unit.get("ActiveState") == "active":
        return "journalctl -u koord-qos-manager says why it does not reach the daemon (api.admin_socket)"
    if not unit.get("UnitFileState", "").startswith("enabled"):
        return "systemctl enable --now koord-qos-manager"
    return "systemctl start koord-qos-manager; journalctl -u koord-qos-manager says why it ended"


def check_state_folder(facts: Facts) -> Findings:
    """Whether records and originals of values survive a restart."""
    path, folder = facts.settings.state.dir, facts.state_folder
    if folder.is_denied:
        yield _warning(f"this user may not see {path}", _AS_ROOT)
        return
    if not folder.exists:
        level = Severity.PROBLEM if facts.is_served else Severity.WARNING
        yield Finding(level, f"{path} does not exist: no restart keeps anything", f"mkdir -m 0700 {path}")
        return
    is_fine = True
    if folder.mode & 0o077:
        is_fine = False
        yield _warning(f"{path} has mode {folder.mode:04o}", f"chmod 0700 {path}")
    if folder.free_bytes < LEAST_FREE_BYTES:
        is_fine = False
        text = f"{path} has {folder.free_bytes // _MIB} MiB free: without its journal no value is written"
        yield _problem(text, "make room on its file system")
    if is_fine:
        yield _ok(f"{path} is there and private")


def check_inputs(facts: Facts) -> Findings:
    for file in facts.input_files:
        kinds = ", ".join(file.kinds) or "no object that is used"
        text = f"{file.path} ({kinds}) was written {_age(file.age_s)} ago"
        stale = [kind for kind in file.kinds if file.age_s > STALE_S.get(kind, file.age_s)]
        if file.age_s < -_FUTURE_S:
            yield _warning(f"{file.path} was written in the future", "check the node's clock")
        elif stale:
            advice = f"export the {' and '.join(stale)} regularly, or remove it"
            yield _warning(text, advice)
        else:
            yield _ok(text)
    if facts.settings.node.objects_dir in facts.denied:
        yield _warning(f"this user may not read {facts.settings.node.objects_dir}", _AS_ROOT)
    elif not facts.input_files:
        folder = facts.settings.node.objects_dir or "node.objects_dir"
        yield _ok(f"no file is in {folder}: there are no strategies of the cluster")


def check_api_server(facts: Facts) -> Findings:
    """Whether the API server answers, gives what is watched, and is within the unit's reach."""
    found = facts.api_server
    if found is None:
        yield _ok("it is not used (kubernetes.enabled)")
        return
    if facts.settings.kubernetes.kubeconfig in facts.denied:
        yield _warning(f"this user may not read {facts.settings.kubernetes.kubeconfig}", _AS_ROOT)
        return
    unit = list(_network_of(facts.unit or {}, found.server))
    yield from unit
    if found.error:
        where = found.server or facts.settings.kubernetes.kubeconfig or "the API server"
        yield _problem(f"{where}: {found.error}", "correct kubernetes.kubeconfig, or the network")
        return
    for kind, reason in found.refused.items():
        yield _problem(f"{kind}: {reason}", "kubectl apply -f systemd/kubernetes/rbac.yaml")
    if not found.has_node:
        text = f"it has no Node {found.node_name}: nothing of this node is found"
        yield _problem(text, "set node.name to the Node's name (kubectl get nodes)")
    if not unit and not found.refused and found.has_node:
        absent = f"; it has no {', '.join(found.absent)}" if found.absent else ""
        yield _ok(f"{found.server} answers, with Node {found.node_name}{absent}")


def _network_of(unit: Mapping[str, str], server: str) -> Findings:
    """Whether a unit lets the daemon connect. Source: systemd.exec(5), systemd.resource-control(5)."""
    families = unit.get("RestrictAddressFamilies", "AF_INET")
    if unit.get("PrivateNetwork") == "yes" or "AF_INET" not in families:
        yield _problem(
            "the unit has no network: the daemon cannot reach the API server",
            "install the drop-in koord-runtime-proxy.service.d/40-kubernetes.conf",
        )
        return
    try:
        address = ipaddress.ip_address(urlsplit(server).hostname or "")
    except ValueError:  # a name
        return
    allowed, denied = (
        any(address in ipaddress.ip_network(each, strict=False) for each in unit.get(name, "").split())
        for name in ("IPAddressAllow", "IPAddressDeny")
    )
    if denied and not allowed:
        text = f"the unit may not connect to {address}: the daemon cannot reach the API server"
        yield _problem(text, f"IPAddressAllow={address} in the drop-in 40-kubernetes.conf")


def _age(seconds: float) -> str:
    for name, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(0.0, seconds):.0f} seconds"


CHECKS: Final[Mapping[str, Callable[[Facts], Iterable[Finding]]]] = {
    "user": check_user,
    "configuration": check_configuration,
    "daemon": check_daemon,
    "runtime": check_runtime,
    "kubelet": check_endpoint,
    "mode": check_mode,
    "cgroup driver": check_cgroup_driver,
    "CPU manager": check_cpu_manager,
    "koordlet": check_koordlet,
    "hook servers": check_hook_servers,
    "kernel": check_kernel,
    "network": check_network,
    "service": check_unit,
    "QoS manager": check_qos_manager,
    "state folder": check_state_folder,
    "node objects": check_inputs,
    "API server": check_api_server,
}
"""By name, in the order in which they are shown."""


def examine(facts: Facts) -> dict[str, list[Finding]]:
    return {name: list(check(facts)) for name, check in CHECKS.items()}
