"""The fake runtime in a process of its own, and its command."""

import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import FakeRuntimeProcess
from runtimeproxy.testing.__main__ import main


def containers_of(path: Path) -> list[api_pb2.Container]:
    with grpc.insecure_channel(f"unix://{path}") as channel:
        stub = api_pb2_grpc.RuntimeServiceStub(channel)
        return list(stub.ListContainers(api_pb2.ListContainersRequest(), timeout=30).containers)


def test_the_command_serves_what_it_preloads(socket_folder: Path) -> None:
    with FakeRuntimeProcess(socket_folder / "r.sock", ["--pods", "2", "--containers", "6"]) as process:
        containers = containers_of(process.socket_path)
    assert len({entry.pod_sandbox_id for entry in containers}) == 2
    assert len(containers) == 6
    assert list(socket_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "driver", "pattern"),
    [
        ("1", "cgroupfs", "cpu/kubepods/*/pod*/{id}/cpu.shares"),
        ("2", "systemd", "kubepods.slice/*/*/cri-containerd-{id}.scope/cpu.weight"),
    ],
)
def test_the_command_writes_cgroup_files(
    socket_folder: Path, version: str, driver: str, pattern: str
) -> None:
    root = socket_folder / "cgroup"
    arguments = ["--containers", "1", "--cgroup-root", str(root)]
    arguments += ["--cgroup-version", version, "--cgroup-driver", driver]
    with FakeRuntimeProcess(socket_folder / "r.sock", arguments) as process:
        (container,) = containers_of(process.socket_path)
        assert len(list(root.glob(pattern.format(id=container.id)))) == 1


def test_a_killed_process_leaves_its_socket_and_can_start_again(socket_folder: Path) -> None:
    process = FakeRuntimeProcess(socket_folder / "r.sock")
    process.start()
    first = process.pid
    process.kill()
    assert process.socket_path.is_socket()
    with process:
        assert process.pid != first
        assert containers_of(process.socket_path) == []


def test_a_process_that_does_not_run_has_no_pid(socket_folder: Path) -> None:
    with pytest.raises(RuntimeError, match="does not run"):
        _ = FakeRuntimeProcess(socket_folder / "r.sock").pid


def test_a_process_that_cannot_serve_is_an_error(socket_folder: Path) -> None:
    process = FakeRuntimeProcess(socket_folder / "missing" / "r.sock")
    with pytest.raises(RuntimeError, match="did not start"):
        process.start()


def test_a_wrong_argument_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--cgroup-version", "3"])
    assert caught.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = "import runtimeproxy.testing, runtimeproxy.testing.pytest_plugin, sys; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    assert not {"grpc", "google.protobuf", "cri_api"} & set(run.stdout.split())


def test_every_public_name_can_be_had() -> None:
    import runtimeproxy.testing as package

    assert all(getattr(package, name).__name__ == name for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
