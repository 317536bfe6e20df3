"""A whole kubelet as a process of this host: runs pods from files, and those of an API server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.lab import cgroup_v1, runtime_remains
from tests.lab.deadline import wait_until
from tests.lab.programs import KubeletClientVersion, go_tool

NODE: Final = "lab-node"
CLASSES: Final = ("/kubepods", "/kubepods/burstable", "/kubepods/besteffort")
"""The cgroups that it makes."""
_END_S: Final = 30.0
_START_S: Final = 60.0


class Kubelet:
    """Runs a kubelet from `with` to the end of its block; its pods are to be gone by then.

    It removes cgroups of pods that it does not know, so nothing else may run pods on this host.

    Args:
        folder: For its state, log and pods.
        endpoint: The runtime's socket.
        kubeconfig: For an API server, in which it registers its node; None: pods come from files alone.

    Attributes:
        folder: Its state, as in /var/lib/kubelet.
        manifests: The pods from files.
    """

    def __init__(
        self, version: KubeletClientVersion, folder: Path, endpoint: Path, kubeconfig: Path | None = None
    ) -> None:
        self.folder = folder / "kubelet"
        self.manifests = folder / "manifests"
        self._program = go_tool(f"kubelet-{version}")
        self._own = folder
        self._log = folder / "kubelet.log"
        self._kubeconfig = kubeconfig
        self._process: subprocess.Popen[bytes] | None = None
        self.manifests.mkdir(parents=True)
        self.folder.mkdir()
        (self.folder / "config.yaml").write_text(json.dumps(self._config(endpoint)))

    def _config(self, endpoint: Path) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": f"unix://{endpoint}",
            "enableServer": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "1Mi"},
            "failCgroupV1": False,
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "maxPods": 250,
            "podLogsDir": str(self._own / "logs"),
            "registerNode": self._kubeconfig is not None,
            "resolvConf": "",
            "runtimeRequestTimeout": "2m",
            "staticPodPath": str(self.manifests),
        }

    def start(self) -> None:
        command: list[str | Path] = [
            self._program,
            *("--config", self.folder / "config.yaml", "--root-dir", self.folder),
            *("--cert-dir", self._own / "pki", f"--hostname-override={NODE}", "--v=2"),
        ]
        if self._kubeconfig is not None:
            command += ["--kubeconfig", self._kubeconfig]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._has_cgroups, "the kubelet's cgroups", _START_S)

    def _has_cgroups(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ChildProcessError(self._log.read_text()[-3000:])
        return all(cgroup_v1.file("cpu", cgroup, "cpu.shares").exists() for cgroup in CLASSES)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def put(self, pod: dict[str, Any]) -> None:
        """Adds a pod, or changes it."""
        path = self._manifest(pod["metadata"]["name"])
        # The kubelet reads no file whose name begins with a dot.
        before = path.with_name(f".{path.name}")
        before.write_text(json.dumps(pod))
        before.replace(path)

    def remove(self, name: str) -> None:
        self._manifest(name).unlink()

    def _manifest(self, name: str) -> Path:
        return self.manifests / f"{name}.json"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def stop(self) -> None:
        """Ends it with SIGTERM, if it runs; its pods go on."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(_END_S)

    def close(self) -> None:
        """Ends it, and removes the cgroups of its QoS classes."""
        process, self._process = self._process, None
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(_END_S)
        runtime_remains.unmount_below(self._own)
        for cgroup in reversed(CLASSES):
            for controller in cgroup_v1.controllers():
                folder = cgroup_v1.file(controller, cgroup, "")
                if folder.is_dir() and not any(each.is_dir() for each in folder.iterdir()):
                    folder.rmdir()
