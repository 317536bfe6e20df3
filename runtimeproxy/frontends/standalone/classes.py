"""What the cgroup tree tells of a node without a container runtime: where the QoS classes are, nothing else.

Used in the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtimeproxy.frontends.cgroup_tree import CgroupListener

if TYPE_CHECKING:
    from runtimeproxy.frontends.cgroup_tree import ContainerCgroup
    from runtimeproxy.ledger.evaluate import Evaluator
    from runtimeproxy.pods.store import PodStore


class ClassesOnly(CgroupListener):
    """Has the values of QoS classes written once the kubelet has made them."""

    def __init__(self, store: PodStore, evaluator: Evaluator) -> None:
        self._store = store
        self._evaluator = evaluator

    def on_kubelet(self, cgroup: str) -> None:
        self._store.kubelet_root = cgroup
        self._evaluator.request_others()

    def is_running(self, container: ContainerCgroup) -> bool:
        # Its start is of no interest.
        return True
