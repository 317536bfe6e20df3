"""What the cgroup tree tells of a node without a container runtime: where the QoS classes are, nothing else.

Used in the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtimeproxy.frontends.standalone.cgroup_tree import ContainerCgroup
    from runtimeproxy.ledger.evaluate import Evaluator
    from runtimeproxy.pods.store import PodStore


class ClassesOnly:
    """Has the values of QoS classes written once the kubelet has made them (a `CgroupListener`)."""

    def __init__(self, store: PodStore, evaluator: Evaluator) -> None:
        self._store = store
        self._evaluator = evaluator

    def on_kubelet(self, cgroup: str) -> None:
        self._store.kubelet_root = cgroup
        self._evaluator.request_others()

    def on_scanned(self) -> None:
        pass

    def is_running(self, container: ContainerCgroup) -> bool:
        # Nobody asks when it starts.
        return True

    def on_made(self, container: ContainerCgroup) -> None:
        pass

    def on_started(self, container: ContainerCgroup) -> None:
        pass

    def on_removed(self, container: ContainerCgroup) -> None:
        pass

    def on_written(self, cgroup: str, container: ContainerCgroup | None) -> None:
        pass
