"""Runs the demo: a runtime, the real daemon in front of it, and a pod of each QoS class through both."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1.api_pb2 import DESCRIPTOR as OWN_API
from cri_api.runtimeproxy.v1.api_pb2 import (
    Daemon,
    ExplainedTarget,
    ExplainRequest,
    ExplainResponse,
    GetStatusRequest,
    PolicyAnswer,
)
from runtimeproxy.cgroups.mounts import DEFAULT_ROOT
from runtimeproxy.commands.explain import show_explanation
from runtimeproxy.commands.output import Page
from runtimeproxy.config.parsing import TEMPORARY_SUFFIX_BYTES, parse_endpoint
from runtimeproxy.demo.live import OBJECTS_FOLDER, PERCENT, LiveChange, show_strategy, write_strategy
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks.audit import TROUBLE, AuditKind
from runtimeproxy.hooks.levels import LEVELS_POLICY
from runtimeproxy.http2.client import RpcError
from runtimeproxy.katalyst.levels import QOS_LEVEL
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.stubs import BlockingClient
from runtimeproxy.testing import (
    CgroupDriver,
    CgroupFiles,
    FakeRuntime,
    NriAdaptation,
    NriRuntimeState,
    PodCgroups,
    RuntimeState,
)
from runtimeproxy.testing.builders import (
    KubeletQos,
    container_config,
    create_container_request,
    default_resources,
    kubelet_cgroup_parent,
    pod_sandbox_config,
)
from runtimeproxy.testing.cgroups import container_path, parent_path

if TYPE_CHECKING:
    from cri_api.runtime.v1.api_pb2_grpc import ImageServiceStub, RuntimeServiceStub
    from cri_api.runtimeproxy.v1.api_pb2_grpc import RuntimeProxyStub
    from runtimeproxy.config.settings import Settings

USUAL_SOCKETS: Final = ("/run/containerd/containerd.sock", "/run/crio/crio.sock")
"""Where containerd and CRI-O listen by default."""

RUN_LABEL: Final = "koord-runtime-proxy/demo"
"""Label of the demo's pods; its value differs in each run."""

NAMESPACE: Final = "demo"
"""Of the demo's pods."""

CGROUP_TREE: Final = "koordproxydemo"
"""Name of the cgroup (or slice) of the demo's pods: the kubelet removes unknown pods from its own."""

START_TIMEOUT_S: Final = 300.0
CALL_TIMEOUT_S: Final = 20.0
FOLLOWED_S: Final = 15.0
"""How long a daemon that only follows what runs may take for a pod."""
_PASSING: Final = frozenset({"turn", "no-cgroup", "cgroup-unknown", "base-unknown", "unreadable"})
"""Causes of values that are not in force yet, see `ledger.unapplied`."""
_CRI: Final = api_pb2.DESCRIPTOR.services_by_name
_PROBE_TIMEOUT_S: Final = 5.0
_WIDTH: Final = 80
_SOCKET: Final = "proxy.sock"
_LOCK: Final = "front-end.lock"
_POLL_S: Final = 0.02
_NOTIFY_SOCKET: Final = "notify"
_LEVELS: Final = f"[policies.{LEVELS_POLICY}]\nenabled = true\n"
_NOTIFICATION_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class DemoPod:
    """One pod with one container.

    Attributes:
        name: of the pod; its container is called `main`.
        qos: Koordinator's QoS class; empty for none.
        kubelet_qos: decides the cgroup parent.
        annotations: the scheduler's decisions, and Katalyst's level.
        level: Katalyst's level; empty for none.
    """

    name: str
    qos: str
    kubelet_qos: KubeletQos
    annotations: Mapping[str, str] = field(default_factory=dict)
    level: str = ""

    @property
    def title(self) -> str:
        if self.level:
            return f"{self.name}, Katalyst's {self.level}"
        return f"{self.name}, QoS class {self.qos}" if self.qos else f"{self.name}, no QoS class"


_CPUSET: Final = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "0"})}
_GPU: Final = {
    "scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 0}, {"minor": 1}]})
}
_BATCH: Final = {
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {
            "containers": {
                "main": {
                    "requests": {
                        "kubernetes.io/batch-cpu": "500",
                        "kubernetes.io/batch-memory": "128Mi",
                    },
                    "limits": {
                        "kubernetes.io/batch-cpu": "1000",
                        "kubernetes.io/batch-memory": "256Mi",
                    },
                }
            }
        }
    )
}

