"""Life cycle of sandboxes and containers, without gRPC."""

from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CallError, CgroupDriver, CgroupFiles, PodCgroups, RuntimeState
from runtimeproxy.testing.builders import container_config, pod_sandbox_config, preload
from runtimeproxy.testing.state import FakeContainer, Sandbox, merge_resources

Resources = api_pb2.LinuxContainerResources


@pytest.fixture
def state() -> RuntimeState:
    return RuntimeState()


@pytest.fixture
def sandbox(state: RuntimeState) -> Sandbox:
    return state.run_sandbox(pod_sandbox_config("web"))


@pytest.fixture
def container(state: RuntimeState, sandbox: Sandbox) -> FakeContainer:
    return state.create_container(sandbox.id, container_config(), sandbox.config)


@pytest.fixture
def events(state: RuntimeState) -> list[tuple[str, int]]:
    happened: list[tuple[str, int]] = []
    state.listeners.append(lambda owner_id, kind: happened.append((owner_id, kind)))
    return happened


def test_a_unique_prefix_is_the_id(state: RuntimeState, container: FakeContainer) -> None:
    assert state.find_container(container.id[:12]) is container
    assert state.find_sandbox(container.sandbox_id[:12]).id == container.sandbox_id


@pytest.mark.parametrize("wanted", ["", "zz"])
def test_an_unknown_id_is_not_found(state: RuntimeState, wanted: str) -> None:
    with pytest.raises(CallError, match="not found") as caught:
        state.find_container(wanted)
    assert caught.value.code == "NOT_FOUND"


def test_an_ambiguous_prefix_is_an_error_also_for_remove(
    state: RuntimeState, container: FakeContainer
) -> None:
    state.containers[f"{container.id[:8]}twin"] = container
    with pytest.raises(CallError, match="multiple"):
        state.remove_container(container.id[:8])


def test_a_container_goes_from_created_to_exited(state: RuntimeState, container: FakeContainer) -> None:
    states = [container.state]
    state.start_container(container.id)
    states.append(container.state)
    state.stop_container(container.id)
    states.append(container.state)
    assert states == [
        api_pb2.CONTAINER_CREATED,
        api_pb2.CONTAINER_RUNNING,
        api_pb2.CONTAINER_EXITED,
    ]
    assert (container.exit_code, container.reason, container.pid) == (137, "Error", 0)


def test_a_container_starts_once(state: RuntimeState, container: FakeContainer) -> None:
    state.start_container(container.id)
    with pytest.raises(CallError, match="not in created state"):
        state.start_container(container.id)


def test_a_container_that_ends_by_itself_keeps_its_exit_code(
    state: RuntimeState, container: FakeContainer
) -> None:
    state.start_container(container.id)
    state.exit_container(container.id, 0)
    state.stop_container(container.id)
    assert (container.exit_code, container.reason) == (0, "Completed")


def test_a_container_that_does_not_run_cannot_end(state: RuntimeState, container: FakeContainer) -> None:
    with pytest.raises(CallError, match="not running"):
        state.exit_container(container.id)


def test_stop_and_remove_of_what_is_gone_succeed(state: RuntimeState) -> None:
    for operation in (
        state.stop_container,
        state.remove_container,
        state.stop_sandbox,
        state.remove_sandbox,
    ):
        operation("gone")


def test_removing_a_sandbox_stops_and_removes_its_containers(
    state: RuntimeState, container: FakeContainer, events: list[tuple[str, int]]
) -> None:
    state.start_container(container.id)
    state.remove_sandbox(container.sandbox_id)
    assert not state.containers
    assert not state.sandboxes
    assert events == [
        (container.id, api_pb2.CONTAINER_STARTED_EVENT),
        (container.id, api_pb2.CONTAINER_STOPPED_EVENT),
        (container.sandbox_id, api_pb2.CONTAINER_STOPPED_EVENT),
        (container.id, api_pb2.CONTAINER_DELETED_EVENT),
        (container.sandbox_id, api_pb2.CONTAINER_DELETED_EVENT),
    ]


def test_a_second_stop_says_nothing(
    state: RuntimeState, sandbox: Sandbox, events: list[tuple[str, int]]
) -> None:
    state.stop_sandbox(sandbox.id)
    state.stop_sandbox(sandbox.id)
    assert events == [(sandbox.id, api_pb2.CONTAINER_STOPPED_EVENT)]


def test_a_stopped_sandbox_takes_no_container(state: RuntimeState, sandbox: Sandbox) -> None:
    state.stop_sandbox(sandbox.id)
    with pytest.raises(CallError, match="not running"):
        state.create_container(sandbox.id, container_config())


