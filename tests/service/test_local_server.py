"""The directory of the daemon's own server: private, and removed also after a sudden end."""

import asyncio
import contextlib
import fcntl
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtimeproxy.background import BackgroundThreads
from runtimeproxy.service.local_server import PREFIX, LocalServer
from tests.lab import procfs

MANY = 512
"""File descriptors, more than a test process has open."""


def entries(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def answers() -> bool:
    return True


async def test_it_serves_and_leaves_nothing(socket_folder: Path) -> None:
    own = LocalServer(socket_folder)
    assert stat.S_IMODE(Path(own.socket_path).parent.stat().st_mode) == 0o700
    threads = BackgroundThreads(1, "test")
    await own.start(threads, answers, asyncio.Event())
    async with grpc.aio.insecure_channel(f"unix:{own.socket_path}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await own.stop()
    threads.shutdown()
    assert entries(socket_folder) == []


async def test_it_can_be_stopped_before_it_is_started(socket_folder: Path) -> None:
    own = LocalServer(socket_folder)
    await own.stop()
    await own.stop()
    assert entries(socket_folder) == []


async def test_what_others_use_is_left_alone(socket_folder: Path) -> None:
    running = LocalServer(socket_folder)
    without_lock = socket_folder / f"{PREFIX}demo"
    without_lock.mkdir()
    link = socket_folder / f"{PREFIX}link"
    link.symlink_to(without_lock)
    stale = socket_folder / f"{PREFIX}stale"
    stale.mkdir()
    (stale / "lock").touch()
    other = LocalServer(socket_folder)
    assert not stale.exists()
    assert without_lock.exists()
    assert link.is_symlink()
    assert Path(running.socket_path).parent.exists()
    await running.stop()
    await other.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_other_users_directories_are_left_alone(socket_folder: Path) -> None:
    foreign = socket_folder / f"{PREFIX}foreign"
    foreign.mkdir()
    (foreign / "lock").touch()
    os.chown(foreign, 12345, 12345)
    await LocalServer(socket_folder).stop()
    assert foreign.exists()


async def test_the_lock_is_held_while_it_lives(socket_folder: Path) -> None:
    own = LocalServer(socket_folder)
    with (Path(own.socket_path).parent / "lock").open("rb") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    await own.stop()


def test_a_folder_that_cannot_be_used_is_an_os_error(socket_folder: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        LocalServer(socket_folder / "missing")


def test_a_folder_that_cannot_be_used_keeps_no_file_descriptors(socket_folder: Path) -> None:
    before = procfs.open_files(os.getpid())
    # So often that files of the process's other threads do not matter.
    for _ in range(MANY):
        with pytest.raises(OSError, match="No such file"):
            LocalServer(socket_folder / "missing")
    assert procfs.open_files(os.getpid()) < before + MANY


@pytest.mark.parametrize("left", [0, 1])
def test_without_descriptors_for_lock_and_socket_it_leaves_nothing(socket_folder: Path, left: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (MANY, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(left):
            os.close(taken.pop())
        with pytest.raises(OSError, match="Too many open files"):
            LocalServer(socket_folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)
    assert entries(socket_folder) == []


WITHOUT_DESCRIPTORS = """
import asyncio, os, resource, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from runtimeproxy.service import local_server, local_services

async def probe():
    return True

async def main():
    own = local_server.LocalServer(Path(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    with ThreadPoolExecutor(1) as executor:
        await own.start(executor, probe, asyncio.Event())
        for each in taken:
            os.close(each)
        await own.stop()
    print("served")

asyncio.run(main())
"""


def test_others_that_take_all_file_descriptors_do_not_end_the_process(socket_folder: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(socket_folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