DEMO_PODS: Final = (
    DemoPod("trading", "LSE", KubeletQos.GUARANTEED, _CPUSET),
    DemoPod("search", "LSR", KubeletQos.GUARANTEED, _CPUSET),
    DemoPod("inference", "LS", KubeletQos.BURSTABLE, _GPU),
    DemoPod("spark", "BE", KubeletQos.BESTEFFORT, _BATCH),
    DemoPod(
        "etl",
        "",
        KubeletQos.BESTEFFORT,
        {QOS_LEVEL: QosLevel.RECLAIMED.value, **_BATCH},
        level=QosLevel.RECLAIMED,
    ),
    DemoPod("logging", "SYSTEM", KubeletQos.BURSTABLE),
    DemoPod("web", "", KubeletQos.BURSTABLE),
)
"""One pod of each class, and one with a level of Katalyst's; no policy selects the last two."""

EXPLAINED_POD: Final = "spark"
"""The pod of which `explain` is shown."""

LIVE_POD: Final = DemoPod("shop", "LS", KubeletQos.GUARANTEED)
"""The pod that runs while a strategy comes and goes."""


def kubelet_resources(pod: DemoPod) -> api_pb2.LinuxContainerResources:
    """The kubelet's values: one core and 256 MiB for a guaranteed pod, next to nothing for others."""
    if pod.kubelet_qos is not KubeletQos.GUARANTEED:
        return default_resources()
    return api_pb2.LinuxContainerResources(
        cpu_period=100_000,
        cpu_quota=100_000,
        cpu_shares=1024,
        memory_limit_in_bytes=256 * 1024 * 1024,
        oom_score_adj=-997,
    )


class RunningPod(NamedTuple):
    """A pod that runs.

    Attributes:
        id: of its sandbox.
        cgroups: path of the pod's cgroup and of its container's, by name.
    """

    id: str
    cgroups: Mapping[str, str]


class DemoError(RuntimeProxyError):
    """The demo cannot be shown; the text says why."""


@dataclass(frozen=True, slots=True)
class DemoRuntime:
    """A runtime that can run the demo's pods.

    Attributes:
        socket_path: its socket.
        name: name and version by its own account.
        image: an image that it has; the demo pulls none.
        driver: its form of cgroup parents.
        nri_socket: where its plugins connect; empty if it has none.
    """

    socket_path: str
    name: str
    image: str
    driver: CgroupDriver
    nri_socket: str = ""


class Shown(NamedTuple):
    """What happened to the pods.

    Attributes:
        changes: of the pods of each class, when they were created.
        live: of the pod that ran while a strategy came and went.
        explanation: of `EXPLAINED_POD`, while it ran.
        untouched: by pod and policy, why the policy changes nothing.
    """

    changes: list[ShownChange]
    live: list[LiveChange]
    explanation: ExplainResponse | None = None
    untouched: Mapping[str, Mapping[str, str]] = MappingProxyType({})


class ShownChange(NamedTuple):
    """A field that a policy changed, or failed to change.

    Attributes:
        pod: name of the pod.
        policy: name of the policy.
        reason: why it changes the field, or why it failed.
        container: the container's name, or `pod` for the pod's own cgroup and configuration.
        field: such as `resources.cpu_shares`.
        values: from and to; empty if it failed.
    """

    pod: str
    policy: str
    reason: str
    container: str
    field: str
    values: str


def run_demo(settings: Settings) -> int:
    """Drives a pod of each QoS class in a mode of the daemon; returns 0 if policies changed something.

    In other modes than `proxy` the daemon sees all pods of a runtime, and would change those of a real one.

    Raises:
        DemoError: the proxy did not start.
    """
    # Other usual ends of a process clean up as Ctrl-C does, unless they are ignored (nohup).
    for end in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(end) is signal.SIG_DFL:
            signal.signal(end, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="koord-runtime-proxy-demo-") as name:
        folder = Path(name)
        try:
            parse_endpoint(str(folder / _SOCKET), spare_bytes=TEMPORARY_SUFFIX_BYTES)
        except ValueError as error:
            raise DemoError(f"{error}; let TMPDIR name a folder with a shorter path") from None
        mode = settings.daemon.mode
        runtime, reason = None, f"in mode {mode} the demo would change other pods of a real one, too"
        if mode == "proxy":
            runtime, reason = find_runtime((settings.proxy.runtime_endpoint, *USUAL_SOCKETS))
        if runtime is not None:
            print(f"runtime: {runtime.name} on {runtime.socket_path}")
            shown = _drive(folder, runtime)
            if shown is not None:
                return _report(*shown)
            reason = "that runtime cannot run the pods of the demo"
        print(f"runtime: the built-in fake ({reason})")
        return _report(*(_drive_on_fake_runtime(folder, mode) or Shown([], [])), mode=mode)


