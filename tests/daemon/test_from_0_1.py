"""An upgrade from version 0.1 on a running node, and the way back.

`from_0_1/` holds what 0.1 left: its checkpoint as SQL text, the runtime's pods, the cgroup files with its
values, and what the kubelet had written to the pods' own cgroups before (`make.py` says how it was made).
"""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from runtimeproxy.testing.cgroups import v2_values
from runtimeproxy.testing.state import FakeContainer, Sandbox
from tests.daemon.conftest import Daemons
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "from_0_1"
NO_POLICIES = "[policies.batch-resource]\nenabled = false\n[policies.cpuset]\nenabled = false\n"
NOT_KNOWN = "".join(
    f"UPDATE records SET body = replace(body, ',{before},true', ',null,true') WHERE kind = 3;"  # noqa: S608
    for before in ("2", "-1", "100000")
)
"""SQL after which 0.1 does not know what a pod's file held before."""
RUNNING_PID = 2**22 + 1000
CHANGED_FILES = ("cpu.weight", "cpu.max", "cpu.max.burst", "memory.max", "cpuset.cpus")
"""Files that a policy of 0.1, or one of this version that is on by default, can change."""

EVERY_CPU = Path("/sys/devices/system/cpu/online").read_text().strip()
UNLIMITED = {"cpu.max": "max", "memory.max": "max", "cpuset.cpus": ""}

Values = dict[str, str]


@dataclass
class LeftNode:
    """The node as 0.1 left it."""

    files: CgroupFiles
    applied: Values
    """By path: the values of 0.1's policies, which the files hold."""
    requested: Values
    """By path: what the kubelet asked for, of containers and of pods' own cgroups."""

    def values(self) -> Values:
        """What the files hold now."""
        return {path: _value(path, (self.files.root / path).read_text()) for path in self.applied}


@pytest.fixture
def left(runtime: FakeRuntime, cgroup_files: CgroupFiles) -> LeftNode:
    return left_node(runtime, cgroup_files)


def left_node(runtime: FakeRuntime, cgroup_files: CgroupFiles) -> LeftNode:
    """Fills the fake runtime and its files."""
    node: dict[str, Any] = json.loads((FOLDER / "node.json").read_text())
    for path, text in node["files"].items():
        file = cgroup_files.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    state = runtime.state
    with state.lock:
        for identity, each in node["sandboxes"].items():
            pod = json_format.ParseDict(each, api_pb2.PodSandboxConfig())
            state.sandboxes[identity] = Sandbox(identity, pod, "", 1, RUNNING_PID, ())
        for identity, each in node["containers"].items():
            sandbox = state.sandboxes[each["sandbox"]]
            config = json_format.ParseDict(each["config"], api_pb2.ContainerConfig())
            resources = json_format.ParseDict(each["resources"], api_pb2.LinuxContainerResources())
            container = FakeContainer(identity, sandbox.id, config, sandbox.config, resources, 1)
            container.state, container.pid = api_pb2.CONTAINER_RUNNING, RUNNING_PID
            state.containers[identity] = container
    applied = {path: _value(path, text) for path, text in node["files"].items() if _is_changed(path)}
    requested = applied | {
        path: _value(path, text) for path, text in node["kubelet"].items() if _is_changed(path)
    }
    for identity, each in node["containers"].items():
        wanted = v2_values(api_pb2.LinuxContainerResources(**each["requested"]))
        for name, value in {**UNLIMITED, **wanted}.items():
            path = f"{state.cgroup_path(identity).lstrip('/')}/{name}"
            requested[path] = _value(path, value)
    return LeftNode(cgroup_files, applied, requested)


def _is_changed(path: str) -> bool:
    return path.rpartition("/")[2] in CHANGED_FILES


def _value(path: str, text: str) -> str:
    """The value of a file's text: a plain file holds what was written, the kernel's also the period.

    Every CPU is the same as no list, and the CRI cannot take a list away from a container that runs.
    """
    text = text.strip()
    if path.endswith("cpuset.cpus") and text == EVERY_CPU:
        return ""
    return f"{text} 100000" if path.endswith("cpu.max") and " " not in text else text


def checkpoint(folder: Path, changes: str = "") -> None:
    """Makes the checkpoint of 0.1; `changes` is SQL that is run on it."""
    folder.mkdir(mode=0o700)
    with closing(sqlite3.connect(folder / "records.db")) as database:
        database.executescript((FOLDER / "records.sql").read_text() + changes)
    (folder / "records.db").chmod(0o600)


@pytest.fixture
def upgraded(daemons: Daemons, left: LeftNode) -> ProxyProcess:
    """This version on the state of 0.1."""
    daemon = daemons.prepare()
    checkpoint(daemon.state_folder)
    return start(daemon)


def start(daemon: ProxyProcess) -> ProxyProcess:
    """Starts it, and waits until its records are compared with the runtime."""
    daemon.start()
    while "; 3 pods, 3 containers;" not in daemon.wait_for_state("STATUS="):
        continue
    return daemon


def restore(daemon: ProxyProcess) -> str:
    """The command `restore`; returns what it printed."""
    done = daemon.run("restore")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def difference(found: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The paths whose values differ: found, wanted."""
    return {path: (found[path], wanted[path]) for path in found if found[path] != wanted[path]}


def test_the_fixture_holds_changed_values(left: LeftNode) -> None:
    changed = difference(left.applied, left.requested)
    assert len(changed) == 3 + 1 + 3 + 2, changed


def test_the_values_stay(upgraded: ProxyProcess, left: LeftNode) -> None:
    assert not difference(left.values(), left.applied)


def test_a_policy_that_is_switched_off_gives_the_kubelets_values_back(
    upgraded: ProxyProcess, left: LeftNode
) -> None:
    (upgraded.folder / "config.toml").write_text(NO_POLICIES)
    upgraded.signal(signal.SIGHUP)
    with suppress(TimeoutError):
        wait_until(lambda: not difference(left.values(), left.requested), "the kubelet's values")
    assert not difference(left.values(), left.requested)


def test_restore_gives_the_kubelets_values_back(upgraded: ProxyProcess, left: LeftNode) -> None:
    upgraded.terminate()
    restore(upgraded)
    assert not difference(left.values(), left.requested)
    assert restore(upgraded) == "nothing to restore\n"


def test_without_the_files_of_before_they_are_computed_from_the_containers(
    daemons: Daemons, left: LeftNode
) -> None:
    daemon = daemons.prepare()
    checkpoint(daemon.state_folder, NOT_KNOWN)
    start(daemon).terminate()
    restore(daemon)
    assert not difference(left.values(), left.requested)


def test_a_value_of_0_1_is_no_original_after_a_second_start(upgraded: ProxyProcess, left: LeftNode) -> None:
    upgraded.kill()
    start(upgraded).terminate()
    restore(upgraded)
    assert not difference(left.values(), left.requested)
