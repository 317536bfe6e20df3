"""Runs the demo: a runtime, the real daemon in front of it, pods through it, the audit as a table."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.cgroups import DEFAULT_ROOT
from runtimeproxy.config.validation import TEMPORARY_SUFFIX_BYTES, parse_endpoint
from runtimeproxy.demo.cgroups import demo_cgroup_parent, remove_demo_cgroups
from runtimeproxy.demo.pods import DEMO_PODS, DemoPod, kubelet_resources
from runtimeproxy.demo.runtime import (
    RUN_LABEL,
    USUAL_SOCKETS,
    DemoRuntime,
    channel,
    find_runtime,
    remove_demo_pods,
)
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, PodCgroups, RuntimeState
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings

START_TIMEOUT_S: Final = 8.0
CALL_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.02
_SOCKET: Final = "proxy.sock"
_COLUMNS: Final = ("container", "field", "from", "to", "policy", "reason")

Row = tuple[str, ...]


class DemoError(RuntimeProxyError):
    """The demo cannot be shown; the text says why."""


def run_demo(settings: Settings) -> int:
    """Drives a pod of each QoS class through the proxy; returns 0 if policies changed something.

    Raises:
        DemoError: the proxy did not start.
    """
    _end_as_by_ctrl_c()
    with tempfile.TemporaryDirectory(prefix="koord-runtime-proxy-demo-") as folder:
        _check_length(Path(folder))
        runtime, reason = find_runtime((settings.proxy.runtime_endpoint, *USUAL_SOCKETS))
        if runtime is not None:
            print(f"runtime: {runtime.name} on {runtime.socket_path}")
            rows = _driven(Path(folder), runtime)
            if rows is not None:
                return _report(rows)
            reason = "that runtime cannot run the pods of the demo"
        print(f"runtime: the built-in fake ({reason})")
        return _report(_on_fake_runtime(Path(folder)) or [])


def _check_length(folder: Path) -> None:
    try:
        parse_endpoint(str(folder / _SOCKET), spare_bytes=TEMPORARY_SUFFIX_BYTES)
    except ValueError as error:
        raise DemoError(f"{error}; let TMPDIR name a folder with a shorter path") from None


def _end_as_by_ctrl_c() -> None:
    """Lets the other usual ends of a process clean up as well, unless they are ignored (nohup)."""
    for end in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(end) is signal.SIG_DFL:
            signal.signal(end, signal.default_int_handler)


def _on_fake_runtime(folder: Path) -> list[Row] | None:
    """Drives the pods on the built-in fake, with plain files in place of cgroups."""
    cgroups = CgroupFiles(folder / "cgroup", version=2)
    state = RuntimeState(PodCgroups(CgroupDriver.CGROUPFS, cgroups))
    with FakeRuntime(folder / "fake.sock", state=state) as fake:
        runtime = DemoRuntime(str(fake.socket_path), "fake-runtime", "busybox", CgroupDriver.CGROUPFS)
        return _driven(folder, runtime, cgroups)


def _driven(folder: Path, runtime: DemoRuntime, cgroups: CgroupFiles | None = None) -> list[Row] | None:
    """Starts the daemon, drives the pods; returns the table's rows, None if the runtime refused a pod.

    Args:
        folder: for everything that is made.
        runtime: what runs the pods.
        cgroups: plain files, where the pods get their cgroups first, as by a kubelet; None for the kernel's.
    """
    log = folder / "proxy.log"
    cgroup_root = DEFAULT_ROOT if cgroups is None else cgroups.root
    try:
        with _proxy(folder, log, runtime, cgroup_root) as socket_path, channel(str(socket_path)) as opened:
            calls = api_pb2_grpc.RuntimeServiceStub(opened)
            for pod in DEMO_PODS:
                _run_pod(calls, pod, runtime, cgroups, folder.name)
    except grpc.RpcError as error:
        print(f"the runtime refused a pod: {error.code().name}: {error.details()}")
        return None
    finally:
        remove_demo_pods(runtime, folder.name)
        remove_demo_cgroups(cgroup_root)
    return _rows(log.read_text(encoding="utf-8"))


@contextlib.contextmanager
def _proxy(folder: Path, log: Path, runtime: DemoRuntime, cgroup_root: Path) -> Iterator[Path]:
    """The real daemon, in a process of its own, with all its paths in the folder."""
    socket_path = folder / _SOCKET
    config = folder / "config.toml"
    config.write_text(f'[cgroups]\nroot = "{cgroup_root}"\n', encoding="utf-8")
    command = (
        *(sys.executable, "-m", "runtimeproxy"),
        *("--koord-runtimeproxy-endpoint", str(socket_path)),
        *("--remote-runtime-service-endpoint", runtime.socket_path),
        *("--config", str(config), "--state-dir", str(folder / "state")),
        *("--hook-config-dir", str(folder / "hookserver.d"), "--log-format", "json"),
    )
    with (
        log.open("w", encoding="utf-8") as sink,
        subprocess.Popen(  # noqa: S603  # this program itself
            command,
            stderr=sink,
            process_group=0,  # Ctrl-C is for the demo alone, which ends the daemon when the pods are gone
        ) as process,
    ):
        try:
            if not _comes(socket_path, process):
                raise DemoError(f"the proxy did not start: {_last_message(log)}")
            yield socket_path
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)


def _comes(socket_path: Path, process: subprocess.Popen[bytes]) -> bool:
    """Waits for the proxy's socket; returns whether it came in time."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not socket_path.exists():
        if process.poll() is not None or time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _last_message(log: Path) -> str:
    """What the proxy said last: a line of JSON, or plain text where it ended before it could log."""
    lines = log.read_text(encoding="utf-8").splitlines()
    last = lines[-1] if lines else "it said nothing"
    try:
        return str(json.loads(last)["message"])
    except (ValueError, TypeError, KeyError):
        return last


