"""What a daemon knows after any end of the one before it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.checkpoint.file import FILE_NAME, CheckpointFile
from runtimeproxy.pods.records import ContainerRecord
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod, batch_pod, pod
from tests.daemon.remembering import QUOTA_US, SHARES, TELL_IN
from tests.daemon.site import site_folder
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

MIB = 1 << 20
VALUE = "hush-7f3a"


@pytest.fixture
def installed(socket_folder: Path) -> Mapping[str, str]:
    return site_folder(socket_folder, remembering="remembering:Remembering")


@pytest.fixture
def told(socket_folder: Path) -> Path:
    return socket_folder / "told"


@pytest.fixture
def client(daemon: ProxyProcess) -> Iterator[CriClient]:
    with CriClient(daemon.socket) as opened:
        yield opened


def saved(daemon: ProxyProcess) -> Saved:
    """What the next process would find."""
    with closing(CheckpointFile(daemon.state_folder, read_only=True)) as file:
        return file.load()


def saved_container(daemon: ProxyProcess, made: Pod) -> ContainerRecord:
    """The saved record of a pod's container, once there is one."""

    def found() -> ContainerRecord | None:
        return next((each for each in saved(daemon).containers if each.id == made.container), None)

    return wait_until(found, "the saved container")


def views(told: Path, count: int) -> list[dict[str, Any]]:
    """What the policy has been shown, once there are so many views."""

    def lines() -> list[str] | None:
        found = told.read_text().splitlines() if told.exists() else []
        return found if len(found) >= count else None

    return [json.loads(line) for line in wait_until(lines, f"{count} views")]


def noticed_changes(daemon: ProxyProcess) -> bool:
    """Whether it has found values that were changed without it."""
    return any("changes" in each for each in daemon.log_records if each["logger"].endswith(".recovery"))


def kill(daemon: ProxyProcess) -> None:
    daemon.kill()


def terminate(daemon: ProxyProcess) -> None:
    assert daemon.terminate() == 0


ENDS = pytest.mark.parametrize(
    "end", [kill, pytest.param(terminate, marks=pytest.mark.slow)], ids=lambda end: end.__name__
)
End = Callable[[ProxyProcess], None]


@ENDS
def test_hooks_see_what_they_saw_before(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, told: Path, end: End
) -> None:
    made = pod(client, annotations={TELL_IN: str(told)}).run().create().start()
    made.update(64 * MIB)
    made.update(64 * MIB)
    memory = 64 * MIB
    wait_until(
        lambda: saved_container(daemon, made).requested.memory_limit_bytes == memory, "the saved update"
    )
    owners = saved_container(daemon, made).owners
    end(daemon)
    runtime.recorded.clear()
    daemon.start()
    made.update(64 * MIB)
    _, before, after = views(told, 3)
    assert after == before
    assert before["pod"]["cgroup_parent"].startswith("/moved/")
    assert before["pod"]["labels"]["team"] == "x"
    assert before["annotations"]["mine"] == "1"
    assert (before["requested"]["cpu_shares"], before["current"]["cpu_shares"]) == (2, SHARES)
    assert before["current"]["cpu_quota_us"] == QUOTA_US
    assert owners["resources.cpu_shares"] == (Claimant("remembering"),)
    daemon.terminate()
    assert saved_container(daemon, made).owners == owners


@ENDS
def test_a_new_container_goes_where_the_policy_has_put_its_pod(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, told: Path, end: End
) -> None:
    made = pod(client, annotations={TELL_IN: str(told)}).run()
    wait_until(lambda: saved(daemon).pods, "the saved pod")
    end(daemon)
    daemon.start()
    made.create()
    sandbox_config = runtime.state.containers[made.container].sandbox_config
    assert sandbox_config.linux.cgroup_parent.startswith("/moved/")


def test_values_that_wait_for_a_start_are_written_after_a_restart(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, told: Path, cgroup_files: CgroupFiles
) -> None:
    made = pod(client, annotations={TELL_IN: str(told)}).run().create()
    wait_until(lambda: saved(daemon).containers, "the saved container")
    daemon.kill()
    daemon.start()
    made.start()
    place = f"{saved(daemon).pods[0].cgroup_parent}/{made.container}"
    wait_until(lambda: any(found.id == place for found in saved(daemon).books), "the written value")
    wait_until(lambda: not saved_container(daemon, made).pending_cgroup, "the record")


def test_values_that_waited_for_a_start_that_nobody_saw_are_written(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, told: Path, cgroup_files: CgroupFiles
) -> None:
    made = pod(client, annotations={TELL_IN: str(told)}).run().create()
    wait_until(lambda: saved(daemon).containers, "the saved container")
    daemon.kill()
    with CriClient(runtime.socket_path) as direct:
        made.client = direct
        made.start()
    daemon.start()
    place = f"{saved(daemon).pods[0].cgroup_parent}/{made.container}"
    wait_until(lambda: any(found.id == place for found in saved(daemon).books), "the written value")
    wait_until(lambda: not saved_container(daemon, made).pending_cgroup, "the record")