def test_configurations_without_metadata_are_refused(state: RuntimeState, sandbox: Sandbox) -> None:
    with pytest.raises(CallError, match="metadata"):
        state.run_sandbox(api_pb2.PodSandboxConfig())
    with pytest.raises(CallError, match="metadata"):
        state.create_container(sandbox.id, api_pb2.ContainerConfig())


def test_without_a_sandbox_config_that_of_the_sandbox_is_taken(state: RuntimeState, sandbox: Sandbox) -> None:
    assert state.create_container(sandbox.id, container_config()).sandbox_config == sandbox.config


def test_pods_on_the_hosts_network_have_no_address(state: RuntimeState, sandbox: Sandbox) -> None:
    host = state.run_sandbox(pod_sandbox_config("host", host_network=True))
    assert (sandbox.ips, host.ips) == (("10.88.0.2",), ())


@pytest.mark.parametrize(
    ("into", "update", "expected"),
    [
        pytest.param(
            Resources(cpu_shares=2, cpu_quota=5),
            Resources(cpu_shares=4),
            Resources(cpu_shares=4, cpu_quota=5),
            id="what is not set stays",
        ),
        pytest.param(
            Resources(oom_score_adj=5),
            Resources(oom_score_adj=7),
            Resources(oom_score_adj=5),
            id="oom score stays",
        ),
        pytest.param(
            Resources(unified={"a": "1", "b": "1"}),
            Resources(unified={"b": "2"}),
            Resources(unified={"a": "1", "b": "2"}),
            id="unified by key",
        ),
        pytest.param(
            Resources(hugepage_limits=[api_pb2.HugepageLimit(page_size="2MB", limit=1)]),
            Resources(hugepage_limits=[api_pb2.HugepageLimit(page_size="2MB", limit=2)]),
            Resources(hugepage_limits=[api_pb2.HugepageLimit(page_size="2MB", limit=2)]),
            id="huge pages are replaced",
        ),
        pytest.param(
            Resources(cpu_quota=5),
            Resources(cpu_quota=-1),
            Resources(cpu_quota=-1),
            id="minus one is set",
        ),
    ],
)
def test_merge_resources(into: Resources, update: Resources, expected: Resources) -> None:
    merge_resources(into, update)
    assert into == expected


@pytest.mark.parametrize("driver", CgroupDriver)
@pytest.mark.parametrize("version", [1, 2])
def test_cgroup_files_follow_the_life_cycle(tmp_path: Path, driver: CgroupDriver, version: int) -> None:
    files = CgroupFiles(tmp_path, 1 if version == 1 else 2)
    name, before, after = ("cpu.shares", "2", "1024") if version == 1 else ("cpu.weight", "1", "39")
    state = RuntimeState(PodCgroups(driver, files))
    sandbox = state.run_sandbox(pod_sandbox_config(uid="u1", driver=driver))
    made = state.create_container(sandbox.id, container_config())
    path = state.cgroup_path(made.id)
    assert not files.folder(path).exists()
    state.start_container(made.id)
    assert files.read(path, name) == before
    state.update_container(made.id, Resources(cpu_shares=1024), {"why": "resize"})
    assert files.read(path, name) == after
    assert made.update_annotations == {"why": "resize"}
    state.remove_sandbox(sandbox.id)
    assert list(tmp_path.glob("**/*podu1*")) == []


def test_a_cgroup_that_another_attempt_uses_stays(tmp_path: Path) -> None:
    files = CgroupFiles(tmp_path)
    state = RuntimeState(PodCgroups(files=files))
    old, new = (state.run_sandbox(pod_sandbox_config(uid="u", attempt=attempt)) for attempt in (0, 1))
    state.remove_sandbox(old.id)
    assert files.folder(state.cgroup_path(new.id)).is_dir()


def test_without_a_cgroup_parent_nothing_is_written(tmp_path: Path) -> None:
    state = RuntimeState(PodCgroups(files=CgroupFiles(tmp_path)))
    sandbox = state.run_sandbox(pod_sandbox_config(cgroup_parent=""))
    state.start_container(state.create_container(sandbox.id, container_config()).id)
    state.remove_sandbox(sandbox.id)
    assert list(tmp_path.iterdir()) == []


def test_preload_spreads_running_containers_over_pods(state: RuntimeState) -> None:
    preload(state, 3, 10)
    counts = [len(state.containers_of(sandbox_id)) for sandbox_id in state.sandboxes]
    assert counts == [4, 3, 3]
    assert {entry.state for entry in state.containers.values()} == {api_pb2.CONTAINER_RUNNING}
