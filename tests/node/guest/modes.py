"""The daemon's three modes, with containerd 2.2 and the systemd cgroup driver.

The same pods in each mode, what `restore` gives back, and a node that goes from mode to mode under load.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import grpc

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1 import api_pb2 as own_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc as own_grpc
from tests.e2e.values import BURSTABLE, MIB, as_resources
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.pods import ContainerSpec
from tests.node.guest import pods
from tests.node.guest.cgroup_v2 import ROOT
from tests.node.guest.kubelet import remove_pod, run_pod, update
from tests.node.guest.machine import (
    CONFIG,
    CONTAINERD,
    ENDPOINT,
    PATIENCE_S,
    PATIENTLY,
    PROGRAM,
    SERVICE,
    SOCKET_UNIT,
    Journal,
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
from tests.node.guest.pods import SlicePodSpec, as_v2

Mode = Literal["proxy", "nri", "standalone"]
Files = dict[str, str]
"""Texts of a cgroup's files by their names."""

TOOLS = Path("/mnt/share/tools")
"""Where containerd 2.2 and its shim are."""
_PROGRAMS = Path("/usr/local/bin")
_NRI_SOCKET = Path("/var/run/nri/nri.sock")
# NRI is on by default; an emulated CPU needs more time than its time limits give.
_CONTAINERD = """
version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/busybox:lab"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = true
[plugins."io.containerd.nri.v1.nri"]
  plugin_registration_timeout = "60s"
  plugin_request_timeout = "60s"
"""

_POLICIES = Path("/etc/koord-runtime-proxy/policies.d")
_LOW, _HIGH = 16 * MIB, 48 * MIB
# Values that no field of the CRI carries.
_POLICY = f"""
from runtimeproxy.hooks import ContainerChange, PodChange, Policy
class Lab(Policy):
    name = "lab"
    def pod(self, pod, node):
        if "lab" in pod.labels:
            return PodChange(cgroup={{"memory.low": {_LOW}}}, reason="lab")
    def container(self, container, node):
        if "lab" in container.pod.labels:
            values = {{"cpu.cfs_burst_us": 20000, "memory.low": {_LOW}, "memory.high": {_HIGH}}}
            return ContainerChange(cgroup=values, reason="lab")
"""
_CARRIED = ("cpu.weight", "cpu.max", "memory.max", "cpuset.cpus.effective")
_FILE_ONLY = ("cpu.max.burst", "memory.low", "memory.high")
_FIRST = "first"
# Builtins only until the last value is read: nothing else runs before.
_SCRIPT = f"""
for file in {" ".join((*_CARRIED, *_FILE_ONLY))}; do
  read -r value </sys/fs/cgroup/$file; echo "$file=$value" >&3
done 3>/lab/out/new
mv /lab/out/new /lab/out/{_FIRST}
exec sleep 1000000
"""
_FEW_S = 60.0
"""On an emulated CPU."""
_FOUND_S = 60.0 + PATIENCE_S
"""A pod that came past a daemon in mode `proxy` is found by its next comparison with the runtime."""


@dataclass(frozen=True)
class Case:
    """A pod, and what its files have beside the values of the other boot's case."""

    case: pods.Case
    labels: Mapping[str, str] = field(default_factory=dict)
    container: Mapping[str, str] = field(default_factory=dict)
    pod: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.case.title

    def of_container(self) -> Files:
        return {**_files_of(self.case.applied or self.case.requested), **self.container}

    def of_pod(self) -> Files:
        applied = self.case.pod_applied or replace(self.case.requested, memory_limit_bytes=None)
        return {**_files_of(applied), **self.pod}

    def requested(self) -> tuple[Files, Files]:
        """Of container and pod, as the kubelet asks for them."""
        of_pod = replace(self.case.requested, memory_limit_bytes=None)
        return _files_of(self.case.requested), _files_of(of_pod)


def _files_of(v1: pods.V1Values) -> Files:
    values = as_v2(v1)
    return {
        "cpu.weight": str(values.cpu_weight),
        "cpu.max": values.cpu_max,
        "memory.max": values.memory_max,
        "cpuset.cpus.effective": values.cpuset_cpus or f"0-{len(os.sched_getaffinity(0)) - 1}",
        "cpu.max.burst": "0",
        "memory.low": "0",
        "memory.high": "max",
    }