def _run_pod(
    calls: api_pb2_grpc.RuntimeServiceStub,
    pod: DemoPod,
    runtime: DemoRuntime,
    cgroups: CgroupFiles | None,
    run: str,
) -> None:
    uid = str(uuid.uuid4())
    config = pod_sandbox_config(
        pod.name,
        namespace="demo",
        uid=uid,
        qos=pod.qos,
        labels={RUN_LABEL: run},
        annotations=pod.annotations,
        cgroup_parent=demo_cgroup_parent(uid, pod.kubelet_qos, runtime.driver),
        host_network=True,
    )
    if cgroups is not None:
        cgroups.make(config.linux.cgroup_parent)
    sandbox = api_pb2.RunPodSandboxRequest(config=config)
    pod_id = calls.RunPodSandbox(sandbox, timeout=CALL_TIMEOUT_S).pod_sandbox_id
    resources = kubelet_resources(pod)
    wanted = container_config("main", image=runtime.image, command=(), pod=config, resources=resources)
    request = create_container_request(pod_id, wanted, config)
    container_id = calls.CreateContainer(request, timeout=CALL_TIMEOUT_S).container_id
    start = api_pb2.StartContainerRequest(container_id=container_id)
    with contextlib.suppress(grpc.RpcError):  # an image may need a command that nobody knows
        calls.StartContainer(start, timeout=CALL_TIMEOUT_S)
    calls.StopPodSandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=pod_id), timeout=CALL_TIMEOUT_S)
    calls.RemovePodSandbox(api_pb2.RemovePodSandboxRequest(pod_sandbox_id=pod_id), timeout=CALL_TIMEOUT_S)


def _rows(log: str) -> list[Row]:
    """Reads the audit lines of the daemon's log, where libraries may have written lines of their own."""
    rows: list[Row] = []
    for line in log.splitlines():
        if '"runtimeproxy.audit"' not in line:
            continue
        entry = json.loads(line)
        if entry["kind"] != "changed":
            continue
        name = f"{entry['pod'].split('/')[-1]}/{entry['container'] or '(pod)'}"
        rows += [
            (name, change["field"], change["from"] or "-", change["to"] or "-", *_why(change))
            for change in entry["changes"]
        ]
    return rows


def _why(change: dict[str, str]) -> Row:
    return change["policy"], change["reason"]


def _report(rows: list[Row]) -> int:
    """Prints the table; an empty one means that the policies did nothing."""
    table = [_COLUMNS, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS))]
    print()
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    untouched = [pod.name for pod in DEMO_PODS if not any(row[0].startswith(f"{pod.name}/") for row in rows)]
    print(f"\n{len(DEMO_PODS)} pods ran through the proxy; untouched: {', '.join(untouched) or 'none'}")
    return 0 if rows else 1
