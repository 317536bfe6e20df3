"""A whole kubelet restarts while the CPU guard acts on its pods, on cgroup version 1."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import Nri
from tests.lab.guarded_kubelet import CONFIG, STRATEGIES, Report, Restarts, Weight
from tests.lab.kubelet import Kubelet
from tests.lab.node_objects import NodeObjects
from tests.lab.programs import KubeletClientVersion
from tests.lab.proxy_process import ManagerProcess, ProxyProcess
from tests.restarts.nri.lab import RUNTIMES, daemon_of, running_containers, wait_for_registration

MOST: Final = 40
"""Pods that stay."""
_CLASS: Final = "/kubepods/besteffort"
_BEGIN: Final = "pod"


class OnVersion1:
    """The node; see `tests.lab.guarded_kubelet.Stand`."""

    patience_s = 180.0
    pace_s = 0.02
    as_requested = Weight("0", "2")
    # Source: Linux kernel/sched/sched.h, WEIGHT_IDLEPRIO.
    as_idle = Weight("1", "3")

    def __init__(
        self,
        runtime: Containerd,
        kubelet: Kubelet,
        daemon: ProxyProcess | None,
        manager: ManagerProcess | None,
    ) -> None:
        self._runtime = runtime
        self._kubelet = kubelet
        self._daemon = daemon
        self._manager = manager

    def start_kubelet(self) -> None:
        self._kubelet.start()

    def stop_kubelet(self) -> None:
        self._kubelet.stop()

    def kubelet_log(self) -> str:
        return self._kubelet.log

    def put(self, pod: dict[str, Any]) -> None:
        self._kubelet.put(pod)

    def remove(self, name: str) -> None:
        self._kubelet.remove(name)

    def running(self) -> set[str]:
        return set(running_containers(self._runtime))

    def be_pods(self) -> dict[str, Weight]:
        found: dict[str, Weight] = {}
        for folder in cgroup_v1.file("cpu", _CLASS, "").glob(f"{_BEGIN}*/"):
            cgroup = f"{_CLASS}/{folder.name}"
            with suppress(OSError):
                texts = (cgroup_v1.read("cpu", cgroup, name) for name in ("cpu.idle", "cpu.shares"))
                found[folder.name.removeprefix(_BEGIN)] = Weight(*texts)
        return found

    def is_bounded(self) -> bool:
        with suppress(OSError):
            return cgroup_v1.read("cpu", _CLASS, "cpu.cfs_quota_us") != "-1"
        return False

    def set_strategies(self, keys: Mapping[str, object]) -> None:
        assert self._daemon is not None
        NodeObjects(self._daemon.objects_folder).strategies(keys)

    def restore(self) -> None:
        assert self._daemon is not None
        assert self._manager is not None
        codes = [self._manager.terminate(), self._daemon.terminate()]
        done = self._daemon.run("restore")
        if codes != [0, 0] or done.returncode != 0:
            raise ChildProcessError(f"{codes}, restore: {done.stdout}{done.stderr}")


def guarded_restarts(
    version: KubeletClientVersion, restarts: int, pods: int, *, is_guarded: bool
) -> tuple[Report, list[str]]:
    """Restarts a kubelet with the guard, or on containerd alone.

    Returns:
        What came of it, and the complaints of daemon and QoS manager.
    """
    with _stand(version, is_guarded=is_guarded) as (stand, services):
        report = Restarts(stand, restarts, pods, min(pods // 2, MOST), is_guarded=is_guarded).run()
        lines = [line for service in services for line in service.log]
    return report, [line for line in lines if not line.startswith("{") or '"level":"error"' in line]


@contextmanager
def _stand(
    version: KubeletClientVersion, *, is_guarded: bool
) -> Iterator[tuple[OnVersion1, list[ProxyProcess | ManagerProcess]]]:
    folder = Path(tempfile.mkdtemp(prefix="guard-", dir="/tmp"))
    try:
        with ExitStack() as stack:
            runtime = stack.enter_context(Containerd(RUNTIMES[version], Nri()))
            kubelet = Kubelet(version, folder / "k", runtime.socket)
            if not is_guarded:
                stack.callback(kubelet.close)
                yield OnVersion1(runtime, kubelet, None, None), []
                return
            (folder / "d").mkdir()
            daemon = daemon_of(folder / "d", runtime, kubelet, CONFIG, STRATEGIES)
            stack.enter_context(daemon)
            wait_for_registration(daemon)
            manager = ManagerProcess(daemon.folder, daemon.config_file, daemon.socket)
            stack.enter_context(manager)
            stack.callback(kubelet.close)
            yield OnVersion1(runtime, kubelet, daemon, manager), [daemon, manager]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