def find_runtime(candidates: Iterable[str]) -> tuple[DemoRuntime | None, str]:
    """Returns the first runtime that answers and has an image, or None and why."""
    reason = "no runtime listens on its usual socket"
    for path in dict.fromkeys(str(Path(candidate).resolve()) for candidate in candidates):
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(path):
                continue
        try:
            runtime = _probe(path)
        except RpcError as error:
            reason = f"{path} does not answer: {error.code.name}"
            continue
        if runtime is not None:
            return runtime, ""
        reason = f"{path} has no image, and the demo pulls none"
    return None, reason


def _probe(path: str) -> DemoRuntime | None:
    """Returns a runtime with the smallest of its images; None if it has no image."""
    with BlockingClient(path) as client:
        runtime: RuntimeServiceStub = client.stub(_CRI["RuntimeService"])
        images: ImageServiceStub = client.stub(_CRI["ImageService"])
        version = runtime.Version(api_pb2.VersionRequest(), timeout=_PROBE_TIMEOUT_S)
        listed = images.ListImages(api_pb2.ListImagesRequest(), timeout=_PROBE_TIMEOUT_S).images
        names = [(image.size, image.repo_tags[0]) for image in listed if image.repo_tags]
        if not names:
            return None
        driver = CgroupDriver.CGROUPFS
        # Runtimes before CRI 1.28 do not know the call; most of them use cgroupfs.
        with contextlib.suppress(RpcError):
            config = runtime.RuntimeConfig(api_pb2.RuntimeConfigRequest(), timeout=_PROBE_TIMEOUT_S)
            if config.HasField("linux") and config.linux.cgroup_driver == api_pb2.SYSTEMD:
                driver = CgroupDriver.SYSTEMD
        return DemoRuntime(path, f"{version.runtime_name} {version.runtime_version}", min(names)[1], driver)


def _drive_on_fake_runtime(folder: Path, mode: str) -> Shown | None:
    """Drives the pods on the built-in fake, with plain files in place of cgroups."""
    cgroups = CgroupFiles(folder / "cgroup", version=2)
    pod_cgroups = PodCgroups(CgroupDriver.CGROUPFS, cgroups)
    nri_socket = str(folder / "nri.sock") if mode == "nri" else ""
    if nri_socket:
        state: RuntimeState = NriRuntimeState(NriAdaptation(nri_socket, record=False), pod_cgroups)
    else:
        state = RuntimeState(pod_cgroups)
    with FakeRuntime(folder / "fake.sock", state=state) as fake:
        driver = CgroupDriver.CGROUPFS
        runtime = DemoRuntime(str(fake.socket_path), "fake-runtime", "busybox", driver, nri_socket)
        return _drive(folder, runtime, cgroups, mode)


def _drive(
    folder: Path, runtime: DemoRuntime, cgroups: CgroupFiles | None = None, mode: str = "proxy"
) -> Shown | None:
    """Starts the daemon and drives the pods; returns what happened, None if the runtime refused a pod.

    Args:
        folder: for all files.
        runtime: runs the pods.
        cgroups: plain files, where the pods get their cgroups first, as by a kubelet; None for the kernel's.
        mode: of the daemon.
    """
    log = folder / "proxy.log"
    cgroup_root = DEFAULT_ROOT if cgroups is None else cgroups.root
    write_strategy(folder, is_set=False)
    try:
        with (
            _daemon(folder, log, runtime, cgroup_root, mode) as socket_path,
            BlockingClient(str(socket_path)) as client,
            BlockingClient(str(socket_path) if mode == "proxy" else runtime.socket_path) as kubelet,
        ):
            calls: RuntimeServiceStub = kubelet.stub(_CRI["RuntimeService"])
            own: RuntimeProxyStub = client.stub(OWN_API.services_by_name["RuntimeProxy"])
            _wait_until_asked(own, is_plugin=mode == "nri")
            explanations: dict[str, ExplainResponse] = {}
            for pod in DEMO_PODS:
                running = _run_pod(calls, pod, runtime, cgroups, folder.name)
                explanations[pod.name] = _explained(own, pod, waits=mode == "standalone")
                _remove_pod(calls, running.id)
            running = _run_pod(calls, LIVE_POD, runtime, cgroups, folder.name)
            live = show_strategy(folder, cgroup_root, running.cgroups)
            _remove_pod(calls, running.id)
    except RpcError as error:
        print(f"the runtime refused a pod: {error}")
        return None
    finally:
        _remove_pods(runtime, folder.name)
        _remove_cgroups(cgroup_root)
    untouched = {name: _why_untouched(each) for name, each in explanations.items()}
    changes = _changes(log.read_text(encoding="utf-8"), with_files=mode == "standalone")
    return Shown(changes, live, explanations[EXPLAINED_POD], untouched)