_BY_FILE = {"cpu.max.burst": "20000", "memory.low": str(_LOW), "memory.high": str(_HIGH)}
CASES = tuple(
    Case(each, {"lab": ""}, _BY_FILE, {"memory.low": str(_LOW)}) if each.title == "LS" else Case(each)
    for each in pods.CASES
    if each.title != "no class"
)
BATCH, BURST = (next(each for each in CASES if each.title == title) for title in ("BE", "LS"))


def containerd_takes_over(_: Node) -> str:
    """containerd 2.2 in the place of Debian's, with NRI as it comes, before anything else runs."""
    for name in ("containerd", "containerd-shim-runc-v2"):
        shutil.copy(TOOLS / name, _PROGRAMS)
    Path("/etc/containerd/config.toml").write_text(_CONTAINERD)
    command = f"[Service]\nExecStart=\nExecStart={_PROGRAMS / 'containerd'}\nTimeoutStartSec=300s\n"
    drop_in("containerd.service", "lab.conf").write_text(command)
    systemctl("daemon-reload")
    systemctl("restart", "containerd.service")
    with CriClient(CONTAINERD) as client:
        version = client.wait_until_serving(PATIENCE_S).runtime_version
    expect("the socket of NRI is there", _NRI_SOCKET.exists(), True)
    return f"containerd {version}, {_NRI_SOCKET}"


def starts_in(mode: Mode, _: Node) -> str:
    """The configuration has the mode, `check-config` takes it, and the unit as it comes is started again."""
    _POLICIES.mkdir(mode=0o755, exist_ok=True)
    (_POLICIES / "lab.py").write_text(_POLICY)
    CONFIG.write_text(_configuration(mode))
    checked = run(PROGRAM, "check-config")
    systemctl("start", SOCKET_UNIT)
    took_s = restart(mode)
    # No problem, or the exit code is 1.
    run(PROGRAM, "status", *PATIENTLY)
    return f"{checked.splitlines()[0]}; serves after {took_s:.1f} s"


def _configuration(mode: Mode) -> str:
    # What starts between two modes runs already in the second one.
    return f'[daemon]\nmode = "{mode}"\n[ledger]\nlower_memory_limits = true\n'


def restart(mode: Mode) -> float:
    """Restarts the unit; returns how long it took until the daemon serves in the mode, with its records."""
    began_s = time.monotonic()
    systemctl("restart", SERVICE)
    wait_for_daemon(mode)
    return time.monotonic() - began_s


def wait_for_daemon(mode: Mode) -> own_pb2.GetStatusResponse:
    def serving() -> own_pb2.GetStatusResponse | None:
        try:
            status = daemon_status()
        except grpc.RpcError:
            # The socket is there before its services.
            return None
        is_connected = mode != "nri" or status.nri.is_connected
        return status if status.records.is_recovered and is_connected else None

    found = wait_until(serving, f"a daemon in mode {mode}", PATIENCE_S)
    expect("mode", found.daemon.mode, mode)
    return found


def daemon_status() -> own_pb2.GetStatusResponse:
    with CriClient(ENDPOINT) as client:
        api = own_grpc.RuntimeProxyStub(client.channel)
        request = own_pb2.GetStatusRequest()
        return api.GetStatus(request, timeout=PATIENCE_S, wait_for_ready=True)


def _explain(pod: Pod) -> own_pb2.ExplainResponse:
    with CriClient(ENDPOINT) as client:
        request = own_pb2.ExplainRequest(pod=pod.spec.uid)
        api = own_grpc.RuntimeProxyStub(client.channel)
        return api.Explain(request, timeout=PATIENCE_S, wait_for_ready=True)


def kubelets_endpoint(mode: Mode) -> Path:
    return ENDPOINT if mode == "proxy" else CONTAINERD


