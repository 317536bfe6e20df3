"""NRI mode after a restart with records of running pods that cannot be used, or are not theirs."""

from __future__ import annotations

import json

import pytest

from runtimeproxy.testing import CgroupFiles, NriRuntimeState
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH_SHARES, Pod, batch_pod
from tests.daemon.test_nri_fake_runtime import (
    MEMORY_BYTES,
    PLUGIN,
    configuration,
    kubelet,
    runtime,
    shares_and_limit,
    state,
)
from tests.daemon.test_poisoned import DEEP, book, entry, sqlite_of
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until

__all__ = ["configuration", "kubelet", "runtime", "state"]
OTHER_POD = json.dumps({"uid": "other", "namespace": "elsewhere", "name": "other", "cgroup_parent": "/.."})
ROWS = {
    "pod-unreadable": (1, DEEP),
    "pod-type": (1, '{"name": 7}'),
    "pod-other": (1, OTHER_POD),
    "pod-empty": (1, "{}"),
    "container-unreadable": (2, DEEP),
    "container-type": (2, '{"requested": {"cpu_shares": "x"}}'),
    "container-other": (2, '{"pod_id": "another", "name": "another"}'),
    "container-empty": (2, "{}"),
}
"""By the pod's name: the kind of its row, and the text in its place."""
BOOKS = {
    "book-unreadable": DEEP,
    "book-value": book({"cpu.shares": entry(10**30)}),
    "book-other": book({"cpu.shares": entry(700)}),
}
"""The same of the book of its container's cgroup."""
FILES = ("cpu.weight", "cpu.max", "memory.max")


@pytest.mark.slow
def test_records_of_running_pods_that_cannot_be_used_or_are_not_theirs(
    daemons: Daemons,
    state: NriRuntimeState,
    configuration: str,
    kubelet: CriClient,
    cgroup_files: CgroupFiles,
) -> None:
    daemon = daemons.start(configuration)
    state.nri.wait_for_plugins(PLUGIN)
    pods = {name: batch_pod(kubelet, name).run().create().start() for name in (*ROWS, *BOOKS, "good")}

    def files_of(pod: Pod) -> list[str]:
        return [cgroup_files.read(state.cgroup_path(pod.container), name) for name in FILES]

    right = files_of(pods["good"])
    with sqlite_of(daemon) as saved:
        for name, (kind, text) in ROWS.items():
            row = (text, kind, pods[name].container if kind == 2 else pods[name].id)
            assert saved.execute("UPDATE records SET body = ? WHERE kind = ? AND id = ?", row).rowcount == 1
        for name, text in BOOKS.items():
            row_of_book = (text, f"/{state.cgroup_path(pods[name].container).strip('/')}")
            assert saved.execute("UPDATE books SET body = ? WHERE id = ?", row_of_book).rowcount == 1
    for pod in pods.values():
        # As after an update by another plugin meanwhile.
        cgroup_files.write(state.cgroup_path(pod.container), "cpu.weight", "77\n")
    daemon.start()
    state.nri.wait_for_plugins(PLUGIN)
    for name, pod in pods.items():
        wait_until(lambda pod=pod: files_of(pod) == right, name)  # type: ignore[misc]
    # What the kubelet asks for is no limit of a batch pod, so its update is answered by policies.
    for pod in pods.values():
        pod.update(64 << 20)
    found = {name: shares_and_limit(state, pod) for name, pod in pods.items()}
    assert found == dict.fromkeys(pods, (BATCH_SHARES, MEMORY_BYTES))
    assert "Traceback" not in "".join(daemon.log)
    for pod in pods.values():
        pod.remove()