def _wait_until_asked(own: RuntimeProxyStub, *, is_plugin: bool) -> None:
    """Waits until policies are asked of each pod: they are loaded, and the runtime asks its plugin."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        status = own.GetStatus(GetStatusRequest(), timeout=CALL_TIMEOUT_S)
        if status.daemon.state == Daemon.STATE_SERVING and (status.nri.is_connected or not is_plugin):
            return
        if time.monotonic() > deadline_s:
            raise DemoError("the runtime does not ask the daemon as its plugin, or policies are not loaded")
        time.sleep(_POLL_S)


def _explained(own: RuntimeProxyStub, pod: DemoPod, *, waits: bool) -> ExplainResponse:
    """The explanation of a running pod; of a daemon that only follows, once it has written its values."""
    request = ExplainRequest(pod=f"{NAMESPACE}/{pod.name}")
    deadline_s = time.monotonic() + FOLLOWED_S
    while True:
        found, is_late = None, time.monotonic() > deadline_s
        try:
            found = own.Explain(request, timeout=CALL_TIMEOUT_S)
        except RpcError:
            if not waits or is_late:
                raise
        if found is not None and (not waits or is_late or _is_applied(found)):
            return found
        time.sleep(_POLL_S)


def _is_applied(explanation: ExplainResponse) -> bool:
    """Whether all that policies want of a pod and its container is in force, or said not to be."""
    targets = explanation.targets[:2]
    return any(target.container for target in targets) and all(map(_is_target_applied, targets))


def _is_target_applied(target: ExplainedTarget) -> bool:
    # The answers are of now: what they want may not have been written, nor even noted, yet.
    wanting = {each.policy for each in target.policies if each.outcome == PolicyAnswer.OUTCOME_CHANGES}
    fields = [field for field in target.fields if field.claims or field.unapplied]
    owners = {claim.owner for field in fields for claim in field.claims}
    owners |= {owner for field in fields for each in field.unapplied for owner in each.owners}
    if not wanting <= owners or any(each.cause in _PASSING for field in fields for each in field.unapplied):
        return False
    return all(field.HasField("applied") or field.unapplied for field in fields)


@contextlib.contextmanager
def _daemon(
    folder: Path, log: Path, runtime: DemoRuntime, cgroup_root: Path, mode: str = "proxy"
) -> Iterator[Path]:
    """The real daemon, in a process of its own, with all its paths in the folder."""
    socket_path = folder / _SOCKET
    config = folder / "config.toml"
    node = f'[node]\nobjects_dir = "{folder / OBJECTS_FOLDER}"\n'
    daemon = f'[daemon]\nmode = "{mode}"\nlock = "{folder / _LOCK}"\n'
    nri = f'[nri]\nsocket = "{runtime.nri_socket}"\n' if runtime.nri_socket else ""
    config.write_text(f'{daemon}{nri}[cgroups]\nroot = "{cgroup_root}"\n{node}{_LEVELS}', encoding="utf-8")
    command = (
        *(sys.executable, "-m", "runtimeproxy"),
        *("--koord-runtimeproxy-endpoint", str(socket_path)),
        *("--remote-runtime-service-endpoint", runtime.socket_path),
        *("--config", str(config), "--state-dir", str(folder / "state")),
        *("--hook-config-dir", str(folder / "hookserver.d"), "--log-format", "json"),
    )
    with (
        log.open("w", encoding="utf-8") as sink,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified,
    ):
        notify_path = folder / _NOTIFY_SOCKET
        notify_path.unlink(missing_ok=True)  # of the daemon in front of another runtime
        notified.bind(str(notify_path))
        with subprocess.Popen(  # noqa: S603  # this program itself
            command,
            stderr=sink,
            env={**os.environ, "NOTIFY_SOCKET": str(notify_path)},
            process_group=0,  # Ctrl-C is for the demo alone, which ends the daemon when the pods are gone
        ) as process:
            try:
                if not _is_ready(process, notified):
                    raise DemoError(f"the proxy did not start: {_last_message(log)}")
                yield socket_path
            finally:
                process.terminate()
                process.wait(START_TIMEOUT_S)


def _is_ready(process: subprocess.Popen[bytes], notified: socket.socket) -> bool:
    """Waits until the daemon serves; returns False if it has ended or does not start in time."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    ended = os.pidfd_open(process.pid)
    try:
        while (left_s := deadline_s - time.monotonic()) > 0:
            found, _, _ = select.select((notified.fileno(), ended), (), (), left_s)
            if notified.fileno() in found and b"READY=1" in notified.recv(_NOTIFICATION_BYTES).split(b"\n"):
                return True
            if found == [ended]:
                return False
    finally:
        os.close(ended)
    return False