def has_its_values(mode: Mode, case: Case, node: Node) -> str:
    """Runs the pod: what its program has read before anything else, and what the kernel has in the end."""
    pod = node.pods[case.title] = _run(mode, case, node)
    seen = node.logs / pod.spec.uid / _FIRST
    wait_until(seen.exists, "what the program has seen", PATIENCE_S)
    first = dict(line.split("=", 1) for line in seen.read_text().splitlines())
    wanted = case.of_container()
    now = {_CONTAINER: _read(pod.container_cgroup), _POD: _read(pod.cgroup)}
    names = {"proxy": _CARRIED, "nri": (*_CARRIED, *_FILE_ONLY), "standalone": ()}[mode]
    expect("first seen", {name: first[name] for name in names}, {name: wanted[name] for name in names})
    if mode == "nri":
        expect("at once", now, {_CONTAINER: wanted, _POD: case.of_pod()})
    took_s = _wait_for_values({case.title: case}, node)
    shown = " ".join(f"{name}={text}" for name, text in wanted.items())
    return f"container: {shown}; after {took_s:.1f} s"


_CONTAINER, _POD = "container", "pod"


def _run(mode: Mode, case: Case, node: Node) -> Pod:
    requested = case.case.requested
    spec = SlicePodSpec(
        case.title.lower(),
        case.case.kube_qos,
        {**case.case.labels, **case.labels},
        case.case.annotations,
        (),
    )
    out = node.logs / spec.uid
    out.mkdir()
    container = ContainerSpec(
        resources=as_resources(requested),
        command=("/bin/sh", "-c", _SCRIPT),
        mounts={"/lab/out": str(out)},
    )
    spec = replace(spec, containers=(container,))
    make_slice(spec, requested)
    with CriClient(kubelets_endpoint(mode)) as client:
        sandbox, container_id = run_pod(client, spec, str(out), handler="")
    cgroup = ROOT / spec.cgroup_parent.lstrip("/")
    return Pod(spec, sandbox, container_id, cgroup, cgroup / f"cri-containerd-{container_id}.scope")


def make_slice(spec: SlicePodSpec, requested: pods.V1Values) -> None:
    """The pod's slice, with the properties that the kubelet sets."""
    files = as_v2(requested)
    properties = [f"{name}Accounting=yes" for name in ("CPU", "Memory", "IO", "Tasks")]
    properties.append(f"CPUWeight={files.cpu_weight}")
    if requested.cpu_quota_us > 0:
        properties.append(f"CPUQuota={requested.cpu_quota_us // 1000}%")
    systemctl("start", spec.slice_unit)
    systemctl("set-property", "--runtime", spec.slice_unit, *properties)


def _read(cgroup: Path) -> Files:
    return {name: (cgroup / name).read_text().strip() for name in (*_CARRIED, *_FILE_ONLY)}


def _wait_for_values(cases: Mapping[str, Case], node: Node, timeout_s: float = PATIENCE_S) -> float:
    """Waits until the files of these pods are as they should be; returns how long that took."""
    return _wait_for(_wanted_of(cases), node, timeout_s)


def _wait_for(wanted: Mapping[str, tuple[Files, Files]], node: Node, timeout_s: float) -> float:
    began_s, differing = time.monotonic(), ""

    def are_right() -> bool:
        nonlocal differing
        differing = "; ".join(_differences(wanted, node))
        return not differing

    try:
        wait_until(are_right, "the values", timeout_s)
    except TimeoutError:
        raise UnexpectedError(f"not within {timeout_s:.0f} s: {differing}") from None
    return time.monotonic() - began_s


def _differences(wanted: Mapping[str, tuple[Files, Files]], node: Node) -> Iterator[str]:
    for title, (of_container, of_pod) in wanted.items():
        pod = node.pods[title]
        for cgroup, texts in ((pod.container_cgroup, of_container), (pod.cgroup, of_pod)):
            found = _read(cgroup)
            for name, text in texts.items():
                if found[name] != text:
                    yield f"{title}: {cgroup.name}: {name}: {found[name]!r} instead of {text!r}"


def updates_keep_the_policy(mode: Mode, node: Node) -> str:
    """The kubelet writes the shares of a batch pod, and moves a pinned one."""
    with CriClient(kubelets_endpoint(mode)) as client:
        shares = api_pb2.LinuxContainerResources(cpu_period=100000, cpu_shares=2)
        update(client, node.pods["BE"].container_id, shares)
        update(client, node.pods["LSR"].container_id, api_pb2.LinuxContainerResources(cpuset_cpus="0-1"))
        update(client, node.pods["LS"].container_id, as_resources(BURSTABLE))
    # What no message carries systemd resets with the unit's other values: it is right again after the answer.
    at_once = [
        each
        for each in _differences(_wanted_of(_cases_of(node)), node)
        if not any(f": {name}: " in each for name in ("memory.min", "memory.low", "memory.high"))
    ]
    if at_once and mode != "standalone":
        raise UnexpectedError(f"after the updates: {'; '.join(at_once)}")
    return f"right after {_wait_for_values(_cases_of(node), node, _FEW_S):.1f} s"