def test_no_value_of_the_environment_is_stored(daemon: ProxyProcess, client: CriClient, told: Path) -> None:
    made = pod(client, annotations={TELL_IN: str(told)})
    made.envs = {"PASSWORD": VALUE}
    made.run().create().start()
    wait_until(lambda: saved(daemon).containers, "the saved container")
    assert daemon.terminate() == 0
    for path in daemon.state_folder.iterdir():
        assert VALUE.encode() not in path.read_bytes()


def test_what_changed_while_the_proxy_was_away(
    daemon: ProxyProcess, runtime: FakeRuntime, told: Path
) -> None:
    with CriClient(daemon.socket) as client, CriClient(runtime.socket_path) as direct:
        stays, goes = (pod(client, name, {TELL_IN: str(told)}).run().create().start() for name in "ab")
        assert daemon.terminate() == 0
        linux = api_pb2.LinuxContainerResources(cpu_shares=100)
        request = api_pb2.UpdateContainerResourcesRequest(container_id=stays.container, linux=linux)
        direct.runtime.UpdateContainerResources(request, timeout=CALL_TIMEOUT_S)
        goes.client = direct
        goes.remove()
        daemon.forget_states()
        daemon.start()
        wait_until(lambda: noticed_changes(daemon), "the new value")
        # The end saves at once what an idle node saves after a while.
        assert daemon.terminate() == 0
    assert (len(saved(daemon).pods), len(saved(daemon).containers)) == (1, 1)
    record = saved_container(daemon, stays)
    assert record.requested.cpu_shares == 100
    assert "resources.cpu_shares" not in record.owners
    assert record.owners["resources.cpu_quota_us"] == (Claimant("remembering"),)


def test_cgroup_values_that_were_reset_while_the_proxy_was_away(
    daemon: ProxyProcess, client: CriClient, cgroup_files: CgroupFiles
) -> None:
    made = batch_pod(client)
    parent = made.config.linux.cgroup_parent
    cgroup_files.make(parent)
    made.run()
    path = cgroup_files.folder(parent) / "cpu.weight"
    wanted = path.read_text()
    name, limit = "memory.limit_in_bytes", 128 * MIB
    (book,) = wait_until(
        lambda: [book for book in saved(daemon).books if book.entries[name].resolved == limit],
        "the resolved value",
    )
    assert book.originals["memory.max"].text == "max\n"
    daemon.kill()
    path.write_text("100\n")
    daemon.start()
    wait_until(lambda: path.read_text() == wanted, "the policy's value")


def test_a_damaged_checkpoint_is_rebuilt_from_the_runtime(
    daemon: ProxyProcess, client: CriClient, told: Path
) -> None:
    made = pod(client, annotations={TELL_IN: str(told)}).run().create().start()
    assert daemon.terminate() == 0
    (daemon.state_folder / FILE_NAME).write_bytes(b"nonsense" * 1000)
    daemon.start()
    # Before a call asks for the container, which the lists would not find missing then.
    for text in ("rebuilt from the runtime", "containers that the records lack"):
        wait_until(lambda text=text: any(text in each for each in daemon.log), f"{text} in the log")  # type: ignore[misc]
    made.update(64 * MIB)
    (view,) = views(told, 1)
    assert view["pod"]["cgroup_parent"].startswith("/moved/")
    assert daemon.terminate() == 0
    assert len(saved(daemon).containers) == 1


def test_without_a_place_for_the_checkpoint_it_serves_and_says_so(daemons: Daemons) -> None:
    daemon = daemons.prepare()
    daemon.state_folder.touch()
    daemon.start()
    with CriClient(daemon.socket) as client:
        pod(client).run().create().start()
        daemon.wait_for_state("STATUS=6 policies; 1 pods, 1 containers, which are not saved;")
        batch_pod(client).run()
        text = "STATUS=6 policies; 2 pods, 1 containers, which are not saved; the journal cannot be written: "
        daemon.wait_for_state(text)
    daemon.state_folder.unlink()
    wait_until(lambda: len(saved(daemon).containers) == 1, "the saved container", timeout_s=120)
    assert daemon.terminate() == 0


def test_records_that_only_another_process_has_saved_are_found(
    daemon: ProxyProcess, client: CriClient, told: Path
) -> None:
    for number in range(20):
        pod(client, f"pod-{number}", {TELL_IN: str(told)}).run().create()
    assert daemon.terminate() == 0
    found = saved(daemon)
    assert (len(found.pods), len(found.containers)) == (20, 20)
    assert all(
        record.owners["resources.cpu_shares"] == (Claimant("remembering"),) for record in found.containers
    )
