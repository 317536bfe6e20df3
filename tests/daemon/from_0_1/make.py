"""Makes `records.sql` and `node.json`: what version 0.1 left on a node.

It is run with the code of version 0.1, not with that of this checkout:

    cd CHECKOUT_OF_0.1 && PYTHONPATH=. .venv/bin/python THIS_FILE FOLDER_OF_THE_TWO

A fake runtime with plain files as cgroups of version 2 stands in for the node. The daemon is killed, not
stopped, so the files hold its values and its checkpoint is what an upgrade finds.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, PodCgroups, RuntimeState
from runtimeproxy.testing.builders import (
    KubeletQos,
    container_config,
    create_container_request,
    pod_sandbox_config,
)

TIMEOUT_S = 30
MIB = 1024 * 1024
RUNNING = "SELECT count(*) FROM records WHERE kind = 2 AND body LIKE '%\"state\":1%'"
BATCH = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "128Mi"}
PODS: dict[str, dict[str, Any]] = {
    "batch": {
        "qos": "BE",
        "annotations": {
            "node.koordinator.sh/extended-resource-spec": json.dumps(
                {"containers": {"main": {"requests": BATCH, "limits": BATCH}}}
            )
        },
        "resources": {"cpu_period": 100000, "cpu_shares": 2, "oom_score_adj": 1000},
        "kubelet": {"cpu.weight": "1"},
    },
    "bound": {
        "qos": "LSR",
        "kubelet_qos": KubeletQos.GUARANTEED,
        "annotations": {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "1"})},
        "resources": {
            "cpu_period": 100000,
            "cpu_shares": 1024,
            "cpu_quota": 100000,
            "memory_limit_in_bytes": 256 * MIB,
            "oom_score_adj": -997,
        },
        "kubelet": {"cpu.weight": "39", "cpu.max": "100000 100000", "memory.max": str(256 * MIB)},
    },
    "web": {
        "qos": "LS",
        "resources": {
            "cpu_period": 100000,
            "cpu_shares": 512,
            "cpu_quota": 50000,
            "memory_limit_in_bytes": 64 * MIB,
            "oom_score_adj": 900,
        },
        "kubelet": {"cpu.weight": "20", "cpu.max": "50000 100000", "memory.max": str(64 * MIB)},
    },
}


def main(target: Path) -> None:
    """Runs the pods through the daemon of 0.1 and writes both files."""
    with tempfile.TemporaryDirectory(prefix="from-0.1-") as name:
        folder = Path(name)
        files = CgroupFiles(folder / "cgroup", version=2)
        state = RuntimeState(PodCgroups(CgroupDriver.CGROUPFS, files))
        with FakeRuntime(folder / "fake.sock", state=state) as fake:
            daemon = start_daemon(folder, str(fake.socket_path), files.root)
            with grpc.insecure_channel(f"unix:{folder}/proxy.sock") as channel:
                stub = api_pb2_grpc.RuntimeServiceStub(channel)
                stub.Version(api_pb2.VersionRequest(), timeout=TIMEOUT_S, wait_for_ready=True)
                before: dict[str, str] = {}
                for pod, wanted in PODS.items():
                    before |= run_pod(stub, files, pod, wanted)
            wait_until_saved(folder / "state" / "records.db")
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()
        with sqlite3.connect(folder / "state" / "records.db") as database:
            pragmas = [
                f"PRAGMA {key} = {database.execute(f'PRAGMA {key}').fetchone()[0]};"
                for key in ("application_id", "user_version")
            ]
            (target / "records.sql").write_text("\n".join([*pragmas, *database.iterdump()]) + "\n")
        node = {
            "sandboxes": sandboxes(state),
            "containers": containers(state),
            "kubelet": before,
            "files": texts(files.root),
        }
        (target / "node.json").write_text(json.dumps(node, indent=1) + "\n")


def start_daemon(folder: Path, runtime: str, cgroup_root: Path) -> subprocess.Popen[bytes]:
    """The daemon of the package that this Python imports."""
    config = folder / "config.toml"
    config.write_text(f'[cgroups]\nroot = "{cgroup_root}"\n[node]\nsysfs_root = "{folder}/sys"\n')
    paths = {
        "--koord-runtimeproxy-endpoint": folder / "proxy.sock",
        "--remote-runtime-service-endpoint": runtime,
        "--config": config,
        "--state-dir": folder / "state",
        "--hook-config-dir": folder / "hooks",
        "--policies-dir": folder / "policies.d",
    }
    words = [str(word) for flag in paths.items() for word in flag]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", "runtimeproxy", *words], stderr=log, env=os.environ)


def run_pod(
    stub: api_pb2_grpc.RuntimeServiceStub, files: CgroupFiles, name: str, wanted: dict[str, Any]
) -> dict[str, str]:
    """Runs a pod as the kubelet does; returns the files of the pod's cgroup as the kubelet left them."""
    fields = {key: wanted[key] for key in ("qos", "kubelet_qos", "annotations") if key in wanted}
    pod = pod_sandbox_config(name, **fields)
    cgroup = files.folder(pod.linux.cgroup_parent)
    files.make(pod.linux.cgroup_parent)
    for file, text in wanted["kubelet"].items():
        (cgroup / file).write_text(f"{text}\n")
    before = {str(path.relative_to(files.root)): path.read_text() for path in cgroup.iterdir()}
    request = api_pb2.RunPodSandboxRequest(config=pod)
    sandbox = stub.RunPodSandbox(request, timeout=TIMEOUT_S).pod_sandbox_id
    resources = api_pb2.LinuxContainerResources(**wanted["resources"])
    config = container_config("main", pod=pod, resources=resources)
    made = stub.CreateContainer(create_container_request(sandbox, config, pod), timeout=TIMEOUT_S)
    stub.StartContainer(api_pb2.StartContainerRequest(container_id=made.container_id), timeout=TIMEOUT_S)
    return before


def wait_until_saved(path: Path) -> None:
    """Until all records, and the values of the two pods that policies change, are in the checkpoint."""
    wanted = (2 * len(PODS) + 2, len(PODS))
    ends = time.monotonic() + TIMEOUT_S
    while (found := counts(path)) != wanted:
        if time.monotonic() > ends:
            raise TimeoutError(f"records, running: {found}")
        time.sleep(0.05)


def counts(path: Path) -> tuple[int, int]:
    """How many records there are, and how many containers of them run."""
    with sqlite3.connect(path) as database:
        (records,) = database.execute("SELECT count(*) FROM records").fetchone()
        (running,) = database.execute(RUNNING).fetchone()
    return records, running


def sandboxes(state: RuntimeState) -> dict[str, Any]:
    """Their configurations by id."""
    return {each.id: json_format.MessageToDict(each.config) for each in state.sandboxes.values()}


def containers(state: RuntimeState) -> dict[str, Any]:
    """Sandbox, configuration, applied resources and what the kubelet asked for, by id."""
    return {
        each.id: {
            "sandbox": each.sandbox_id,
            "config": json_format.MessageToDict(each.config),
            "resources": json_format.MessageToDict(each.resources),
            "requested": PODS[each.sandbox_config.metadata.name]["resources"],
        }
        for each in state.containers.values()
    }


def texts(root: Path) -> dict[str, str]:
    """All files below a folder."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): path.read_text() for path in files}


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