def _cases_of(node: Node) -> dict[str, Case]:
    return {case.title: case for case in CASES if case.title in node.pods}


def _wanted_of(cases: Mapping[str, Case]) -> dict[str, tuple[Files, Files]]:
    return {title: (case.of_container(), case.of_pod()) for title, case in cases.items()}


def daemon_reload_is_put_right(node: Node) -> str:
    """systemd writes the cgroups of all its units again."""
    systemctl("daemon-reload")
    return f"right after {_wait_for_values(_cases_of(node), node):.1f} s"


def a_killed_daemon_comes_back(mode: Mode, node: Node) -> str:
    """`kill -9`, and a restart of the unit: each adopts the pods, and their values stay right."""
    killed = main_pid()
    os.kill(killed, signal.SIGKILL)
    wait_for_another_process(killed)
    expect("pods after kill -9", wait_for_daemon(mode).records.pods, len(node.pods))
    after_kill_s = _wait_for_values(_cases_of(node), node, _FEW_S)
    took_s = restart(mode)
    expect("containers after the restart", daemon_status().records.containers, len(node.pods))
    _wait_for_values(_cases_of(node), node, _FEW_S)
    return f"killed: right after {after_kill_s:.1f} s; restarted in {took_s:.1f} s"


def status_and_explain(mode: Mode, node: Node) -> str:
    """`status` has no problem, and `explain` names the way of each value."""
    text = run(PROGRAM, "status", *PATIENTLY)
    expect_text("status", text, "no problems")
    shown = run(PROGRAM, "explain", *PATIENTLY, f"lab/{node.pods['LS'].spec.name}")
    way = "file" if mode == "standalone" else "message"
    expect("ways of BE's container", _ways(node.pods["BE"])[_CONTAINER], {way})
    expect("ways of BE's pod", _ways(node.pods["BE"])[_POD], {"file"})
    expect("ways of LS's container", _ways(node.pods["LS"])[_CONTAINER], {"file"})
    return expect_text("explain", shown, r"^ *(cpu\.cfs_burst_us .*\S) *$")


def _ways(pod: Pod) -> dict[str, set[str]]:
    """The ways of the values that are in force; of the container and the pod."""
    names = {own_pb2.LEVEL_CONTAINER: _CONTAINER, own_pb2.LEVEL_POD: _POD}
    found: dict[str, set[str]] = {}
    for target in _explain(pod).targets:
        if target.level in names:
            found[names[target.level]] = {
                own_pb2.ExplainedField.Way.Name(each.way).removeprefix("WAY_").lower()
                for each in target.fields
                if each.HasField("applied")
            }
    return found


def gives_back(node: Node, cases: Mapping[str, Case] | None = None) -> str:
    """Stopped, every value stays; `restore` gives the kubelet's back; the pods go."""
    wanted = _wanted_of(cases or _cases_of(node))
    systemctl("stop", SOCKET_UNIT, SERVICE)
    try:
        _wait_for(wanted, node, timeout_s=0)
        printed = run(PROGRAM, "restore").splitlines()
        _wait_for({title: case.requested() for title, case in _cases_of(node).items()}, node, timeout_s=0)
        expect("a second restore", run(PROGRAM, "restore"), "nothing to restore")
    finally:
        # Those of the next mode have the same names.
        remove_all(node)
    return f"{len(printed) - 1} values of {len(wanted)} pods"


def remove_all(node: Node) -> None:
    with CriClient(CONTAINERD) as client:
        for title in list(node.pods):
            remove_pod(client, node.pods.pop(title).sandbox_id)