def _last_message(log: Path) -> str:
    """The last message of the log: a line of JSON, or plain text if the daemon ended before it could log."""
    lines = log.read_text(encoding="utf-8").splitlines()
    last = lines[-1] if lines else "its log is empty"
    try:
        return str(json.loads(last)["message"])
    except (ValueError, TypeError, KeyError):
        return last


def _run_pod(
    calls: RuntimeServiceStub,
    pod: DemoPod,
    runtime: DemoRuntime,
    cgroups: CgroupFiles | None,
    run: str,
) -> RunningPod:
    """Creates and starts a pod with one container, as the kubelet does."""
    uid = str(uuid.uuid4())
    config = pod_sandbox_config(
        pod.name,
        namespace=NAMESPACE,
        uid=uid,
        qos=pod.qos,
        labels={RUN_LABEL: run},
        annotations=pod.annotations,
        cgroup_parent=kubelet_cgroup_parent(uid, pod.kubelet_qos, runtime.driver, CGROUP_TREE),
        host_network=True,
    )
    if cgroups is not None:
        cgroups.make(config.linux.cgroup_parent)
    resources = kubelet_resources(pod)
    config.linux.resources.CopyFrom(resources)  # the sum over the containers, of which there is one
    sandbox = api_pb2.RunPodSandboxRequest(config=config)
    pod_id = calls.RunPodSandbox(sandbox, timeout=CALL_TIMEOUT_S).pod_sandbox_id
    wanted = container_config("main", image=runtime.image, command=(), pod=config, resources=resources)
    request = create_container_request(pod_id, wanted, config)
    container_id = calls.CreateContainer(request, timeout=CALL_TIMEOUT_S).container_id
    start = api_pb2.StartContainerRequest(container_id=container_id)
    with contextlib.suppress(RpcError):  # the image may have no command of its own
        calls.StartContainer(start, timeout=CALL_TIMEOUT_S)
    parent = config.linux.cgroup_parent
    paths = {
        "pod": parent_path(parent, runtime.driver),
        "main": container_path(parent, container_id, runtime.driver),
    }
    return RunningPod(pod_id, paths)


def _remove_pod(calls: RuntimeServiceStub, pod_id: str) -> None:
    calls.StopPodSandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=pod_id), timeout=CALL_TIMEOUT_S)
    calls.RemovePodSandbox(api_pb2.RemovePodSandboxRequest(pod_sandbox_id=pod_id), timeout=CALL_TIMEOUT_S)


def _remove_pods(runtime: DemoRuntime, run: str) -> None:
    """Removes the pods that a run left, at the runtime, because the proxy may have failed."""
    label = api_pb2.PodSandboxFilter(label_selector={RUN_LABEL: run})
    with BlockingClient(runtime.socket_path) as client, contextlib.suppress(RpcError):
        calls: RuntimeServiceStub = client.stub(_CRI["RuntimeService"])
        listing = api_pb2.ListPodSandboxRequest(filter=label)
        for pod in calls.ListPodSandbox(listing, timeout=_PROBE_TIMEOUT_S).items:
            with contextlib.suppress(RpcError):
                _remove_pod(calls, pod.id)


