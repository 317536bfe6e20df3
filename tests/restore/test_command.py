"""The command on a fake runtime and plain files in place of cgroups, after a daemon that has ended."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.cli import main
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.checkpoint.codec import RowChange, RowKind
from runtimeproxy.pods.checkpoint.file import FILE_NAME, CheckpointFile
from runtimeproxy.pods.records import CgroupRecord, ContainerRecord, Lifecycle, ManagedValue, PodRecord
from runtimeproxy.pods.resources import overlay, read_resources
from runtimeproxy.restore.command import table_row
from runtimeproxy.restore.plan import Line, Status
from runtimeproxy.testing import CallError, CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons, cgroup_files, daemons, loop, runtime
from tests.daemon.driving import BATCH_SHARES, Pod, batch_pod, shares_of
from tests.daemon.kubelet import kubelet
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.programs import REPOSITORY
from tests.lab.proxy_process import ProxyProcess

__all__ = ["cgroup_files", "daemons", "loop", "runtime"]

TIMEOUT_S = 60
OWNED = ("resources.cpu_quota_us", "resources.cpu_shares", "resources.memory_limit_bytes")


@pytest.fixture
def installed() -> Mapping[str, str]:
    """No more policies than the product's own."""
    return {}


@dataclass
class Left:
    """What is left of a daemon that has ended: a pod that policies have changed."""

    daemon: ProxyProcess
    pod: Pod
    files: CgroupFiles

    def restore(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs the command with the daemon's options, in this process."""
        _, _, _, *flags = self.daemon.command()
        arguments = ["restore", *words, *flags]
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for name, value in self.daemon.environment().items():
                patch.setenv(name, value)
            code = main(arguments)
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def restore_in_process_of_its_own(self, *words: str) -> subprocess.CompletedProcess[str]:
        program, option, module, *flags = self.daemon.command()
        return subprocess.run(
            [program, option, module, "restore", *words, *flags],
            cwd=REPOSITORY,
            env=self.daemon.environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def pod_file(self, name: str) -> str:
        """A file of the pod's cgroup."""
        return self.files.read(self.pod.config.linux.cgroup_parent, name)


@pytest.fixture
def direct(runtime: FakeRuntime) -> Iterator[CriClient]:
    with CriClient(runtime.socket_path) as opened:
        yield opened


@pytest.fixture
def served(daemons: Daemons, cgroup_files: CgroupFiles, direct: CriClient) -> Left:
    """A daemon that serves, and a batch pod that it has changed."""
    daemon = daemons.start()
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        cgroup_files.make(made.config.linux.cgroup_parent)
        made.run().create().start()
        made.client = direct
    return Left(daemon, made, cgroup_files)


@pytest.fixture
def ended(served: Left) -> Left:
    """What a daemon has left."""
    assert served.daemon.terminate() == 0
    return served


@pytest.fixture
def left(daemons: Daemons, cgroup_files: CgroupFiles, direct: CriClient, runtime: FakeRuntime) -> Left:
    """The same without running a daemon: as it leaves runtime, files and checkpoint."""
    daemon = daemons.prepare()
    made = batch_pod(direct).run().create().start()
    parent = made.config.linux.cgroup_parent
    container = runtime.state.containers[made.container]
    requested = read_resources(container.resources)
    policies = Resources(cpu_quota_us=50_000, cpu_shares=BATCH_SHARES, memory_limit_bytes=128 << 20)
    container.resources.cpu_quota = 50_000
    container.resources.cpu_shares = BATCH_SHARES
    container.resources.memory_limit_in_bytes = 128 << 20
    cgroup_files.make(parent)
    values: dict[str, int | str] = {
        "cpu.shares": BATCH_SHARES,
        "cpu.cfs_quota_us": 50_000,
        "memory.limit_in_bytes": 128 << 20,
    }
    results = CgroupWriter(cgroup_files.root).write(parent, values)
    pod = PodRecord(
        id=made.id,
        name=made.config.metadata.name,
        namespace=made.config.metadata.namespace,
        uid=made.config.metadata.uid,
        cgroup_parent=parent,
    )
    box = ContainerRecord(
        id=made.container,
        pod_id=made.id,
        name="main",
        requested=requested,
        booked=overlay(requested, policies),
        owners=dict.fromkeys(OWNED, (Claimant("batch-resource"),)),
        state=Lifecycle.RUNNING,
    )
    cgroup = CgroupRecord(parent, {each.name: ManagedValue(each.value, each.old) for each in results})
    with closing(CheckpointFile(daemon.state_folder)) as file:
        file.write(
            RowChange(kind, record.id, record)
            for kind, record in ((RowKind.POD, pod), (RowKind.CONTAINER, box), (RowKind.CGROUP, cgroup))
        )
    return Left(daemon, made, cgroup_files)


def test_everything_is_as_the_kubelet_wants_it(ended: Left, runtime: FakeRuntime) -> None:
    assert shares_of(ended.pod) == BATCH_SHARES
    assert ended.pod_file("cpu.weight") == "20"
    done = ended.restore_in_process_of_its_own()
    assert done.returncode == 0, done.stderr
    resources = runtime.state.containers[ended.pod.container].resources
    assert (resources.cpu_shares, resources.cpu_quota, resources.memory_limit_in_bytes) == (2, -1, -1)
    assert ended.pod_file("cpu.weight") == "100"
    assert ended.pod_file("cpu.max") == "max 100000"
    assert ended.pod_file("memory.max") == "max"
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["CONTAINER", "OR", "CGROUP", "FIELD", "FROM", "TO", "RESULT"]
    assert len(lines) == 7
    assert all(line.endswith("restored") for line in lines[1:])
    assert lines[1].split()[:2] == ["default/batch/main", "resources.cpu_quota_us"]


def test_a_second_time_there_is_nothing_left(left: Left, runtime: FakeRuntime) -> None:
    assert left.restore().returncode == 0
    runtime.recorded.clear()
    again = left.restore()
    assert (again.returncode, again.stdout) == (0, "nothing to restore\n")
    assert "UpdateContainerResources" not in runtime.recorded.methods


def test_a_dry_run_changes_nothing(served: Left, runtime: FakeRuntime) -> None:
    runtime.recorded.clear()

    def planned() -> subprocess.CompletedProcess[str] | None:
        # The daemon writes its checkpoint a moment after the calls.
        done = served.restore("--dry-run")
        return done if done.stdout.count("to be restored") == 6 else None

    assert wait_until(planned, "the daemon's checkpoint").returncode == 0
    found = json.loads(served.restore("--dry-run", "--output", "json").stdout)
    assert found["complete"]
    assert {each["result"] for each in found["values"]} == {"to be restored"}
    quota = next(each for each in found["values"] if each["field"] == "cpu.cfs_quota_us")
    assert quota.keys() == {"target", "field", "from", "to", "result", "reason"}
    assert isinstance(quota["from"], int)
    assert shares_of(served.pod) == BATCH_SHARES
    assert served.pod_file("cpu.weight") == "20"
    assert "UpdateContainerResources" not in runtime.recorded.methods


def test_it_refuses_while_an_instance_serves(served: Left) -> None:
    done = served.restore()
    assert (done.returncode, done.stdout) == (1, "")
    assert "an instance serves" in done.stderr
    assert shares_of(served.pod) == BATCH_SHARES


def test_what_somebody_else_has_changed_is_left_alone(left: Left) -> None:
    left.pod.update(64 << 20)
    left.files.folder(left.pod.config.linux.cgroup_parent).joinpath("cpu.weight").write_text("77\n")
    done = left.restore()
    assert done.returncode == 0, done.stderr
    assert left.pod_file("cpu.weight") == "77"
    assert "left alone: another program has changed it since" in done.stdout
    assert "resources.memory_limit_bytes" not in done.stdout
    assert "resources.cpu_shares" in done.stdout


def test_what_fails_is_said_and_tried_again(left: Left, runtime: FakeRuntime) -> None:
    runtime.on("UpdateContainerResources", error=CallError("INTERNAL", "no such thing"), times=1)
    done = left.restore()
    assert done.returncode == 1
    assert "not restored: UpdateContainerResources: INTERNAL: no such thing" in done.stdout
    assert left.pod_file("cpu.weight") == "100"
    again = left.restore()
    assert again.returncode == 0, again.stderr
    assert [line.split()[0] for line in again.stdout.splitlines()[1:]] == ["default/batch/main"] * 3
    assert shares_of(left.pod) == 2


def test_pods_that_are_gone_are_skipped(left: Left) -> None:
    left.pod.remove()
    left.files.remove(left.pod.config.linux.cgroup_parent)
    done = left.restore()
    assert (done.returncode, done.stdout) == (0, "nothing to restore\n")


@pytest.mark.parametrize("words", [(), ("--dry-run",)], ids=["done", "dry-run"])
def test_rows_that_cannot_be_read_are_said(left: Left, words: tuple[str, ...]) -> None:
    file = left.daemon.state_folder / FILE_NAME
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE records SET body = 'no JSON' WHERE kind = ?", (RowKind.CONTAINER,))
    done = left.restore(*words)
    assert done.returncode == 1
    assert "not restored: 1 of its rows cannot be read" in done.stdout
    assert str(file) in done.stdout
    assert left.pod_file("cpu.weight") == ("20" if words else "100")


def test_without_a_checkpoint_nothing_is_known(left: Left) -> None:
    left.daemon.state_folder.rename(left.daemon.state_folder.with_name("elsewhere"))
    done = left.restore()
    assert (done.returncode, done.stdout) == (1, "")
    assert "no checkpoint" in done.stderr
    assert not left.daemon.state_folder.exists()


def test_a_state_folder_that_cannot_be_entered(left: Left) -> None:
    folder = left.daemon.state_folder
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.name)
    done = left.restore()
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{FILE_NAME}: Too many levels of symbolic links" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reason_of_several_lines_is_one_row() -> None:
    line = Line("box", "cpu_shares", 2, 3, Status.FAILED, "runc:\n\tno such thing\n")
    assert table_row(line)[-1] == "not restored: runc: no such thing"


def test_a_node_without_a_runtime(left: Left, runtime: FakeRuntime) -> None:
    runtime.stop()
    done = left.restore()
    assert done.returncode == 1
    assert f"{left.daemon.options.runtime_endpoint}: ListContainers: UNAVAILABLE" in done.stderr


def test_a_daemon_that_comes_back_owns_nothing(left: Left) -> None:
    assert left.restore().returncode == 0
    with closing(CheckpointFile(left.daemon.state_folder, read_only=True)) as file:
        saved = file.load()
    assert [dict(found.owners) for found in saved.containers] == [{}]
    assert saved.cgroups == ()
    left.daemon.start()
    assert left.daemon.terminate() == 0
    assert shares_of(left.pod) == 2


def test_wrong_flags(left: Left) -> None:
    done = left.restore("--dry-rum")
    assert done.returncode == 2
    assert "did you mean --dry-run?" in done.stderr


def test_a_kubelet_that_still_uses_the_socket_is_told(left: Left, tmp_path: Path) -> None:
    with kubelet(tmp_path, "--container-runtime-endpoint", f"unix://{left.daemon.socket}") as pid:
        done = left.restore("--dry-run")
    assert done.returncode == 0
    place = (
        f"the running kubelet (process {pid}): --container-runtime-endpoint is unix://{left.daemon.socket}"
    )
    assert f"koord-runtime-proxy: warning: {place}, the proxy's socket" in done.stderr
    assert f"unix://{left.daemon.options.runtime_endpoint} and restart the kubelet" in done.stderr
    assert left.restore("--dry-run").stderr == ""