class _Load:
    """Pods that start, get their values, and end, one after another, whatever the mode is."""

    def __init__(self, mode: Mode, logs: Path) -> None:
        self.mode = mode
        self.times_s: list[float] = []
        self.failures: list[str] = []
        self._node = Node(logs)
        self._end = threading.Event()
        self._begun = threading.Lock()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    @contextmanager
    def running(self) -> Iterator[_Load]:
        self._thread.start()
        try:
            yield self
        finally:
            self._end.set()
            self._thread.join()

    def use(self, mode: Mode) -> None:
        """Pods are the endpoint's of this mode from now on; returns when none is another's."""
        with self._begun:
            self.mode = mode

    def wait_for_pods(self, count: int) -> None:
        """Waits until so many more pods have ended, or failed."""
        goal = len(self.times_s) + len(self.failures) + count
        wait_until(lambda: len(self.times_s) + len(self.failures) >= goal, "pods", count * PATIENCE_S)

    def _repeat(self) -> None:
        for number in itertools.count():
            if self._end.is_set():
                return
            try:
                self._one(f"load-{number}")
            # Whatever it is, the check says so.
            except Exception as error:  # noqa: BLE001  # the guard of the thread
                self.failures.append(f"load-{number}: {type(error).__name__}: {error}")

    def _one(self, title: str) -> None:
        case = replace(_BOUND_BATCH, case=replace(BATCH.case, title=title))
        with self._begun:
            pod = self._node.pods[title] = _run(self.mode, case, self._node)
        try:
            self.times_s.append(_wait_for_values({title: case}, self._node, _FOUND_S))
        finally:
            with self._begun, CriClient(kubelets_endpoint(self.mode)) as client:
                remove_pod(client, pod.sandbox_id)


_SWITCHES: tuple[Mode, ...] = ("standalone", "nri", "proxy", "standalone", "proxy", "nri", "standalone")
_CLASS = ROOT / "kubepods.slice" / "kubepods-besteffort.slice"
_BOUND = own_pb2.ClaimKey(
    target=own_pb2.ClaimTarget(qos_class="BestEffort"),
    field="cpu.cfs_quota_us",
    role=own_pb2.ExplainedClaim.ROLE_AT_MOST,
)
_BOUND_US = "150000"
# Under a bound on their class BE pods have no quota of their own.
_FREE = {"cpu.max": "max 100000"}
_BOUND_BATCH = replace(BATCH, container=_FREE, pod=_FREE)
_KEPT = {"BE": _BOUND_BATCH, "LS": BURST}


def some_run(node: Node) -> str:
    """Two pods, and a bound on their class, in stand-alone mode."""
    starts_in("standalone", node)
    node.pods["BE"] = _run("standalone", BATCH, node)
    node.pods["LS"] = _run("standalone", BURST, node)
    _wait_for_values(_cases_of(node), node)
    _claim_bound("before")
    wait_until(lambda: _class_quota() == _BOUND_US, "the bound", PATIENCE_S)
    took_s = _wait_for_values(_KEPT, node)
    node.before = _originals(node)
    return f"right after {took_s:.1f} s; {len(node.before)} originals"


def goes_on(former: Mode, mode: Mode, node: Node) -> str:
    """Pods keep values, records and originals in the next mode, the class its bound; others start and end."""
    with _Load(former, node.logs).running() as load:
        load.wait_for_pods(1)
        if former == "proxy":
            # As the kubelet is given the runtime's socket before the proxy goes.
            load.use(mode)
        CONFIG.write_text(_configuration(mode))
        took_s = restart(mode)
        load.use(mode)
        right_s = _wait_for_values(_KEPT, node, _FEW_S)
        expect("originals", _originals(node), node.before)
        expect("the bound", _class_quota(), _BOUND_US)
        # Each time the QoS manager comes back, or the lease lapses for good.
        _claim_bound(f"{former} to {mode}")
        load.wait_for_pods(2)
    expect("pods that failed", load.failures, [])
    # The lease may have lapsed meanwhile.
    problems = [
        each for each in daemon_status().problems if not each.startswith("cpu-suppress does not renew")
    ]
    expect("problems", problems, [])
    pods = f"{len(load.times_s)} pods came and went, right after {max(load.times_s):.1f} s at most"
    return f"serves after {took_s:.1f} s, right {right_s:.1f} s later; {pods}"