def _remove_cgroups(root: Path) -> None:
    """Removes the cgroups that the runtime left; systemd collects its slices itself."""
    for hierarchy in (root, *root.glob("*/")):
        folders = (hierarchy / CGROUP_TREE).glob("**/")
        for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _changes(log: str, *, with_files: bool = False) -> list[ShownChange]:
    """Reads the audit lines of the daemon's log, where libraries may have written lines of their own.

    Args:
        log: of the daemon.
        with_files: whether values of what runs count, which go by file and have lines of another logger.
    """
    changes: list[ShownChange] = []
    for line in log.splitlines():
        if with_files and '"runtimeproxy.ledger.change_log"' in line:
            changes += _written(json.loads(line))
        if '"runtimeproxy.audit"' not in line:
            continue
        entry = json.loads(line)
        pod, container = entry["pod"].split("/")[-1], entry["container"] or "pod"
        for each in entry["changes"]:
            if entry["kind"] == AuditKind.CHANGED:
                reason, values = each["reason"], f"{each['from'] or '-'} -> {each['to'] or '-'}"
            elif entry["kind"] in TROUBLE:
                reason, values = f"{entry['kind']}: {each['reason']}", ""
            else:
                continue
            changes.append(ShownChange(pod, each["policy"], reason, container, each["field"], values))
    return changes


def _written(entry: Mapping[str, Any]) -> list[ShownChange]:
    pod = entry["pod"].split("/")[-1]
    return [
        ShownChange(
            *(pod, each["policy"], each["reason"], each["container"] or "pod", each["field"]),
            f"{each['from'] or '-'} -> {each['to'] or '-'}",
        )
        for each in entry["changes"]
    ]


def _report(
    changes: list[ShownChange],
    live: list[LiveChange],
    explanation: ExplainResponse | None = None,
    untouched: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    *,
    mode: str = "proxy",
) -> int:
    """Prints each pod with its changes, or why there are none; returns 1 if nothing was changed at all."""
    names = max((len(name) for reasons in untouched.values() for name in reasons), default=0)
    places = [(each.container, each.field) for each in changes]
    places += [(each.container, each.field) for each in live]
    containers = max((len(container) for container, _ in places), default=0)
    fields = max((len(field) for _, field in places), default=0)
    for pod in DEMO_PODS:
        own = [each for each in changes if each.pod == pod.name]
        print(f"\n{pod.title}{'' if own else ': untouched'}")
        for name, reason in {} if own else untouched.get(pod.name, {}).items():
            print(f"  {name:<{names}}  {reason}")
        for name, group in itertools.groupby(own, key=lambda each: each.policy):
            print(f"  {name}")
            for each in group:
                print(f"    {each.container:<{containers}}  {each.field:<{fields}}  {each.values}".rstrip())
                print(f"    {'':<{containers}}    {each.reason}")
    print(f"\n{LIVE_POD.name}, QoS class {LIVE_POD.qos}, while a strategy comes and goes")
    print(f"  cpu-burst: {PERCENT} percent of the limit (cpu-burst-config)")
    for change in live:
        values = " -> ".join(change.values)
        print(f"    {change.container:<{containers}}  {change.field:<{fields}}  {values}")
    if not live:
        print("    the kernel has no CPU burst, or the container did not start")
    touched = {each.pod for each in changes if each.values}
    if any(len(each.values) > 1 for each in live):
        touched.add(LIVE_POD.name)
    total, changed = len(DEMO_PODS) + 1, len(touched)
    print("\n-: not set; -1: unlimited; <set>: values of variables are never logged")
    how = "through the proxy" if mode == "proxy" else f"in mode {mode}"
    print(f"{total} pods ran {how}: {changed} changed, {total - changed} untouched")
    if explanation is not None:
        print(f"\nkoord-runtime-proxy explain {NAMESPACE}/{EXPLAINED_POD}, while it ran:\n", flush=True)
        show_explanation(explanation, Page(width=_WIDTH))
    return 0 if changed else 1


def _why_untouched(explanation: ExplainResponse) -> dict[str, str]:
    """Why each policy changes nothing, as `explain --all` says it."""
    answers = (each for target in explanation.targets for each in target.policies)
    reasons = {each.policy: each.reason for each in answers}
    fields = (each for target in explanation.targets for each in target.fields)
    for each in (each for found in fields for each in found.unapplied):
        reasons |= dict.fromkeys(each.owners, each.reason)
    return reasons
