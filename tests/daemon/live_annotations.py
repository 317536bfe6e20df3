"""Annotations of a pod that apply while it runs: what an edit at the API server changes, and how soon."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from runtimeproxy.testing.cgroups import CgroupFiles
from tests.cgroups.boxes import SCORE, Box, score_of
from tests.lab.deadline import wait_until

MOST_S: Final = 3.0
TRIES: Final = 5
"""On a busy machine one edit may take longer: the shortest time of some is the daemon's own."""
POLICIES: Final = "".join(
    f"[policies.{name}]\nenabled = true\n" for name in ("cpu-burst", "cpu-idle", "memory-qos", "oom-score")
)
STRATEGIES: Final = {
    "cpu-burst-config": json.dumps({"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 20}}),
    "resource-qos-config": json.dumps(
        {"clusterStrategy": {"lsClass": {"cpuQOS": {"enable": True, "groupIdentity": 2}}}}
    ),
}


class Live(NamedTuple):
    """An annotation of an LS pod that requests 1 GiB and has a quota of one CPU."""

    key: str
    value: object
    file: str
    """Of version 2, or of a task of the container."""
    before: str
    after: str
    is_pods: bool = True
    """Whether the file is that of the pod's own cgroup."""


LIVE: Final = (
    Live(
        "koordinator.sh/cpuBurst",
        {"policy": "cpuBurstOnly", "cpuBurstPercent": 50},
        *("cpu.max.burst", "20000", "50000"),
        is_pods=False,
    ),
    Live(
        "koordinator.sh/memoryQOS",
        {"policy": "auto", "minLimitPercent": 50},
        *("memory.min", "0", str(1 << 29)),
    ),
    Live("koordinator.sh/cpuQOS", {"enable": True, "groupIdentity": -1}, *("cpu.weight", "100", "1")),
)
OF_TASKS: Final = Live("koordinator.sh/oom-score-adj", 600, *(SCORE, "500", "600"), is_pods=False)
"""Its task is in a cgroup of this machine's version 1, with the name of the container's."""


def check_edits(
    live: Live, files: CgroupFiles, container: str, edit: Callable[[Mapping[str, str]], object]
) -> None:
    """Edits the annotation of a running pod, takes it away, and so on, until one edit was quick enough.

    Args:
        live: What is edited.
        files: With the cgroups.
        container: Path of the container's cgroup.
        edit: Gives the pod these annotations at the API server.
    """
    cgroup = container.rpartition("/")[0] if live.is_pods else container
    with _reading(live, files, cgroup) as read:
        check_values(live.key, live.value, (live.before, live.after), read, edit)


def check_values(
    key: str,
    value: object,
    places: tuple[str, str],
    read: Callable[[], str],
    edit: Callable[[Mapping[str, str]], object],
) -> None:
    """The same of whatever `read` reads, which is `places` before and after the edit."""
    before, after = places

    def wait_for(text: str) -> float:
        started_s = time.monotonic()
        wait_until(lambda: read() == text or None, f"{key}: {text}, not {read()}", 60)
        return time.monotonic() - started_s

    wait_for(before)
    took_s: list[float] = []
    while not took_s or (min(took_s) > MOST_S and len(took_s) < TRIES):
        edit({key: json.dumps(value)})
        took_s.append(wait_for(after))
        edit({})
        wait_for(before)
    print(f"{key}: in force after {min(took_s):.2f} s")
    assert min(took_s) <= MOST_S, took_s


@contextmanager
def _reading(live: Live, files: CgroupFiles, cgroup: str) -> Iterator[Callable[[], str]]:
    """Reads the file; of a task one runs in the cgroup meanwhile."""
    if live is not OF_TASKS:
        yield lambda: files.read(cgroup, live.file)
        return
    box = Box(cgroup.rpartition("/")[2])
    try:
        pid = box.start(score=int(live.before))
        files.write(cgroup, "cgroup.procs", str(pid))
        yield lambda: str(score_of(pid))
    finally:
        box.end()