def _claim_bound(session: str) -> None:
    """Claims a bound as the QoS manager does; when its lease lapses the daemon holds it for 5 minutes."""
    claim = own_pb2.Claim(key=_BOUND, value=_BOUND_US)
    request = own_pb2.SetClaimsRequest(
        owner="cpu-suppress", session=session, sequence=1, is_whole=True, claims=[claim]
    )
    with CriClient(ENDPOINT.parent / "admin" / "api.sock") as client:
        answer = own_grpc.AdminStub(client.channel).SetClaims(
            request, timeout=PATIENCE_S, wait_for_ready=True
        )
    expect("the claim", answer.outcome, own_pb2.SetClaimsResponse.OUTCOME_TAKEN)


def _class_quota() -> str:
    return (_CLASS / "cpu.max").read_text().split()[0]


def _originals(node: Node) -> Files:
    """What restore would write, of pods and containers."""
    return {
        f"{title}: {target.cgroup}: {each.name}": each.original
        for title, pod in node.pods.items()
        for target in _explain(pod).targets
        if target.level in (own_pb2.LEVEL_CONTAINER, own_pb2.LEVEL_POD)
        for each in target.fields
        if each.HasField("original")
    }


def gives_all_back(node: Node) -> str:
    """After all modes: the values of both pods, and the bound of the class."""
    text = gives_back(node, _KEPT)
    expect("quota of the class", _class_quota(), "max")
    return text


def leaving_the_proxy_is_refused(_: Node) -> str:
    """While a kubelet's endpoint is our socket: `check-config` and the start say so."""
    systemctl("start", SOCKET_UNIT)
    CONFIG.write_text(_configuration("proxy"))
    restart("proxy")
    with _kubelet(f"--container-runtime-endpoint=unix://{ENDPOINT}"):
        CONFIG.write_text(_configuration("nri"))
        refused = run(PROGRAM, "check-config", code=2)
        expect_text("check-config", refused, "a kubelet still uses the proxy's socket")
        journal = Journal()
        systemctl("restart", SERVICE, code=1)
        journal.wait_for("daemon.mode: a kubelet still uses the proxy's socket")
        CONFIG.write_text(_configuration("proxy"))
        # systemd has gone on trying.
        wait_for_daemon("proxy")
        with CriClient(ENDPOINT) as client:
            client.wait_until_serving(PATIENCE_S)
    return refused.splitlines()[0]


@contextmanager
def _kubelet(*flags: str) -> Iterator[None]:
    """A process with the name and the flags of a kubelet; it waits for its end."""
    program = Path("/tmp/kubelet")
    program.symlink_to(sys.executable)
    process = subprocess.Popen([program, "-S", "-c", "import signal; signal.pause()", *flags])
    try:
        wait_until(
            lambda: Path(f"/proc/{process.pid}/comm").read_text() == "kubelet\n", "its name", PATIENCE_S
        )
        yield
    finally:
        process.kill()
        process.wait()
        program.unlink()


def _checks(mode: Mode) -> Iterator[Check]:
    named: list[tuple[str, Callable[[Node], str]]] = [
        ("the unit as it comes serves", partial(starts_in, mode)),
        *((f"values of {case.title}", partial(has_its_values, mode, case)) for case in CASES),
        ("UpdateContainerResources keeps what policies own", partial(updates_keep_the_policy, mode)),
        ("systemctl daemon-reload: values are put right", daemon_reload_is_put_right),
        ("kill -9 and restart: the pods are adopted", partial(a_killed_daemon_comes_back, mode)),
        ("status and explain", partial(status_and_explain, mode)),
        ("restore gives back what the kubelet asked for", gives_back),
    ]
    return (Check(f"mode {mode}: {name}", function) for name, function in named)


RUNTIME = Check("containerd 2.2 takes the place of Debian's", containerd_takes_over)
CHECKS = (
    *_checks("nri"),
    *_checks("standalone"),
    *_checks("proxy"),
    Check("the proxy is not left while a kubelet needs it", leaving_the_proxy_is_refused),
    Check("from mode to mode: pods and a bound of stand-alone mode", some_run),
    *(
        Check(f"from mode to mode: {former} to {mode} under load", partial(goes_on, former, mode))
        for former, mode in itertools.pairwise(_SWITCHES)
    ),
    Check("from mode to mode: restore gives all back", gives_all_back),
)
